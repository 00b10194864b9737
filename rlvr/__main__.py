"""The command `rlvr`, also `python -m rlvr`: one name for all commands of this project.

The command does not put the working directory on Python's path, so that no file there can hide one of our modules.
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
    """A module that is run as the main program."""

    module: str
    about: str
    first: tuple[str, ...] = ()  # arguments before the user's


def _sweeps_command(name: str, about: str) -> Command:
    return Command("sweeps", about, (name,))


COMMANDS: Mapping[str, Command] = {
    "run": Command("rlvr.run", "train one run, or with -m a sweep of runs; --dry-run shows them first"),
    "status": _sweeps_command("status", "the state of a sweep's runs"),
    "watch": _sweeps_command("watch", "status, redrawn until all runs have ended"),
    "logs": _sweeps_command("logs", "the log of a run"),
    "cancel": _sweeps_command("cancel", "end a launch here, or the SLURM jobs of a sweep or run; they save first"),
    "retry": _sweeps_command("retry", "start what has not finished of a sweep or run again"),
    "gc": _sweeps_command("gc", "old checkpoints, unused stages, half-written files"),
    "sync": _sweeps_command("sync", "ship metrics to MLflow that are not there yet"),
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
`rlvr COMMAND --help` explains each command, `rlvr --version` prints the version. In a checkout `rlvr run` is
`python -m rlvr.run`, `rlvr status` is `python -m sweeps status`, and `rlvr report` is `python -m analysis`."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit codes: those of the command; 2 for an unknown command."""
    name, *command_arguments = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if name in ("-h", "--help", "help"):
        print(usage())
        return 0
    if name == "--version":
        print(f"rlvr {__version__}")
        return 0
    command = COMMANDS.get(name)
    if problem := _unknown(name) if command is None else imports.hidden_package_message():
        print(f"rlvr: {problem}", file=sys.stderr)
        return 2
    assert command is not None
    sys.argv = [f"rlvr {name}", *command.first, *command_arguments]
    runpy.run_module(command.module, run_name="__main__", alter_sys=True)  # it exits with its own exit code
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
