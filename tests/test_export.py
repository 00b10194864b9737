import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlvr.export import checkpoint_of, main


def make_checkpoint(run_dir: Path, step: int, score: float | None = None) -> Path:
    (path := run_dir / "checkpoints" / f"step-{step:08d}").mkdir(parents=True)
    (path / "trainer.json").write_text(json.dumps({"extra": {"step": step, "score": score}}))
    return path


def test_the_newest_or_best_or_named_checkpoint_is_exported(tmp_path: Path) -> None:
    first, second, third = (make_checkpoint(tmp_path, s, score) for s, score in ((2, 0.3), (4, 0.5), (10, None)))
    assert (checkpoint_of(tmp_path, best=False), checkpoint_of(tmp_path, best=True)) == (third, second)
    assert checkpoint_of(first, best=False) == first
    with pytest.raises(ValueError, match="--best chooses among a run's checkpoints, and .*step-00000002 is one"):
        checkpoint_of(first, best=True)


@pytest.mark.parametrize(
    ("best", "message"), [(True, "checkpoint.keep_best=true"), (False, "Pass the id or the name of a run")]
)
def test_a_checkpoint_is_required(tmp_path: Path, capsys: pytest.CaptureFixture[str], best: bool, message: str) -> None:
    if best:
        make_checkpoint(tmp_path, 2)
    assert main([str(tmp_path), str(tmp_path / "out"), *(["--best"] if best else [])]) == 2
    assert message in capsys.readouterr().err


def test_a_run_that_does_not_exist_is_refused_without_importing_torch(tmp_path: Path) -> None:
    code = "import sys; from rlvr.export import main; sys.exit(main(['nothing', 'out']) != 2 or 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], env=os.environ | {"RLVR_HOME": str(tmp_path)}, check=False)
    assert done.returncode == 0
