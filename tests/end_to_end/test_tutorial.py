"""docs/tutorial.md, typed as it stands, in an empty directory: what it shows is what is said, numbers aside."""

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.real, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/tutorial.md").read_text(encoding="utf-8")
PIECE = re.compile(r"(?:^\*\*(?P<file>\S+)\*\*\n\n)?^```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.M | re.S)

NUMBERS = re.compile(r"\b(?=[a-f]*\d)[0-9a-f]{8,12}\b|[−+]?\d[\d.,]*")  # and ids


def masked(line: str) -> str:
    """A line without its numbers, the marks that hang on them, and how all of it is spaced."""
    return " ".join(re.sub("[△▽▲▼]", "", NUMBERS.sub("#", line)).split())


def typed(text: str, folder: Path) -> str:
    """What a shell answers to these commands; `cd` and `export` last, as they do in a terminal."""
    remember = folder / "shell"
    before = f". {remember}\n" if remember.exists() else ""
    script = f"set -eo pipefail\n{before}{text}\ndeclare -p RLVR_HOME > {remember}; echo cd $PWD >> {remember}"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}
    environment.pop("RLVR_HOME", None)
    done = subprocess.run(
        ["bash", "-c", script], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def test_the_page_holds_as_it_is_typed(tmp_path: Path) -> None:
    answer, shown = "", 0
    for piece in PIECE.finditer(PAGE):
        if piece["file"]:
            path = tmp_path / "remainders" / piece["file"]
            path.parent.mkdir(parents=True)
            path.write_text(piece["text"])
        elif piece["kind"] == "bash":
            answer = typed(piece["text"], tmp_path)
        else:
            lines = {masked(line) for line in answer.splitlines()}
            for line in piece["text"].splitlines():
                shown += 1
                assert any(masked(line) in said for said in lines), f"{line}\nis not in\n{answer}"
    assert shown > 20
    home = tmp_path / "remainders"
    ends = [json.loads(path.read_text())["cause"] for path in home.glob("runs/*/attempts/*/exit.json")]
    assert ends == ["ok"] * 8  # four of the grid, two of its seeds again, and their partners: none twice
    assert len(list(home.glob("runs/stages/*/stage.json"))) == 1
    with (home / "reports/remainders/tables/comparison.csv").open() as file:
        rows = {row["row"]: row for row in csv.DictReader(file)}
    decided = rows["loss=grpo lr = 0.0003"]
    assert (decided["verdict"], float(decided["paired_seeds"])) == ("▲", 3)
