"""What all commands share: one-line errors for bad input, and ASCII on a terminal that can show nothing else."""

from __future__ import annotations

import errno
import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlvr.export import main as export
from rlvr.ledger import terminal
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
    "an option that there is not": (
        sweeps,
        ["status", "--josn"],
        "unrecognized arguments: --josn. Did you mean --json?",
    ),
    "an empty word, as of a variable that is not set": (sweeps, ["status", "s", ""], "unrecognized arguments: ."),
    "a word that begins with a sign": (sweeps, ["status", "s", "=x"], "unrecognized arguments: =x."),
    "a home that is not there": (
        sweeps,
        ["status", "--home", "/nowhere"],
        "--home /nowhere: there is no such directory.",
    ),
    "a home of a user that there is not": (
        sweeps,
        ["status", "--home", "~no-such-user/x"],
        "--home ~no-such-user/x leads",
    ),
    "the same of the shipper": (ship, ["--home", "/nowhere"], "--home /nowhere: there is no such directory."),
    "a run that there is not": (sweeps, ["logs", "nothing"], "There is no run nothing in "),
    "the same of an export": (export, ["nothing", "model"], "There is no run nothing in "),
    "a port beyond all": (server, ["up", "--port", "99999"], "'99999' is no port: a whole number from 1 to 65535."),
    "a port that is a word": (server, ["up", "--port", "http"], "'http' is no port: a whole number from 1 to 65535."),
}


@pytest.mark.parametrize("mistake", REJECTED)
def test_a_mistake_is_one_line(
    mistake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RLVR_HOME", str(tmp_path))
    main, arguments, message = REJECTED[mistake]
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
    error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert terminal.one_line(error) == (
        "the disk is full, or your quota used up. Free some space and repeat the command."
    )


@pytest.mark.parametrize("command", ["sweeps status", "rlvr.run --dry-run", "analysis", "rlvr.export a b"])
def test_a_home_that_is_a_file_is_reported(command: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    module, *arguments = command.split()
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        env={**os.environ, "RLVR_HOME": str(file)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert f"RLVR_HOME={file} is a file. Set it to a directory" in done.stderr


@pytest.mark.slow
def test_an_ascii_terminal_gets_ascii(tmp_path: Path) -> None:
    ledger_factory.write_study(tmp_path)
    environment = {**os.environ, "RLVR_HOME": str(tmp_path), "PYTHONIOENCODING": "ascii", "COLUMNS": "60"}
    for module in ("sweeps status", "analysis --no-figures"):
        done = subprocess.run(
            [sys.executable, "-m", *module.split()], cwd=ROOT, env=environment, capture_output=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.isascii()
        assert b"\\u" not in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("words", ["sweeps status", "analysis --no-figures", "rlvr.run --help"])
@pytest.mark.parametrize("buffered", ["", "1"])
def test_a_reader_that_has_gone_is_no_error(words: str, buffered: str, tmp_path: Path) -> None:
    ledger_factory.write_study(tmp_path)
    environment = {**os.environ, "RLVR_HOME": str(tmp_path), "PYTHONUNBUFFERED": buffered}
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as pipe:
        done = subprocess.run(
            [sys.executable, "-m", *words.split()],
            cwd=ROOT,
            env=environment,
            stdout=pipe,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux")
@pytest.mark.parametrize("words", ["sweeps status", "rlvr.run --help"])
def test_a_full_disk_of_the_output_is_no_error(words: str, tmp_path: Path) -> None:
    ledger_factory.write_study(tmp_path)
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", *words.split()],
            cwd=ROOT,
            env={**os.environ, "RLVR_HOME": str(tmp_path)},
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert (done.returncode, done.stderr) == (0, b"")


def interrupted(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("module", "interrupted_function", "words"),
    [
        ("analysis.command", "_rebuild", []),
        ("rlvr.run", "carry_out", ["--dry-run"]),
        ("rlvr.evaluate", "policies_of", ["eta"]),
        ("rlvr.export", "checkpoint_of", ["lad-s0", "model"]),
    ],
)
def test_ctrl_c_shows_no_traceback(
    module: str, interrupted_function: str, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{module}.{interrupted_function}", interrupted)
    assert importlib.import_module(module).main(words) == 130


def test_characters_have_ascii_replacements() -> None:
    terminal.write_ascii_where_needed()
    assert "η=0.5 ±2 … ─│".encode("ascii", "rlvr-ascii") == b"eta=0.5 +/-2 ... -|"


def test_a_name_of_several_launches_stands_for_the_newest(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    for number in range(6):
        run_id = f"{number}" * 12
        info = {"run_id": run_id, "group_id": "", "name": "lad-s0", "arm": "lad", "study": "main", "created": number}
        ledger.create_run(
            run_id,
            f"seed: {number}\n",
            {
                **info,
                "git_sha": "",
                "git_dirty": False,
                "host": "",
                "command": "",
                "config_dirs": [],
                "import_paths": [],
            },
        )
        line = {"run_id": run_id, "name": "lad-s0", "arm": "lad", "group_id": "", "overrides": [], "index": 0}
        ledger.record_sweep(f"main-{number}", {"study": "main", "command": "", "created": number, "swept": {}}, [line])
    assert ledger.resolve_run("lad-s0") == "5" * 12
    assert terminal.home(tmp_path) == tmp_path
