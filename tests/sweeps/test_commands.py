import contextlib
import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from rlvr.ledger import layout
from rlvr.ledger.attempt import Attempt
from rlvr.ledger.cause import State
from rlvr.ledger.lock import lock, unlock
from rlvr.ledger.state import RunState
from rlvr.ledger.sweeps import Ledger
from sweeps.__main__ import main
from sweeps.progress import Display, arm_table, duration, hours, table
from tests.sweeps.test_local import ROOT, launch_command, launching, plan, running, wait_for


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
            bad = {"unparsable": 0.97} if run_id == "done" else {"unparsable": 0.1, "finished": 0.01}
            attempt.heartbeat(3, 12, "train", accuracy=0.25, **bad)
            attempt.close(cause, message)
    ledger.create_run("alone", "{}", {"name": "name-alone"})
    return ledger


def command(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "sweeps", *arguments, "--home", str(home)]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)


@dataclass
class Shell:
    """Types commands in this process, for one home."""

    home: Path
    capsys: pytest.CaptureFixture[str]

    def __call__(self, *words: str, code: int = 0) -> tuple[str, str]:
        """(standard output, standard error) of a command that ends with this code."""
        assert main([*words, "--home", str(self.home)]) == code
        return self.capsys.readouterr()


@pytest.fixture
def shell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(tmp_path, capsys)


def test_status_shows_every_run_of_the_newest_sweep_and_why_it_failed(tmp_path: Path, shell: Shell) -> None:
    ledger = make_home(tmp_path)
    ledger.record_sweep("older", {"study": "x"}, [])
    ledger.record_sweep("s", {"study": "test", "swept": {"eta": [1, 2]}}, ledger.sweep("s").runs)
    out, _ = shell("status")
    lines = {line.split()[0]: line.split() for line in out.splitlines() if line.strip()}
    assert lines["done"][1:4] == ["name-done", "finished", "3/12"]
    assert lines["new"][1:4] == ["name-new", "planned", "-"]
    for text in (
        *("test s: 1 finished, 1 planned, 1 diverged, 1 preempted", "(eta=1,2)"),
        "diverged name-bad: diverged: loss is nan at step 3\n",
        "1 planned: repeat the launch, or python -m sweeps retry s\n",
        str(ledger.run_dir("bad") / "attempts/1/log.txt"),
        "1 other sweep: python -m sweeps status --all",
    ):
        assert text in out
    assert not [text for text in ("planned name-new", "name-alone") if text in out]
    out, _ = shell("status", "--all")
    assert "name-alone" in out
    assert "name-done" in out


def test_status_shows_all_sweeps_of_the_newest_study_but_those_that_a_newer_one_contains(
    tmp_path: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = make_home(tmp_path)
    lines = {line["run_id"]: line for line in ledger.sweep("s").runs}
    for number, (sweep_id, run_ids) in enumerate({"one": ["done"], "two": ["half"], "three": ["done", "bad"]}.items()):
        path = ledger.record_sweep(sweep_id, {"study": "eta", "name": f"try-{number}"}, [lines[r] for r in run_ids])
        os.utime(path / "sweep.json", (2e9 + number, 2e9 + number))
    out, _ = shell("status")
    assert out.index("eta try-1 two: 1 preempted") < out.index("eta try-2 three: 1 finished, 1 diverged")
    assert "one:" not in out
    assert "2 other sweeps: python -m sweeps status --all" in out
    out, errors = shell("status", "try-0")
    assert "eta try-0 one: 1 finished" in out
    assert errors == ""
    monkeypatch.setenv("PATH", "/nowhere")  # without SLURM
    for word in ("status", "cancel"):
        _, errors = shell(word, "eta")
        assert errors.splitlines()[0] == "This is the newest sweep of eta, three. Others, by their ids: two."


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
    shares = [share in file.getvalue() for share in ("0.250 (97% unparsable)", "0.250 (1% finished)")]
    assert shares == [width > 40] * 2
    assert ("accuracy" in head, "━" in lines[0]) == {40: (False, False), 80: (True, False), 160: (True, True)}[width]


def test_an_accuracy_below_the_first_one_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As of a pretrained model that its learning rate has destroyed."""
    ledger = plan(tmp_path, worse="", better="")
    for run_id, last in (("worse", 0.002), ("better", 0.281)):
        with Attempt.open(ledger.run_dir(run_id)) as attempt:
            for step, accuracy in ((0, 0.014), (20, last)):
                attempt.heartbeat(step, 20, "train", accuracy=accuracy)
            attempt.close("ok")
    file = io.StringIO()
    Console(file=file, width=160).print(table(ledger.states(["worse", "better"])))
    assert ("0.002 (was 0.014)" in file.getvalue(), "0.281 " in file.getvalue()) == (True, True)
    assert file.getvalue().count("was") == 1


def test_arms_are_watched_where_runs_would_fill_the_screen(
    tmp_path: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = make_home(tmp_path)
    monkeypatch.setattr("sweeps.commands.ROWS", 3)
    out, _ = shell("watch", "s")
    assert re.search(r"^arm  ", out, re.M)
    file = io.StringIO()
    for gpus in (0, 4):
        states = [replace(state, gpus=gpus) for state in ledger.states(["done", "half"])]
        Console(file=file, width=160).print(arm_table(states, width=160))
    assert [" GPU time" in line for line in file.getvalue().splitlines() if " step " in line] == [False, True]


def test_times_are_short_and_hours_of_minutes_are_minutes() -> None:
    for seconds, text in ((None, "-"), (0.2, "0s"), (59.6, "1m00s"), (185, "3m05s"), (3600 * 2 + 299, "2h04m")):
        assert duration(seconds) == text
    for spent, text in (
        ((192 / 3600, 0.0, 0.0), "3m12s"),
        ((2.0, 0.2, 0.0), "2h00m + 12m00s replayed"),
        ((0.0, 0.0, 1e-3), "0s + 4s wasted"),
    ):
        assert hours(*spent) == text


def test_status_of_a_search_shows_its_best_trials(tmp_path: Path, shell: Shell) -> None:
    ledger = make_home(tmp_path)
    lines = [{**line, "trial": number} for number, line in enumerate(ledger.sweep("s").runs)]
    directory = ledger.record_sweep("found", {"study": "search"}, lines)
    os.utime(directory / "sweep.json", (2e9, 2e9))
    front = "Pareto front (maximize a, minimize b):\n\n| trial | a | b |\n"
    layout.search_best(directory).write_text(front)
    assert front in shell("status")[0]


def test_status_for_programs_is_json(tmp_path: Path, shell: Shell) -> None:
    ledger = make_home(tmp_path)
    (sweep,) = json.loads(shell("status", "test", "--json")[0])
    runs: dict[str, dict[str, Any]] = {run["run_id"]: run for run in sweep["runs"]}
    assert sweep["sweep_id"] == "s"
    about = {run_id: (run["state"], run["reason"].partition(":")[0]) for run_id, run in runs.items()}
    ended = {"done": ("finished", ""), "bad": ("diverged", "diverged"), "half": ("preempted", "preempted")}
    assert about == {**ended, "new": ("planned", "planned")}
    assert (runs["half"]["step"], runs["half"]["accuracy"], runs["half"]["cause"]) == (3, 0.25, "preempted")
    assert runs["half"]["hours"] == pytest.approx(runs["half"]["seconds"] / 3600)
    page = (Path(__file__).parents[2] / "docs/sweeps.md").read_text(encoding="utf-8")
    described = page.partition("## For programs")[2].partition("`python -m rlvr.run")[0]
    of_sweep, of_run = (set(re.findall(r"`(\w+)`", table)) for table in described.split("| key of a ")[1:])
    assert {"sweep_id", "study", "problems", "arms", "total", "runs"} <= of_sweep & sweep.keys()
    assert of_run <= runs["half"].keys()
    assert runs["bad"]["log"] == str(ledger.run_dir("bad") / "attempts/1/log.txt")


def test_what_cannot_be_read_is_a_line_of_status_and_never_its_end(tmp_path: Path, shell: Shell) -> None:
    ledger = make_home(tmp_path)
    (ledger.run_dir("bad") / "run.json").write_text('{"name": "x"}')
    (ledger.run_dir("new") / "run.json").write_text("{")
    (ledger.run_dir("half") / "config.yaml").write_text("}")  # not needed to say how it stands
    with (ledger.sweep_dir("s") / "manifest.jsonl").open("a") as manifest:
        manifest.write('{"run_id": "to')
    out, _ = shell("status")
    for text in (
        "test s: 1 finished, 1 preempted, 2 unreadable",
        "run bad: made by another version of rlvr (no number of a format; this one reads format 1)",
        f"run new: {ledger.run_dir('new') / 'run.json'} is missing or damaged",
        "sweep s: line 5 is torn in",
    ):
        assert text in out
    (sweep,) = json.loads(shell("status", "--json")[0])
    assert [run["state"] for run in sweep["runs"]] == ["finished", "unreadable", "preempted", "unreadable"]
    for word in ("logs", "retry"):
        assert "sweeps: run bad: made by another version" in shell(word, "bad", code=2)[1]


def test_status_of_nothing_says_how_to_start(tmp_path: Path) -> None:
    done = command(tmp_path, "status")
    assert (done.returncode, done.stderr) == (0, "")
    assert "python -m rlvr.run -m" in done.stdout


WRONG = [
    ("status nope", "There is no sweep nope"),
    ("status othr", "There is no sweep othr here. Did you mean other? Sweeps, newest first: d2, d1, s. "),
    ("status othr", "Of studies: other"),
    ("watch nope", "There is no sweep nope"),
    ("status done", "done is a run of sweep s. `python -m sweeps status s` shows it, `python -m sweeps logs "),
    ("watch alone", "alone is a run of no sweep. `python -m sweeps status --all` shows it"),
    ("status name", "There is no sweep name"),  # but five runs, of which nobody asked for one
    ("logs nope", "There is no run nope"),
    ("logs s", "s stands for 4 runs: done (name-done), bad (name-bad), half (name-half), new (name-new)."),
    ("logs name", "stands for 5 runs"),
    ("logs new", "has not begun"),
    ("logs done --attempt 7", "has 1 attempts, no number 7"),
    ("logs done --attempt 0", "has 1 attempts, no number 0"),
    ("cancel d", "d begins 2 sweeps"),  # and one run, which nobody meant
    ("retry d", "d begins 2 sweeps"),
    ("sync --background --resend s", "Drop it, or drop --resend."),
]


def test_what_does_not_exist_is_one_line_and_exit_code_2(tmp_path: Path, shell: Shell) -> None:
    ledger = make_home(tmp_path)
    for sweep_id in ("d1", "d2"):
        ledger.record_sweep(sweep_id, {"study": "other"}, [])
    for words, said in WRONG:
        out, errors = shell(*words.split(), code=2)
        assert said in errors, words
        assert (out, len(errors.splitlines())) == ("", 1), words


def test_there_is_nothing_to_cancel_of_what_has_ended(
    tmp_path: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_home(tmp_path)
    monkeypatch.setenv("PATH", "/nowhere")  # without SLURM
    for name, ended in (
        ("s", "sweep s is running (1 finished, 1 planned, 1 diverged, 1 preempted)"),
        ("done", "run done is running (1 finished)"),
    ):
        assert shell("cancel", name) == (f"Nothing of {ended}: nothing to cancel.\n", "")


def test_logs_prints_the_newest_attempt_or_the_one_asked_for(tmp_path: Path, shell: Shell) -> None:
    ledger = make_home(tmp_path)
    with Attempt.open(ledger.run_dir("half")) as attempt:
        attempt.log_path.write_text("second\n")
        attempt.close("ok")
    assert shell("logs", "half")[0] == "second\n"
    assert shell("logs", "name-half", "--attempt", "1")[0] == "log of half\n"


def test_following_a_log_ends_with_the_run_and_prints_a_character_that_is_half_written_once_it_is_whole(
    tmp_path: Path,
) -> None:
    ledger = plan(tmp_path, a="")
    first, rest = "η = 日\n".encode().split(b"\x97", 1)  # within 日
    follow = [sys.executable, "-m", "sweeps", "logs", "a", "--follow", "--home", str(tmp_path)]
    with Attempt.open(ledger.run_dir("a")) as attempt:
        attempt.log_path.write_bytes(b"one\n" + first)
        environment = {**os.environ, "PYTHONIOENCODING": "utf-8"}
        with subprocess.Popen(follow, cwd=ROOT, stdout=subprocess.PIPE, env=environment) as follower:
            assert follower.stdout is not None
            assert follower.stdout.readline() == b"one\n"
            with attempt.log_path.open("ab") as log:
                log.write(b"\x97" + rest + b"cut \xe6")
            attempt.close("ok")
            assert follower.stdout.read().decode() == "η = 日\ncut \ufffd"
        assert follower.returncode == 0


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
    with subprocess.Popen(arguments, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
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
    out = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    heavy = {"torch", "numpy", "pandas", "mlflow", "transformers", "hydra", "omegaconf", "rich", "psutil", "yaml"}
    assert not heavy & set(out.stdout.split())


def test_without_a_terminal_progress_is_a_line_per_event_and_a_summary_now_and_then(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = make_home(tmp_path)
    monkeypatch.setattr("sweeps.progress.SUMMARY_S", 0.05)
    with Display(ledger, ["done", "bad", "new"]) as progress:
        progress.started("new")
        progress.ended("done")
        progress.tick(["new"])
        time.sleep(0.06)
        progress.tick(["new"])
        progress.tick(["new"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "start     name-new"
    assert lines[1].startswith("finished  name-done: step 3/12, accuracy 0.250 (97% unparsable)")
    assert lines[2:] == ["0s | 1 finished, 1 queued, 1 diverged | name-new starting"]


def test_a_launch_says_when_its_last_run_will_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """4 and 12 steps are left, at one step per 10 seconds."""
    monkeypatch.setattr("sweeps.progress.SUMMARY_S", 0.0)
    progress = Display(make_home(tmp_path), ["done", "half", "new"])
    progress.states["half"] = RunState("half", "half", State.RUNNING, 1, 8, 12, rate=0.1, eta=40.0)
    progress.tick([])
    assert capsys.readouterr().out == "0s, ETA 2m40s | 1 finished, 1 running, 1 queued\n"


def on_a_terminal(words: list[str], **pipes: Any) -> tuple[int, subprocess.Popen[bytes]]:
    """(the terminal's other end, a process that writes to the terminal)"""
    master, slave = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"}
    process = subprocess.Popen([sys.executable, *words], cwd=ROOT, env=environment, stdout=slave, **pipes)
    os.close(slave)
    return master, process


@pytest.mark.real
def test_on_a_terminal_there_is_one_live_table(tmp_path: Path) -> None:
    ledger = plan(tmp_path, a={"steps": 30, "pause": 0.05}, bad="diverged")
    master, process = on_a_terminal(launch_command(ledger, workers=2)[1:])
    seen = b""
    with contextlib.suppress(OSError):  # how Linux says that the terminal is closed
        while part := os.read(master, 65536):
            seen += part
    assert process.wait(30) == 1  # a run has failed
    wanted = ("name-a", "accuracy", "DIVERGED name-bad (bad): diverged: as told", "1 of 2 runs finished, 1 diverged")
    assert not [text for text in wanted if text not in seen.decode()]


@pytest.mark.real
def test_ctrl_c_while_watching_is_quiet(tmp_path: Path) -> None:
    plan(tmp_path, a="")
    with Attempt.open(tmp_path / "runs" / "a"):  # it runs: else there is nothing to wait for
        words = ["-m", "sweeps", "watch", "--home", str(tmp_path)]
        master, process = on_a_terminal(words, stderr=subprocess.PIPE)
        seen = b""
        while b"name-a" not in seen:  # the table stands: it is watching
            seen += os.read(master, 65536)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
    assert (process.returncode, errors) == (130, b"")
