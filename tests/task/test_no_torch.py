from __future__ import annotations

import subprocess
import sys


def test_tasks_import_neither_torch_nor_the_verifier() -> None:
    code = (
        "import sys, rlvr.task.maze, rlvr.task.bandit, rlvr.task.digits, rlvr.task.classes\n"
        "import rlvr.task.math, rlvr.task.code, rlvr.task.sql, rlvr.task.verify.pool, rlvr.task.verify.program\n"
        "import rlvr.task.coins, rlvr.task.countdown, rlvr.task.skills, rlvr.task.choice, rlvr.task.reasoning_gym\n"
        "import rlvr.task.spelled\n"
        "heavy = {'torch', 'transformers', 'math_verify', 'sympy', 'datasets', 'pyarrow', 'reasoning_gym'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
