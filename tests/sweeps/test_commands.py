from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from rlvr.ledger import layout
from rlvr.ledger.attempt import Attempt
from rlvr.ledger.lock import lock, unlock
from rlvr.ledger.sweeps import Ledger
from sweeps.__main__ import main
from sweeps.progress import Display, duration, hours, table
from tests.sweeps.test_local import HERE, WORKER, launching, plan, running, wait_for


def make_home(home: Path) -> Ledger:
    """A sweep of a finished, a failed, a preempted and a queued run, and a run of no sweep."""
    ledger = plan(home, done="", bad="", half="", new="")
    for run_id, cause, message in (
        ("done", "ok", ""),
        ("bad", "diverged", "loss is nan at step 3\nmore"),
        ("half", "preempted", "SIGTERM"),
    ):
        with Attempt.open(ledger.run_dir(run_id)) as attempt:
            attempt.log_path.write_text(f"log of {run_id}\n")
            attempt.heartbeat(3, 12, "train", 0.25)
            attempt.close(cause, message)
    ledger.create_run("alone", "{}", {"name": "name-alone"})
    return ledger


def command(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sweeps", *arguments, "--home", str(home)],
        cwd=HERE.parent.parent,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_status_shows_every_run_of_the_newest_sweep_and_why_it_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = make_home(tmp_path)
    ledger.record_sweep("older", {"study": "x"}, [])
    ledger.record_sweep("s", {"study": "test", "swept": {"eta": [1, 2]}}, ledger.sweep("s").runs)
    assert main(["status", "--home", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    lines = {line.split()[0]: line.split() for line in out.splitlines() if line.strip()}
    assert "test s: 1 finished, 1 planned, 1 diverged, 1 preempted" in out
    assert "(eta=1,2)" in out
    assert lines["done"][1:4] == ["name-done", "finished", "3/12"]
    assert lines["new"][1:4] == ["name-new", "planned", "-"]
    assert "diverged name-bad: diverged: loss is nan at step 3\n" in out
    assert "planned name-new" not in out
    assert "1 planned: repeat the launch, or python -m sweeps retry s\n" in out
    assert str(ledger.run_dir("bad") / "attempts/1/log.txt") in out
    assert "1 other sweep: python -m sweeps status --all" in out
    assert "name-alone" not in out


def test_status_shows_all_sweeps_of_the_newest_study_but_those_that_a_newer_one_contains(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = make_home(tmp_path)
    lines = {line["run_id"]: line for line in ledger.sweep("s").runs}
    for number, (sweep_id, run_ids) in enumerate({"one": ["done"], "two": ["half"], "three": ["done", "bad"]}.items()):
        path = ledger.record_sweep(sweep_id, {"study": "eta", "name": f"try-{number}"}, [lines[r] for r in run_ids])
        os.utime(path / "sweep.json", (2e9 + number, 2e9 + number))
    assert main(["status", "--home", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert out.index("eta try-1 two: 1 preempted") < out.index("eta try-2 three: 1 finished, 1 diverged")
    assert "one:" not in out
    assert "2 other sweeps: python -m sweeps status --all" in out
    assert main(["status", "try-0", "--home", str(tmp_path)]) == 0
    output = capsys.readouterr()
    assert "eta try-0 one: 1 finished" in output.out
    assert output.err == ""
    for command in ("status", "cancel"):
        main([command, "eta", "--home", str(tmp_path)])
        warning = capsys.readouterr().err.splitlines()[0]
        assert warning == "This is the newest sweep of eta, three. Others, by their ids: two."


@pytest.mark.parametrize("width", [40, 80, 160])
def test_on_a_narrow_terminal_names_and_states_survive(width: int, tmp_path: Path) -> None:
    name = "lad-js-eta0.5-samples16-s0"
    states = [replace(state, name=name) for state in make_home(tmp_path).states(["done", "bad", "half", "new"])]
    file = io.StringIO()
    Console(file=file, width=width).print(table(states, ids=True, width=width, interrupted=True))
    head, *lines = file.getvalue().splitlines()
    assert max(map(len, [head, *lines])) <= width
    for line, word in zip(lines, ("finished", "diverged", "interrupted", "planned"), strict=True):
        assert f"{name} {word}" in " ".join(line.split())
    assert ("accuracy" in head, "━" in lines[0]) == {40: (False, False), 80: (True, False), 160: (True, True)}[width]


@pytest.mark.parametrize(
    ("spent", "text"),
    [
        ((192 / 3600, 0.0, 0.0), "3m12s"),
        ((2.0, 0.2, 0.0), "2h00m + 12m00s replayed"),
        ((0.0, 0.0, 1e-3), "0s + 4s wasted"),
    ],
)
def test_hours_of_minutes_are_minutes(spent: tuple[float, float, float], text: str) -> None:
    assert hours(*spent) == text


def test_status_of_a_search_shows_its_best_trials(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ledger = make_home(tmp_path)
    lines = [{**line, "trial": number} for number, line in enumerate(ledger.sweep("s").runs)]
    directory = ledger.record_sweep("found", {"study": "search"}, lines)
    os.utime(directory / "sweep.json", (2e9, 2e9))
    front = "Pareto front (maximize a, minimize b):\n\n| trial | a | b |\n"
    layout.search_best(directory).write_text(front)
    assert main(["status", "--home", str(tmp_path)]) == 0
    assert front in capsys.readouterr().out


def test_status_of_all_includes_runs_of_no_sweep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_home(tmp_path)
    assert main(["status", "--all", "--home", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "name-alone" in out
    assert "name-done" in out


def test_status_for_programs_is_json(tmp_path: Path) -> None:
    ledger = make_home(tmp_path)
    done = command(tmp_path, "status", "test", "--json")
    (sweep,) = json.loads(done.stdout)
    runs: dict[str, dict[str, Any]] = {run["run_id"]: run for run in sweep["runs"]}
    assert sweep["sweep_id"] == "s"
    assert {run_id: run["state"] for run_id, run in runs.items()} == {
        "done": "finished",
        "bad": "diverged",
        "half": "preempted",
        "new": "planned",
    }
    assert (runs["half"]["step"], runs["half"]["accuracy"], runs["half"]["cause"]) == (3, 0.25, "preempted")
    assert [runs[run_id]["reason"].partition(":")[0] for run_id in ("done", "bad", "half", "new")] == [
        *("", "diverged", "preempted", "planned")
    ]
    assert runs["half"]["hours"] == pytest.approx(runs["half"]["seconds"] / 3600)
    page = (Path(__file__).parents[2] / "docs/sweeps.md").read_text(encoding="utf-8")
    described = page.partition("## For programs")[2].partition("`python -m rlvr.run")[0]
    of_sweep, of_run = (set(re.findall(r"`(\w+)`", table)) for table in described.split("| key of a ")[1:])
    assert {"sweep_id", "study", "problems", "arms", "total", "runs"} <= of_sweep & sweep.keys()
    assert of_run <= runs["half"].keys()
    assert runs["bad"]["log"] == str(ledger.run_dir("bad") / "attempts/1/log.txt")


def test_what_cannot_be_read_is_a_line_of_status_and_never_its_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = make_home(tmp_path)
    (ledger.run_dir("bad") / "run.json").write_text('{"name": "x"}')
    (ledger.run_dir("new") / "run.json").write_text("{")
    (ledger.run_dir("half") / "config.yaml").write_text("}")  # not needed to say how it stands
    with (ledger.sweep_dir("s") / "manifest.jsonl").open("a") as manifest:
        manifest.write('{"run_id": "to')
    assert main(["status", "--home", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "test s: 1 finished, 1 preempted, 2 unreadable" in out
    assert "run bad: made by another version of rlvr (no number of a format; this one reads format 1)" in out
    assert f"run new: {ledger.run_dir('new') / 'run.json'} is missing or damaged" in out
    assert "sweep s: line 5 is torn in" in out
    assert main(["status", "--json", "--home", str(tmp_path)]) == 0
    (sweep,) = json.loads(capsys.readouterr().out)
    assert [run["state"] for run in sweep["runs"]] == ["finished", "unreadable", "preempted", "unreadable"]
    for command_of_one in (["logs", "bad"], ["retry", "bad"]):
        assert main([*command_of_one, "--home", str(tmp_path)]) == 2
        assert "sweeps: run bad: made by another version" in capsys.readouterr().err


def test_status_of_nothing_says_how_to_start(tmp_path: Path) -> None:
    done = command(tmp_path, "status")
    assert (done.returncode, done.stderr) == (0, "")
    assert "python -m rlvr.run -m" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["status", "nope"], "There is no sweep nope"),
        (["status", "othr"], "There is no sweep othr here. Did you mean other? Sweeps, newest first: d2, d1, s. "),
        (["status", "othr"], "Of studies: other"),
        (["watch", "nope"], "There is no sweep nope"),
        (["status", "done"], "done is a run of sweep s. `python -m sweeps status s` shows it, `python -m sweeps logs "),
        (["watch", "alone"], "alone is a run of no sweep. `python -m sweeps status --all` shows it"),
        (["status", "name"], "There is no sweep name"),  # but five runs, of which nobody asked for one
        (["logs", "nope"], "There is no run nope"),
        (["logs", "name"], "stands for 5 runs"),
        (["logs", "new"], "has not begun"),
        (["logs", "done", "--attempt", "7"], "has 1 attempts, no number 7"),
        (["logs", "done", "--attempt", "0"], "has 1 attempts, no number 0"),
        (["cancel", "d"], "d begins 2 sweeps"),  # and one run, which nobody meant
        (["retry", "d"], "d begins 2 sweeps"),
        (["sync", "--background", "--verify"], "Drop it, or drop --verify."),
    ],
)
def test_what_does_not_exist_is_one_line_and_exit_code_2(tmp_path: Path, arguments: list[str], said: str) -> None:
    ledger = make_home(tmp_path)
    for sweep_id in ("d1", "d2"):
        ledger.record_sweep(sweep_id, {"study": "other"}, [])
    done = command(tmp_path, *arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == ""


def test_there_is_nothing_to_cancel_of_what_has_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_home(tmp_path)
    monkeypatch.setenv("PATH", "/nowhere")  # without SLURM
    for name, ended in (
        ("s", "sweep s is running (1 finished, 1 planned, 1 diverged, 1 preempted)"),
        ("done", "run done is running (1 finished)"),
    ):
        assert main(["cancel", name, "--home", str(tmp_path)]) == 0
        shown = capsys.readouterr()
        assert (shown.out, shown.err) == (f"Nothing of {ended}: nothing to cancel.\n", "")


def test_without_a_command_the_help_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    out = capsys.readouterr().out
    assert all(word in out for word in ("status", "watch", "logs", "sync", "examples:"))


def test_logs_prints_the_newest_attempt_or_the_one_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = make_home(tmp_path)
    with Attempt.open(ledger.run_dir("half")) as attempt:
        attempt.log_path.write_text("second\n")
        attempt.close("ok")
    for arguments, said in ((["half"], "second\n"), (["name-half", "--attempt", "1"], "log of half\n")):
        assert main(["logs", *arguments, "--home", str(tmp_path)]) == 0
        assert capsys.readouterr().out == said


def test_following_a_log_ends_with_the_run(tmp_path: Path) -> None:
    ledger = plan(tmp_path, a="")
    with Attempt.open(ledger.run_dir("a")) as attempt:
        attempt.log_path.write_text("one\n")
        follow = [sys.executable, "-m", "sweeps", "logs", "a", "--follow", "--home", str(tmp_path)]
        with subprocess.Popen(follow, cwd=HERE.parent.parent, stdout=subprocess.PIPE, text=True) as follower:
            assert follower.stdout is not None
            assert follower.stdout.readline() == "one\n"
            with attempt.log_path.open("a") as log:
                log.write("two\n")
            attempt.close("ok")
            assert follower.communicate(timeout=20)[0] == "two\n"
            assert follower.returncode == 0


def test_a_character_that_is_half_written_is_printed_once_it_is_whole(tmp_path: Path) -> None:
    ledger = plan(tmp_path, a="")
    with Attempt.open(ledger.run_dir("a")) as attempt:
        first, rest = "η = 日\n".encode().split(b"\x97", 1)  # within 日
        attempt.log_path.write_bytes(b"one\n" + first)
        follow = [sys.executable, "-m", "sweeps", "logs", "a", "--follow", "--home", str(tmp_path)]
        environment = {**os.environ, "PYTHONIOENCODING": "utf-8"}
        with subprocess.Popen(follow, cwd=HERE.parent.parent, stdout=subprocess.PIPE, env=environment) as follower:
            assert follower.stdout is not None
            assert follower.stdout.readline() == b"one\n"
            with attempt.log_path.open("ab") as log:
                log.write(b"\x97" + rest + b"cut \xe6")
            attempt.close("ok")
            assert follower.stdout.read().decode() == "η = 日\ncut \ufffd"


@pytest.mark.real
def test_status_of_a_launch_at_work_shows_it_running_and_watch_ends_with_it(tmp_path: Path) -> None:
    ledger = plan(tmp_path, a={"steps": 100, "pause": 0.02}, b="")
    with launching(ledger, workers=1):
        wait_for(lambda: running(ledger, "a"))
        (sweep,) = json.loads(command(tmp_path, "status", "--json").stdout)
        assert [run["state"] for run in sweep["runs"]] == ["running", "queued"]
        assert command(tmp_path, "watch").returncode == 0
    assert ledger.state("b").state == "finished"


@pytest.mark.real
def test_watch_follows_a_search_to_its_end_with_the_runs_that_it_adds(tmp_path: Path) -> None:
    """A search holds its lock between two trials, when all of its runs have ended."""
    ledger = plan(tmp_path, a="")
    target = ledger.sweep_dir("s")
    held = lock(layout.lock(target))
    with Attempt.open(ledger.run_dir("a")) as attempt:
        attempt.close("ok")
    arguments = [sys.executable, "-m", "sweeps", "watch", "s", "--home", str(tmp_path)]
    with subprocess.Popen(arguments, cwd=HERE.parent.parent, stdout=subprocess.PIPE, text=True) as process:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(4)
        ledger.create_run("b", "{}", {"run_id": "b", "name": "name-b"})
        runs = [{"run_id": run_id, "name": run_id, "overrides": [], "index": i} for i, run_id in enumerate("ab")]
        ledger.record_sweep("s", {"study": "test"}, runs)
        with Attempt.open(ledger.run_dir("b")) as attempt:
            attempt.close("ok")
        unlock(held)
        out, _ = process.communicate(timeout=20)
    assert process.returncode == 0
    assert "name-b" in out


def test_no_heavy_import_slows_the_command_line() -> None:
    code = "import sys, sweeps.__main__, sweeps.local; print(*sys.modules)"
    out = subprocess.run(
        [sys.executable, "-c", code], cwd=HERE.parent.parent, capture_output=True, text=True, check=True
    )
    heavy = {"torch", "numpy", "pandas", "mlflow", "transformers", "hydra", "omegaconf", "rich", "psutil", "yaml"}
    assert not heavy & set(out.stdout.split())


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "-"), (0.2, "0s"), (59.6, "1m00s"), (185, "3m05s"), (3600 * 2 + 299, "2h04m")]
)
def test_durations_are_short(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


def test_without_a_terminal_progress_is_a_line_per_event_and_a_summary_now_and_then(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = make_home(tmp_path)
    monkeypatch.setattr("sweeps.progress.SUMMARY_S", 0.05)
    with Display(ledger, ["done", "bad", "new"], show=True) as progress:
        progress.started("new")
        progress.ended("done")
        progress.tick(["new"])
        time.sleep(0.06)
        progress.tick(["new"])
        progress.tick(["new"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "start     name-new"
    assert lines[1].startswith("finished  name-done: step 3/12, accuracy 0.250")
    assert lines[2:] == ["0s | 1 finished, 1 queued, 1 diverged | name-new starting"]


def test_a_run_whose_pace_is_unknown_says_what_it_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = make_home(tmp_path)
    monkeypatch.setattr("sweeps.progress.SUMMARY_S", 0.0)
    with Attempt.open(ledger.run_dir("new")) as attempt, Display(ledger, ["new"], show=True) as progress:
        attempt.heartbeat(0, 80, "base policy")
        progress.tick(["new"])
        attempt.close("preempted", "")
    assert capsys.readouterr().out.splitlines()[-1] == "0s | 1 running | name-new 0/80 base policy"


@pytest.mark.real
def test_on_a_terminal_there_is_one_live_table(tmp_path: Path) -> None:
    import pty

    plan(tmp_path, a={"steps": 30, "pause": 0.05}, bad="diverged")
    code = "import sys; from rlvr.ledger.sweeps import Ledger; from sweeps.local import run_local;"
    code += f"run_local(Ledger(sys.argv[1]), 's', workers=2, command=[sys.executable, *{WORKER!r}, '--serve'])"
    master, slave = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"}
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], cwd=HERE.parent.parent, stdout=slave, stdin=slave, env=environment
    )
    os.close(slave)
    seen = b""
    try:
        while part := os.read(master, 65536):
            seen += part
    except OSError:  # how Linux says that the terminal is closed
        pass
    assert process.wait(30) == 0
    text = seen.decode()
    assert "name-a" in text
    assert "accuracy" in text
    assert "DIVERGED name-bad (bad): diverged: as told" in text
    assert "1 of 2 runs finished, 1 diverged" in text


@pytest.mark.real
def test_ctrl_c_while_watching_is_quiet(tmp_path: Path) -> None:
    import pty

    plan(tmp_path, a="")
    watch = [sys.executable, "-m", "sweeps", "watch", "--home", str(tmp_path)]
    master, slave = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"}
    with (
        Attempt.open(tmp_path / "runs" / "a"),  # it runs: else there is nothing to wait for
        subprocess.Popen(watch, cwd=HERE.parent.parent, env=env, stdout=slave, stderr=subprocess.PIPE) as process,
    ):
        seen = b""
        while b"name-a" not in seen:  # the table stands: it is watching
            seen += os.read(master, 65536)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
    assert (process.returncode, errors) == (130, b"")
