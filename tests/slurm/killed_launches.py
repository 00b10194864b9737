"""Launches that are killed: `python -m tests.slurm.killed_launches HOMES KIND OVERRIDE...`, each in a home below HOMES.

A sweep is planned once. Then it is launched in forked children: child N is killed just before its N-th durable act
(a file or directory made, renamed or removed, sbatch called), until one lives to the end; KIND `sbatch`: by its own
N-th sbatch, which goes on without it. After each kill the same launch is repeated, undisturbed.
"""

import contextlib
import io
import itertools
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rlvr.config.registry import Registry
from rlvr.run import carry_out
from sweeps import launcher
from sweeps.plan import Plan
from sweeps.session import Session

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def kill_before(number: int, home: Path) -> None:
    """Kill this process at its `number`-th durable act, counted from 1."""
    count = itertools.count(1)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in ("os.mkdir", "os.rename", "os.remove", "os.rmdir"):
            durable = str(arguments[0]).startswith(str(home))
        elif event == "open":
            durable = str(arguments[0]).startswith(str(home)) and bool(arguments[2] & WRITES)
        else:
            durable = event == "subprocess.Popen" and Path(arguments[0]).name == "sbatch"
        if durable and next(count) == number:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def kill_by_sbatch(number: int, home: Path) -> None:
    """Put an sbatch first on PATH that kills its caller the `number`-th time, and works on."""
    real, calls = shutil.which("sbatch"), home.parent / f"{home.name}.calls"
    wrapper = home.parent / f"{home.name}.bin" / "sbatch"
    wrapper.parent.mkdir()
    wrapper.write_text(
        f'#!/bin/sh\necho >>{calls}\n[ "$(wc -l <{calls})" -ne {number} ] || {{ kill -9 $PPID; sleep 1; }}\n'
        f'exec {real} "$@"\n'
    )
    wrapper.chmod(0o755)
    os.environ["PATH"] = f"{wrapper.parent}{os.pathsep}{os.environ['PATH']}"


def planned(overrides: list[str]) -> Plan:
    with contextlib.redirect_stdout(io.StringIO()):
        (only,) = carry_out(overrides, Registry.of(overrides), dry_run=True).launches
    return only.plan


def launch(plan: Plan, home: Path, prepare: Callable[[], None]) -> int:
    """In a forked child; its exit status, negative: the signal that killed it."""
    child = os.fork()
    if child == 0:
        with Path(f"{home}.log").open("a") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        os.environ["RLVR_HOME"] = str(home)
        prepare()
        with Session().entered():
            outcome = launcher.launch(plan)
        sys.stdout.flush()
        os._exit(outcome.exit_code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main(homes: Path, kind: str, *overrides: str) -> None:
    plan = planned(list(overrides))
    kill = {"write": kill_before, "sbatch": kill_by_sbatch}[kind]
    for number in itertools.count(1):
        home = homes / f"{kind}-{number}"
        home.mkdir(parents=True)
        status = launch(plan, home, lambda number=number, home=home: kill(number, home))
        again = launch(plan, home, lambda: None)
        print(number, status, again, flush=True)
        if status != -signal.SIGKILL:
            break


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
