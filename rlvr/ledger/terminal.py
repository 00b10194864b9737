"""What all commands share at a terminal: one-line errors for wrong options, ASCII output if nothing else works, and
output that never fails."""

from __future__ import annotations

import argparse
import codecs
import contextlib
import difflib
import errno
import io
import os
import re
import sys
import unicodedata
from collections.abc import Callable, Collection, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO, cast

from rlvr.ledger import layout
from rlvr.ledger.files import DISK_FULL_ERRORS, final_path, is_shared

if TYPE_CHECKING:
    from rich.console import Console

INTERRUPTED = 130  # exit code of a command that Ctrl-C has ended
NO_OUTPUT = (errno.EPIPE, errno.EIO, *DISK_FULL_ERRORS)  # no reader, no terminal, or a full disk
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


def set_up() -> None:
    """Let standard output and error replace characters that they cannot encode by ASCII, from now on; and if homes are
    shared, let the group have what this process and its children write.
    """
    if is_shared():
        os.umask(0o007)
    codecs.register_error("rlvr-ascii", _in_ascii)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and codecs.lookup(stream.encoding).name not in ("utf-8", "utf-16"):
            stream.reconfigure(errors="rlvr-ascii")


def _in_ascii(error: UnicodeError) -> tuple[str, int]:
    """Characters of our tables; others without accents (é is e, ² is 2), else by their number."""
    assert isinstance(error, UnicodeEncodeError)
    text = ""
    for character in error.object[error.start : error.end]:
        known = (SIGNS | GREEK | BOXES | MARKS).get(character)
        plain = unicodedata.normalize("NFKD", character).encode("ascii", "ignore").decode()
        text += known or plain or f"\\u{ord(character):04x}"
    return text, error.end


@contextlib.contextmanager
def unfailing_output() -> Generator[None, None, None]:
    """Within it, what cannot be printed is dropped: the reader of a pipe has gone (`head`), the terminal is closed, or
    the disk is full. That neither ends a launch, whose runs could then not save, nor changes an exit code. And no text
    that is printed to standard output gives the terminal orders (`printable`).
    """
    out, err = sys.stdout and _Unfailing(sys.stdout, printable), sys.stderr and _Unfailing(sys.stderr)  # or None
    with contextlib.redirect_stdout(cast("Any", out)), contextlib.redirect_stderr(cast("Any", err)):
        try:
            yield
        finally:
            print(end="", flush=True)


class _Unfailing:
    """A text stream that drops what is written once that has failed."""

    def __init__(self, stream: TextIO, shown: Callable[[str], str] = str) -> None:
        """shown: what of a text is written."""
        self._stream, self._shown = stream, shown

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with self._dropped_if_impossible():
            self._stream.write(self._shown(text))
        return len(text)

    @property
    def rich_proxied_file(self) -> _Unfailing:
        """What rich writes to: its own orders to the terminal are meant (`console`)."""
        return _Unfailing(self._stream)

    def flush(self) -> None:
        with self._dropped_if_impossible():
            self._stream.flush()

    @contextlib.contextmanager
    def _dropped_if_impossible(self) -> Generator[None, None, None]:
        """A context after whose failure the file, with what its buffer still holds, goes nowhere."""
        try:
            yield
        except OSError as error:
            if error.errno not in NO_OUTPUT:
                raise
            with Path(os.devnull).open("w") as nowhere:
                os.dup2(nowhere.fileno(), self._stream.fileno())


_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def printable(text: str) -> str:
    """The text with all control characters but line ends and tabs replaced, which a terminal would obey, and halves of
    characters (surrogates), which no encoding has.
    """
    return _CONTROL.sub("\ufffd", text)


def console(**options: Any) -> Console:
    """A console for tables and styles, in which no text gives the terminal orders: names and messages are also those of
    other users, of models and of MLflow.
    """
    from rich.console import Console
    from rich.segment import Segment

    class PrintingConsole(Console):
        def render(self, renderable: Any, options: Any = None) -> Generator[Segment, None, None]:
            for segment in super().render(renderable, options):
                yield segment if segment.control else Segment(printable(segment.text), segment.style)

    return PrintingConsole(**options)


def one_line(error: BaseException) -> str:
    """The message of an error in one line; for an error of the file system, with the file."""
    if isinstance(error, OSError) and error.filename is not None:
        return printable(f"{final_path(error.filename)}: {error.strerror}.")
    if isinstance(error, OSError) and error.errno in DISK_FULL_ERRORS:
        return "the disk is full, or your quota used up. Free some space and repeat the command."
    return printable(str(error))
