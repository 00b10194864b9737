"""What all commands do alike at a terminal: options refused in one line, and ASCII where that is all it can show."""

from __future__ import annotations

import argparse
import codecs
import difflib
import io
import re
import sys
import unicodedata
from collections.abc import Collection
from pathlib import Path
from typing import Any, NoReturn, cast

from rlvr.ledger import layout
from rlvr.ledger.files import target_of

# Signs of our own tables and messages, as they are written on a terminal that has no others.
SIGNS = {"…": "...", "–": "-", "—": "-", "−": "-", "×": "x", "·": ".", "±": "+/-", "≥": ">=", "≤": "<=", "→": "->"}
GREEK = {"α": "alpha", "β": "beta", "γ": "gamma", "η": "eta", "π": "pi", "σ": "sigma", "δ": "delta", "Σ": "sum"}
BOXES = {**dict.fromkeys("─━═╌", "-"), **dict.fromkeys("│┃║", "|"), "█": "#", "✓": "yes", "✗": "no", "•": "*"}
MARKS = {"▲": "^", "▼": "v", "△": "(^)", "▽": "(v)", "†": "+", "∝": "~", "∂": "d", "∇": "grad"}


# Commands as other programs call them, by ours.
OTHER_NAMES = {
    "status": ("list", "ls", "show", "ps"),
    "cancel": ("stop", "kill", "abort", "end"),
    "retry": ("resume", "restart", "continue"),
    "run": ("train", "launch", "start"),
    "report": ("analysis", "analyse", "analyze", "plot"),
}


def near(word: str, commands: Collection[str]) -> str:
    """` Did you mean NAME?` of the command that a word stands for, or is close to; else ""."""
    match = [ours for ours, others in OTHER_NAMES.items() if word in others and ours in commands]
    match = match or difflib.get_close_matches(word, commands, n=1)
    return f" Did you mean {match[0]}?" if match else ""


class Parser(argparse.ArgumentParser):
    """Refuses what it does not know in one line and with exit code 2, as every other mistake is refused."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, formatter_class=argparse.RawDescriptionHelpFormatter, **options)

    def error(self, message: str) -> NoReturn:
        print(
            f"{self.prog}: {message}.{self._near(message)} `{self.prog} --help` says what can be typed.",
            file=sys.stderr,
        )
        sys.exit(2)

    def _near(self, message: str) -> str:
        if no_command := re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message):
            return near(no_command[1], re.findall(r"[\w.-]+", no_command[2]))
        _, is_unknown, words = message.partition("unrecognized arguments: ")
        actions = list(self._actions)
        for action in self._actions:  # of commands in commands
            if isinstance(inner := cast("object", action.choices), dict):
                actions += [each for parser in cast("dict[str, Parser]", inner).values() for each in parser._actions]
        known = [option for action in actions for option in action.option_strings]
        match = difflib.get_close_matches(words.split("=")[0].split()[0], known, n=1) if is_unknown else []
        return f" Did you mean {match[0]}?" if match else ""


def port(text: str) -> int:
    """For `type=` of an option."""
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port: a whole number from 1 to 65535")
    return int(text)


HOME_HELP = "directory that holds runs/ (default: $RLVR_HOME, the checkout, or the current directory)"


def home(typed: Path | None) -> Path:
    """The directory of runs/ that `--home` names, which must be there; without one, `layout.home()`. ValueError."""
    if typed is None:
        return layout.home()
    directory = typed.expanduser().resolve()
    if not directory.is_dir():
        raise ValueError(f"--home {typed}: there is no such directory. Pass the one that holds runs/.")
    return directory


def write_ascii_where_needed() -> None:
    """From now on, signs that standard output or standard error cannot encode are written in those that it can."""
    codecs.register_error("rlvr-ascii", _in_ascii)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and codecs.lookup(stream.encoding).name not in ("utf-8", "utf-16"):
            stream.reconfigure(errors="rlvr-ascii")


def _in_ascii(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    return "".join(map(_letters, error.object[error.start : error.end])), error.end


def _letters(sign: str) -> str:
    """é is e, ² is 2; a sign that stands for none of ours is written as its number."""
    known = (SIGNS | GREEK | BOXES | MARKS).get(sign)
    return known or unicodedata.normalize("NFKD", sign).encode("ascii", "ignore").decode() or f"\\u{ord(sign):04x}"


def one_line(error: BaseException) -> str:
    """Of an error of the file system, with its file; of others, their text."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{target_of(error.filename)}: {error.strerror}."
    return str(error)
