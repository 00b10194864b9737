"""The command `rlvr`, also `python -m rlvr`: one name for all commands of this project.

The command does not put the working directory on Python's path, so that no file there can hide one of our modules.
"""

import runpy
import sys
from collections.abc import Sequence

from rlvr import __version__
from rlvr.config import imports
from rlvr.config.commands import COMMANDS
from rlvr.ledger import terminal

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
