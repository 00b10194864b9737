"""Status, launch summary, report and MLflow say the same of a run, whatever its end and whoever is at work on it."""

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from analysis.frames.load import load
from rlvr.ledger import layout, lock, tags
from rlvr.ledger.cause import Cause
from rlvr.ledger.journal import JournalWriter
from rlvr.ledger.runs import read_info
from rlvr.ledger.sweeps import Ledger
from sweeps.__main__ import main
from sweeps.slurm import follow
from sweeps.verdict import LaunchOutcome, verdict_of_answer
from tests.tracker.places import query

NO_ATTEMPT, NO_END = "no attempt", "no end"
# Of an attempt that left no end, by what can be seen of its process. Another machine's is seen by its lock alone.
WITHOUT_END = {
    "alive": "running",
    "dead": "lost",
    "number used again": "lost",
    "lock held elsewhere": "running",
    "lock free elsewhere": "lost",
    "elsewhere without locks, heard of": "running",
    "elsewhere without locks, silent": "lost",
}
# Of one that left one, whatever can be seen of its process: the table, written out.
WITH_END = {
    "ok": "finished",
    "error": "failed",
    "user_error": "failed",
    "pruned": "pruned",
    "diverged": "diverged",
    "gpu_oom": "failed",
    "host_oom": "failed",
    "node": "preempted",
    "preempted": "preempted",
    "time_limit": "preempted",
    "hung": "preempted",
    "busy": "preempted",
}
MLFLOW = {
    "finished": "FINISHED",
    "running": "RUNNING",
    "planned": "RUNNING",
    "preempted": "RUNNING",
    "pruned": "KILLED",
    "diverged": "FAILED",
    "failed": "FAILED",
    "lost": "FAILED",
}
CONFIG = "seed: 0\nsteps: 9\nchoices: {loss: grpo, task: maze}\ntracker: {uri: null}\n"
HOLD = "import fcntl, sys; f = [open(p) for p in sys.argv[1:]]; [fcntl.flock(x, fcntl.LOCK_EX) for x in f]; "
HOLD += "print('held', flush=True); sys.stdin.read()"


def job_of(seen: str) -> dict[str, Any]:
    here = {"pid": os.getpid(), "process_start": lock.process_start(os.getpid()), "started": 1.0, **lock.machine()}
    if seen == "alive":
        return here
    if seen == "dead":
        return {**here, "pid": 2**22 + 1}  # above Linux's largest
    if seen == "number used again":
        return {**here, "process_start": 1}
    return {**here, "boot": "of another machine", "host": "elsewhere"}


def write_attempt(ledger: Ledger, run_id: str, end: str, seen: str) -> Path | None:
    """A lock that another process is to hold, if any."""
    run_dir = ledger.create_run(run_id, CONFIG, {"name": f"grpo-{run_id}-s0", "study": "words"})
    if seen == NO_ATTEMPT:
        return None
    attempt = layout.attempt(run_dir, 1)
    attempt.mkdir(parents=True)
    layout.job(attempt).write_text(json.dumps(job_of(seen)))
    if seen == "elsewhere without locks, heard of":
        layout.heartbeat(attempt).write_text(json.dumps({"time": time.time() - 60, "step": 3, "steps": 9}))
    if "without locks" not in seen:
        layout.lock(run_dir).touch()
    if end == "ok":
        with contextlib.closing(JournalWriter(run_dir, 1)) as journal:
            journal.record(9, {"reward/mean": 1.0})  # of a finished run without its last step the report says more
    if end != NO_END:
        layout.end(attempt).write_text(json.dumps({"cause": end, "seconds": 5, "time": 2.0, "message": "why"}))
    return layout.lock(run_dir) if seen in ("alive", "lock held elsewhere") else None


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Ledger, Mapping[str, str]]]:
    """A sweep of every cause and none, with every sight of a process; the word that is expected of each run."""
    assert set(WITH_END) == set(Cause)
    ledger = Ledger(tmp_path_factory.mktemp("home"))
    expected: dict[str, str] = {}
    held: list[str] = []
    for end in (NO_END, *WITH_END):
        for seen in (*WITHOUT_END, *([NO_ATTEMPT] if end == NO_END else [])):
            run_id = f"{len(expected):03d}"
            expected[run_id] = "planned" if seen == NO_ATTEMPT else WITH_END.get(end) or WITHOUT_END[seen]
            path = write_attempt(ledger, run_id, end, seen)
            held += [] if path is None else [str(path)]
    lines = [{"run_id": run_id, "name": f"grpo-{run_id}-s0", "arm": f"grpo-{run_id}"} for run_id in expected]
    ledger.record_sweep("s", {"study": "words", "created": 1.0}, lines)
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, *held], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        yield ledger, expected


def test_status_shows_the_word_and_the_summary_of_a_launch_counts_it(
    runs: tuple[Ledger, Mapping[str, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    ledger, expected = runs
    assert main(["status", "--json", "--home", str(ledger.home)]) == 0
    (sweep,) = json.loads(capsys.readouterr().out)
    assert {run["run_id"]: run["state"] for run in sweep["runs"]} == expected
    assert main(["status", "--home", str(ledger.home)]) == 0
    assert counted(capsys.readouterr().out.splitlines()[0]) == Counter(expected.values())
    followed = follow._outcome(ledger.states(expected), before=[])
    words = Counter(expected.values())
    words["planned"] += words.pop("running")  # when it is summed up, nobody waits for them any more
    assert counted(followed.summary()) == words
    outcome = LaunchOutcome()  # of a launch on this machine, by the answers of its workers
    ended = {run_id: ledger.state(run_id).cause for run_id in expected if ledger.state(run_id).cause}
    for run_id, cause in ended.items():
        end = verdict_of_answer(ledger.run_dir(run_id), 0, {"cause": cause, "message": ""})
        outcome.add(run_id, end.cause.state)
    assert counted(outcome.summary()) == Counter(expected[run_id] for run_id in ended)


def counted(text: str) -> Counter[str]:
    """`3 of 9 runs finished, 2 failed` or `3 finished, 2 failed` as numbers by word."""
    found = re.findall(
        r"(\d+)(?: of \d+ runs)? (finished|running|queued|planned|diverged|failed|preempted|pruned|lost)\b", text
    )
    return Counter({word: int(number) for number, word in found})


def test_the_report_and_mlflow_have_the_word_and_mlflow_the_status_that_goes_with_it(
    runs: tuple[Ledger, Mapping[str, str]],
) -> None:
    ledger, expected = runs
    frame = load(ledger.home).runs
    assert dict(zip(frame["run_id"], frame["state"], strict=True)) == expected
    for run_id, word in expected.items():
        state = ledger.state(run_id)
        assert tags.tags(read_info(ledger.run_dir(run_id)), state, [])["rlvr.state"] == word
        assert tags.status(state.state) == MLFLOW[word]


@pytest.mark.slow
def test_a_real_mlflow_shows_it_and_a_report_from_there_too(runs: tuple[Ledger, Mapping[str, str]]) -> None:
    from rlvr.tracker.mlflow import Shipper, run_dirs

    ledger, expected = runs
    assert Shipper(ledger.home, f"sqlite:///{ledger.home / 'mlflow.db'}").ship(run_dirs(ledger.home)).complete
    tag = "join tags {0} on {0}.run_uuid = r.run_uuid and {0}.key = 'rlvr.{1}'"
    both = " ".join([tag.format("i", "run_id"), tag.format("s", "state")])
    shown = query(ledger.home / "mlflow.db", f"select i.value, r.status, s.value from runs r {both}")
    assert {run_id: (status, word) for run_id, status, word in shown} == {
        run_id: (MLFLOW[word], word) for run_id, word in expected.items() if word != "planned"
    }
    parents = "select r.status from runs r join tags t using (run_uuid) where t.key = 'rlvr.kind'"
    assert query(ledger.home / "mlflow.db", parents) == [("RUNNING",)]
    frame = load(ledger.home, source="mlflow").runs
    in_store = {run_id: "missing" if word == "planned" else word for run_id, word in expected.items()}
    assert dict(zip(frame["run_id"], frame["state"], strict=True)) == in_store
