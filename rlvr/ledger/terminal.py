"""What all commands share at a terminal: one-line errors for wrong options, ASCII output if nothing else works, and
output that outlasts its reader."""

from __future__ import annotations

import argparse
import codecs
import contextlib
import difflib
import io
import os
import re
import sys
import unicodedata
from collections.abc import Collection, Generator
from pathlib import Path
from typing import Any, NoReturn, TextIO, cast

from rlvr.ledger import layout
from rlvr.ledger.files import final_path

# Characters of our tables and messages, and what replaces them on a terminal that can only show ASCII.
SIGNS = {"…": "...", "–": "-", "—": "-", "−": "-", "×": "x", "·": ".", "±": "+/-", "≥": ">=", "≤": "<=", "→": "->"}
GREEK = {"α": "alpha", "β": "beta", "γ": "gamma", "η": "eta", "π": "pi", "σ": "sigma", "δ": "delta", "Σ": "sum"}
BOXES = {**dict.fromkeys("─━═╌", "-"), **dict.fromkeys("│┃║", "|"), "█": "#", "✓": "yes", "✗": "no", "•": "*"}
MARKS = {"▲": "^", "▼": "v", "△": "(^)", "▽": "(v)", "†": "+", "∝": "~", "∂": "d", "∇": "grad"}

# {our command: its names in other programs}
OTHER_NAMES = {
    "status": ("list", "ls", "show", "ps"),
    "cancel": ("stop", "kill", "abort", "end"),
    "retry": ("resume", "restart", "continue"),
    "run": ("train", "launch", "start"),
    "report": ("analysis", "analyse", "analyze", "plot"),
}


def near(word: str, commands: Collection[str]) -> str:
    """` Did you mean NAME?` with the command that has `word` as another name, or is spelt alike; "" without one."""
    matches = [ours for ours, others in OTHER_NAMES.items() if word in others and ours in commands]
    matches = matches or difflib.get_close_matches(word, commands, n=1)
    return f" Did you mean {matches[0]}?" if matches else ""


class Parser(argparse.ArgumentParser):
    """Rejects wrong arguments in one line and with exit code 2, as all our commands reject bad input."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, formatter_class=argparse.RawDescriptionHelpFormatter, **options)

    def error(self, message: str) -> NoReturn:
        print(
            f"{self.prog}: {message}.{self._suggestion(message)} `{self.prog} --help` lists what can be typed.",
            file=sys.stderr,
        )
        sys.exit(2)

    def _suggestion(self, message: str) -> str:
        """` Did you mean NAME?` for an error message of argparse; "" if no command or option is spelt alike."""
        if no_command := re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message):
            return near(no_command[1], re.findall(r"[\w.-]+", no_command[2]))
        _, is_unknown, words = message.partition("unrecognized arguments: ")
        actions = list(self._actions)
        for action in self._actions:
            subparsers = cast("object", action.choices)
            if isinstance(subparsers, dict):
                for parser in cast("dict[str, Parser]", subparsers).values():
                    actions += parser._actions
        options = [option for action in actions for option in action.option_strings]
        typed = words.split("=")[0].split()[:1]  # [] if the first word is empty
        matches = difflib.get_close_matches(typed[0], options, n=1) if is_unknown and typed else []
        return f" Did you mean {matches[0]}?" if matches else ""


def port(text: str) -> int:
    """The value of an option with `type=port`."""
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port: a whole number from 1 to 65535")
    return int(text)


HOME_HELP = "directory that holds runs/ (default: $RLVR_HOME, the checkout, or the current directory)"


def home(typed: Path | None) -> Path:
    """The directory of runs/: that of `--home`, which must exist, else `layout.home()`. Raises ValueError."""
    if typed is None:
        return layout.home()
    directory = layout.typed_path(typed, "--home ")
    if not directory.is_dir():
        raise ValueError(f"--home {typed}: there is no such directory. Pass the one that holds runs/.")
    return directory


def write_ascii_where_needed() -> None:
    """Let standard output and error replace characters that they cannot encode by ASCII, from now on."""
    codecs.register_error("rlvr-ascii", _in_ascii)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and codecs.lookup(stream.encoding).name not in ("utf-8", "utf-16"):
            stream.reconfigure(errors="rlvr-ascii")


def _in_ascii(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    return "".join(map(_ascii_for, error.object[error.start : error.end])), error.end


def _ascii_for(character: str) -> str:
    """The entry of our tables; else without accents (é is e, ² is 2); else the number of the character."""
    known = (SIGNS | GREEK | BOXES | MARKS).get(character)
    plain = unicodedata.normalize("NFKD", character).encode("ascii", "ignore").decode()
    return known or plain or f"\\u{ord(character):04x}"


@contextlib.contextmanager
def outlasting_reader() -> Generator[None, None, None]:
    """Within it, what is printed after the reader of a pipe has gone, such as `head` or `tee`, is dropped: it neither
    ends a launch nor changes an exit code."""
    with contextlib.redirect_stdout(_Outlasting(sys.stdout)), contextlib.redirect_stderr(_Outlasting(sys.stderr)):
        try:
            yield
        finally:
            sys.stdout.flush()


class _Outlasting:
    """A text stream that drops what is written once its reader has gone."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except BrokenPipeError:
            self._drop()
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except BrokenPipeError:
            self._drop()

    def _drop(self) -> None:
        """Send the file, with what its buffer still holds, to nowhere."""
        with Path(os.devnull).open("w") as nowhere:
            os.dup2(nowhere.fileno(), self._stream.fileno())


def one_line(error: BaseException) -> str:
    """The message of an error in one line; for an error of the file system, with the file."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{final_path(error.filename)}: {error.strerror}."
    return str(error)
