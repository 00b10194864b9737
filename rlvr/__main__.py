"""The command `rlvr`, and `python -m rlvr`: one name for all that this project can be told to do.

Unlike `python -m`, it does not put the working directory on Python's path: no file that lies there is taken for ours.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlvr import __version__
from rlvr.config import imports
from rlvr.ledger import terminal


@dataclass(frozen=True)
class Command:
    """A module with a main program, started by its name."""

    module: str
    about: str
    first: tuple[str, ...] = ()  # arguments before the user's


def _of_sweeps(name: str, about: str) -> Command:
    return Command("sweeps", about, (name,))


COMMANDS: Mapping[str, Command] = {
    "run": Command("rlvr.run", "train one run, or with -m a sweep of runs; --dry-run shows them first"),
    "status": _of_sweeps("status", "how the runs of a sweep stand"),
    "watch": _of_sweeps("watch", "status, redrawn until all runs have ended"),
    "logs": _of_sweeps("logs", "the log of a run"),
    "cancel": _of_sweeps("cancel", "end the SLURM jobs of a sweep or run; they save first"),
    "retry": _of_sweeps("retry", "start what has not finished of a sweep or run again"),
    "gc": _of_sweeps("gc", "old checkpoints, unused stages, half-written files"),
    "sync": _of_sweeps("sync", "ship metrics to MLflow that are not there yet"),
    "sweeps": Command("sweeps", "these seven by their other name: rlvr sweeps status"),
    "report": Command("analysis", "tables and figures of a study"),
    "evaluate": Command("rlvr.evaluate", "sample and judge policies: runs, checkpoints, models, on any task"),
    "export": Command("rlvr.export", "a checkpoint as a model for transformers or vLLM"),
    "replay": Command("rlvr.diagnostics.replay", "objectives on the same stored rollouts, before a GPU is spent"),
    "diversity": Command("rlvr.diagnostics.diversity", "how different the responses of evaluations are"),
    "weights": Command("rlvr.diagnostics.weights", "how much objectives weigh problems of each pass rate"),
    "landscape": Command("rlvr.diagnostics.landscape", "where objectives lead on three arms"),
    "tracking": Command("rlvr.tracker.server", "an MLflow server with PostgreSQL on this machine: up, down"),
}


HEAD = "Experiment sweeps for reinforcement learning with verifiable rewards.\n"
FOOT = """\
`rlvr COMMAND --help` explains each, `rlvr --version` says which version this is. In a checkout `rlvr run` is
`python -m rlvr.run`, `rlvr status` is `python -m sweeps status`, and `rlvr report` is `python -m analysis`."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit codes: those of the command; 2 for one that does not exist."""
    name, *rest = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if name in ("-h", "--help", "help"):
        print(usage())
        return 0
    if name == "--version":
        print(f"rlvr {__version__}")
        return 0
    command = COMMANDS.get(name)
    if problem := _unknown(name) if command is None else imports.foreign():
        print(f"rlvr: {problem}", file=sys.stderr)
        return 2
    assert command is not None
    sys.argv = [f"rlvr {name}", *command.first, *rest]
    runpy.run_module(command.module, run_name="__main__", alter_sys=True)  # it ends the process with its own code
    return 0


def usage() -> str:
    lines = [f"  rlvr {name:10} {command.about}" for name, command in COMMANDS.items()]
    return "\n".join([HEAD, *lines, "", FOOT])


def _unknown(name: str) -> str:
    if "=" in name or name in ("-m", "--multirun"):
        return f"{name} belongs to a command: rlvr run {name} ..."
    return f"there is no command {name}.{terminal.near(name, COMMANDS)} Commands: {', '.join(COMMANDS)}."


if __name__ == "__main__":
    sys.exit(main())
