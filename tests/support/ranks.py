"""Programs that run as the ranks of a run, started by rlvr.job.ranks; each prints lines of JSON."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
OF_A_CPU = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}


def start(count: int, *words: str, environment: Mapping[str, str] = OF_A_CPU) -> subprocess.Popen[str]:
    """`python WORDS...` as `count` ranks; words may begin with options of rlvr.job.ranks (`--nodes=2`)."""
    options = [word for word in words if word.startswith("--")]
    command = [sys.executable, "-m", "rlvr.job.ranks", *options, str(count), *words[len(options) :]]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=ROOT, env=os.environ | environment, stdout=pipe, stderr=pipe, text=True)


def lines(process: subprocess.Popen[str], timeout_s: float = 200) -> list[str]:
    """The sorted lines that the ranks have printed. Asserts that none has failed."""
    output, errors = process.communicate(timeout=timeout_s)
    assert process.returncode == 0, errors[-4000:]
    return sorted(output.splitlines())


def results(count: int, *words: str) -> list[Any]:
    """What each rank has printed as one line of JSON, sorted. A program writes it in one piece, beside the others'."""
    return [json.loads(line) for line in lines(start(count, *words))]
