import errno
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rlvr.export import main as export
from rlvr.ledger import terminal
from rlvr.ledger.attempt import Attempt
from rlvr.ledger.cause import Cause
from rlvr.ledger.sweeps import Ledger
from rlvr.tracker.mlflow import main as ship
from rlvr.tracker.server import main as server
from sweeps.commands import main as sweeps
from tests.analysis import ledger_factory

ROOT = Path(__file__).parents[2]

REJECTED = {
    "a command that there is not": (sweeps, ["statsu"], "argument command: invalid choice: 'statsu'"),
    "a command but for its last letters": (sweeps, ["statu"], ". Did you mean status?"),
    "a command as others call it": (sweeps, ["stop"], ". Did you mean cancel?"),
    "an option that there is not": (sweeps, ["status", "--josn"], "arguments: --josn. Did you mean --json?"),
    "an empty word, as of a variable that is not set": (sweeps, ["status", "s", ""], "unrecognized arguments: ."),
    "a word that begins with a sign": (sweeps, ["status", "s", "=x"], "unrecognized arguments: =x."),
    "a home that is not there": (sweeps, ["status", "--home", "/nowhere"], "--home /nowhere: there is no such"),
    "a home of nobody": (sweeps, ["status", "--home", "~no-such-user/x"], "--home ~no-such-user/x leads"),
    "the same of the shipper": (ship, ["--home", "/nowhere"], "--home /nowhere: there is no such directory."),
    "a run that there is not": (sweeps, ["logs", "nothing"], "There is no run nothing in "),
    "the same of an export": (export, ["nothing", "model"], "There is no run nothing in "),
    "a port beyond all": (server, ["up", "--port", "99999"], "'99999' is no port: a whole number from 1 to 65535."),
    "a port that is a word": (server, ["up", "--port", "http"], "'http' is no port: a whole number from 1 to 65535."),
}


def test_a_mistake_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], subtests: pytest.Subtests
) -> None:
    monkeypatch.setenv("RLVR_HOME", str(tmp_path))
    for mistake, (main, arguments, message) in REJECTED.items():
        with subtests.test(mistake):
            try:
                code = main(arguments)
            except SystemExit as exit_of_argparse:
                code = exit_of_argparse.code
            printed = capsys.readouterr()
            assert (code, printed.out, printed.err.count("\n")) == (2, "", 1)
            assert message in printed.err
            assert "usage:" not in printed.err


def test_a_full_disk_is_said_to_be_one() -> None:
    """A write that fails knows no name of a file."""
    message = "the disk is full, or your quota used up. Free some space and repeat the command."
    assert terminal.one_line(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))) == message


def test_a_home_that_is_a_file_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (file := tmp_path / "file").touch()
    monkeypatch.setenv("RLVR_HOME", str(file))
    others = (("analysis.command",), ("rlvr.export", "a", "b"))
    for module, *words in (("sweeps.commands", "status"), ("rlvr.run", "--dry-run"), *others):
        assert importlib.import_module(module).main(words) == 2, module
        printed = capsys.readouterr()
        assert (printed.out, printed.err.count("\n")) == ("", 1), module
        assert f"RLVR_HOME={file} is a file. Set it to a directory" in printed.err, module


def run(home: Path, words: str, stdout: Any = subprocess.PIPE, **variables: str) -> subprocess.CompletedProcess[bytes]:
    """A command on a home with a finished study."""
    if not (home / "runs").exists():
        ledger_factory.write_study(home)
    command, environment = [sys.executable, "-m", *words.split()], {**os.environ, "RLVR_HOME": str(home), **variables}
    return subprocess.run(command, cwd=ROOT, env=environment, stdout=stdout, stderr=subprocess.PIPE, check=False)


@pytest.mark.slow
def test_an_ascii_terminal_gets_ascii(tmp_path: Path) -> None:
    for words in ("sweeps status", "analysis --no-figures"):
        done = run(tmp_path, words, PYTHONIOENCODING="ascii", COLUMNS="60")
        assert done.returncode == 0, done.stderr
        assert done.stdout.isascii()
        assert b"\\u" not in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("words", ["sweeps status", "analysis --no-figures", "rlvr.run --help"])
def test_a_reader_that_has_gone_is_no_error(words: str, tmp_path: Path) -> None:
    for unbuffered in ("", "1") if words == "sweeps status" else ("",):
        reader, writer = os.pipe()
        os.close(reader)
        with os.fdopen(writer, "w") as pipe:
            done = run(tmp_path, words, pipe, PYTHONUNBUFFERED=unbuffered)
        assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux")
@pytest.mark.parametrize("words", ["sweeps status", "rlvr.run --help"])
def test_a_full_disk_of_the_output_is_no_error(words: str, tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = run(tmp_path, words, full)
    assert (done.returncode, done.stderr) == (0, b"")


def test_ctrl_c_shows_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    for module, function, *words in (
        *(("analysis.command", "_rebuild"), ("rlvr.run", "carry_out", "--dry-run")),
        *(("rlvr.evaluate", "policies_of", "eta"), ("rlvr.export", "checkpoint_of", "lad-s0", "model")),
    ):
        monkeypatch.setattr(f"{module}.{function}", interrupted)
        assert importlib.import_module(module).main(words) == 130


def test_characters_have_ascii_replacements() -> None:
    terminal.set_up()
    assert "η=0.5 ±2 … ─│".encode("ascii", "rlvr-ascii") == b"eta=0.5 +/-2 ... -|"


ORDERS = "\x1b]0;owned\x07\x1b[2J\x9b8m\x08"  # a title, a blank screen, hidden text, a step back


def test_no_text_gives_the_terminal_orders_but_styles_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from rich.table import Table
    from rich.text import Text

    monkeypatch.setenv("TERM", "xterm")
    table = Table(title=ORDERS)
    table.add_column(ORDERS)
    table.add_row(Text(f"run {ORDERS}", style="bold"))
    with terminal.unfailing_output():
        print(f"printed {ORDERS}\tkept")
        console = terminal.console(force_terminal=True, color_system="standard", width=60)
        console.print(table)
        console.print(f"message {ORDERS}", markup=False)
    out = capsys.readouterr().out
    assert "printed \ufffd]0;owned\ufffd\ufffd[2J\ufffd8m\ufffd\tkept" in out
    assert not re.search(r"[\x07\x08\x9b]|\x1b(?!\[[\d;]*m)", out)
    assert "\x1b[1m" in out  # bold


def test_what_others_have_named_is_shown_without_its_orders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Names of runs and sweeps, their messages and logs."""
    ledger = Ledger(tmp_path)
    ledger.create_run("a" * 12, "{}", {"name": f"a{ORDERS}", "arm": f"arm{ORDERS}", "study": f"s{ORDERS}"})
    ledger.record_sweep("s1", {"study": f"s{ORDERS}", "name": f"n{ORDERS}"}, [{"run_id": "a" * 12}])
    with Attempt.open(ledger.run_dir("a" * 12)) as attempt:
        attempt.log_path.write_text(f"one\rtwo{ORDERS}\n")
        attempt.close(Cause.ERROR, f"failed{ORDERS}")
    for words in (["status"], ["status", "--json"], ["logs", "aaa"], ["logs", "aaa", "--follow"], ["logs", ORDERS]):
        sweeps([*words, "--home", str(tmp_path)])
        printed = capsys.readouterr()
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", printed.out + printed.err), words
        assert printed.out or printed.err
