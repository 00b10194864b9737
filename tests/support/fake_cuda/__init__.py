"""A fake CUDA for tests: the program takes every branch that it takes on a GPU, with real numbers.

Tensors "on" it are wrappers around CPU tensors (tensors.py), in a torch with eight fake devices (device.cpp,
patches.py), with a driver that shares memory between processes (driver.cpp). An operation on two devices fails, as on a
GPU. Each operation for which the host waits for the GPU is counted, by the line that called it, and so is each
attention kernel (record.py).

It does not simulate kernels (their speed, memory and rounding), races between streams, or NCCL.

torch looks for its devices once: a process starts with `python -m tests.support.fake_cuda LIBRARY MODULE ARGUMENTS`,
which loads the library before torch and then runs the module. `command` returns this command line. This module does not
import torch.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

DEVICE, DRIVER = (Path(__file__).with_name(name) for name in ("device.cpp", "driver.cpp"))
ROOT = Path(__file__).parents[3]


def missing() -> str:
    """What this machine lacks for the fake CUDA; "" for nothing."""
    import torch

    if torch.version.cuda or torch.version.hip:
        return "a build of torch for the CPU: this one has the hooks of a real GPU"
    return "" if shutil.which("g++") else "g++"


def needed() -> pytest.MarkDecorator:
    """The mark that skips tests where the fake CUDA cannot be built."""
    import pytest

    lacking = missing()
    return pytest.mark.skipif(bool(lacking), reason=f"needs {lacking}")


def library() -> Path:
    """The compiled guard and hooks, built at first use (3 s) and kept among this user's temporary files."""
    import torch
    from torch.utils.cpp_extension import include_paths, library_paths

    places = [*(f"-I{p}" for p in include_paths()), *(f"-L{p}" for p in library_paths())]
    places += [f"-Wl,-rpath,{p}" for p in library_paths()]
    return _built(DEVICE, "device.so", [*places, "-lc10", "-ltorch_cpu"], torch.__version__)


def driver() -> Path:
    """The directory of a libcuda.so.1, for LD_LIBRARY_PATH: memory that processes share."""
    return _built(DRIVER, "libcuda.so.1", []).parent


def _built(source: Path, name: str, words: list[str], version: str = "") -> Path:
    # The words contain the directory of torch's libraries: another environment needs a library of its own.
    key = hashlib.sha256(source.read_bytes() + " ".join([version, *words]).encode()).hexdigest()[:16]
    built = Path(tempfile.gettempdir()) / f"rlvr-fake-cuda-{os.getuid()}" / key / name
    if not built.exists():
        built.parent.parent.mkdir(mode=0o700, exist_ok=True)
        built.parent.mkdir(exist_ok=True)
        aside = built.with_suffix(f".{os.getpid()}")
        compiler = ["g++", "-O0", "-std=c++20", "-shared", "-fPIC", str(source), "-o", str(aside)]
        subprocess.run([*compiler, *words], check=True)
        aside.rename(built)
    return built


def command(module: str, *arguments: str, ranks: int = 1) -> list[str]:
    """The command line that runs a module on the fake CUDA, with `ranks` processes."""
    words = ["-m", "tests.support.fake_cuda", str(library()), module, *arguments]
    if ranks == 1:
        return [sys.executable, *words]
    return [sys.executable, "-m", "rlvr.job.ranks", str(ranks), *words]


def run(module: str, *arguments: str, ranks: int = 1, timeout_s: float = 1500, **environment: str) -> str:
    """The output of a module, run on the fake CUDA. Raises AssertionError, with the end of its errors, if it fails."""
    settings = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
        "CUDA_VISIBLE_DEVICES": "",
        "LD_LIBRARY_PATH": f"{driver()}:{os.environ.get('LD_LIBRARY_PATH', '')}".strip(":"),
        **environment,
    }
    done = subprocess.run(
        command(module, *arguments, ranks=ranks),
        cwd=ROOT,
        env=settings,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    return done.stdout
