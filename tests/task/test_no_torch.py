import subprocess
import sys
from pathlib import Path

from rlvr import task


def test_tasks_import_neither_torch_nor_the_verifier() -> None:
    tasks = [f"rlvr.task.{path.stem}" for path in sorted(Path(task.__file__).parent.glob("[!_]*.py"))]
    assert len(tasks) > 20
    code = (
        f"import sys, {', '.join(tasks)}, rlvr.task.verify.pool, rlvr.task.verify.program\n"
        "heavy = {'torch', 'transformers', 'math_verify', 'sympy', 'datasets', 'pyarrow'}\n"
        "heavy |= {'reasoning_gym', 'verifiers'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
