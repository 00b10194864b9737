import contextlib
import errno
import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml

from rlvr.ledger import layout, lock, terminal
from rlvr.ledger.attempt import Attempt
from rlvr.ledger.cause import Cause
from rlvr.ledger.files import write_json
from rlvr.ledger.identity import identity
from rlvr.ledger.identity import run_id as id_of
from rlvr.ledger.runs import Unreadable, check_owner, read_config, read_verified_config
from rlvr.ledger.sweeps import Ledger, NoSweep, Sweep, find_sweep
from sweeps.slurm.submissions import record

CONFIG = "loss:\n  name: lad\nseed: 0\ncluster:\n  workers: 1\n"


def make_ledger(home: Path, *run_ids: str) -> Ledger:
    ledger = Ledger(home)
    for run_id in run_ids:
        ledger.create_run(run_id, CONFIG, {"run_id": run_id, "name": f"name-{run_id}"})
    return ledger


def create(home: Path) -> bool:
    return Ledger(home).create_run("abc", CONFIG, {"name": "n"}).is_dir()


def test_several_processes_may_create_the_same_run_at_once(tmp_path: Path) -> None:
    with ProcessPoolExecutor(4) as pool:
        assert all(pool.map(create, [tmp_path] * 40))
    assert sorted(p.name for p in (tmp_path / "runs").iterdir()) == ["abc"]


def test_creating_a_run_twice_changes_nothing_and_one_id_never_stands_for_two_configs(tmp_path: Path) -> None:
    ledger = make_ledger(tmp_path, "abc")
    before = {p: p.read_bytes() for p in (tmp_path / "runs/abc").iterdir()}
    ledger.create_run("abc", CONFIG, {"name": "later"})
    with pytest.raises(ValueError, match=r"Run abc .* seed differ.*delete runs/abc"):
        ledger.create_run("abc", CONFIG.replace("seed: 0", "seed: 1"), {})
    assert ({p: p.read_bytes() for p in (tmp_path / "runs/abc").iterdir()}, ledger.runs()) == (before, ["abc"])


def test_what_has_no_part_in_the_identity_follows_the_newest_launch_until_the_end(tmp_path: Path) -> None:
    """Places, groups that are not chosen, and where the code is found; all else of run.json is kept."""
    ledger = make_ledger(tmp_path, "abc")
    run_dir = ledger.run_dir("abc")

    def launched(config: str, folder: str) -> tuple[str, list[str]]:
        ledger.create_run("abc", config, {"name": "later", "config_dirs": [folder], "import_paths": [folder]})
        return (run_dir / "config.yaml").read_text(), json.loads((run_dir / "run.json").read_text())["import_paths"]

    second, third = CONFIG.replace("workers: 1", "workers: 2"), CONFIG + "divergence: null\nkeep_rollouts: true\n"
    assert identity(yaml.safe_load(third)) == {"loss": {"name": "lad"}, "seed": 0}
    assert (launched(second, "/a"), launched(third, "/b")) == ((second, ["/a"]), (third, ["/b"]))
    assert json.loads((run_dir / "run.json").read_text())["name"] == "name-abc"
    Attempt.open(run_dir).close(Cause.OK)
    assert launched(CONFIG, "/c") == launched(second + "knob_of_a_later_release: null\n", "/d") == (third, ["/b"])


def test_the_newest_cause_decides_the_state(tmp_path: Path) -> None:
    ledger = make_ledger(tmp_path, "abc")
    assert ledger.state("abc").state == "planned"
    Attempt.open(ledger.run_dir("abc")).close(Cause.ERROR)
    with Attempt.open(ledger.run_dir("abc")) as attempt:
        assert ledger.state("abc").state == "running"
        attempt.close(Cause.NODE, "because")
    state = ledger.state("abc")
    assert (state.state, state.attempt, state.cause, state.message) == ("preempted", 2, "node", "because")
    assert state.ended
    missing = ledger.state("abd")  # of a sweep, without a directory
    assert (missing.state, missing.ended) == ("missing", True)
    Attempt.open(ledger.run_dir("abc")).close(Cause.OK)  # a finished run stays finished whatever comes later
    (ledger.run_dir("abc") / "attempts/4").mkdir()
    write_json(ledger.run_dir("abc") / "attempts/4/exit.json", {"cause": "error", "seconds": 1})
    assert (ledger.state("abc").state, ledger.state("abc").attempt) == ("finished", 3)


def test_a_killed_run_is_lost_and_one_at_work_is_running(tmp_path: Path) -> None:
    ledger = make_ledger(tmp_path, "abc")
    code = (
        "import sys, time; from rlvr.ledger.attempt import Attempt; a = Attempt.open(sys.argv[1]);"
        "a.heartbeat(3, 10, 'train', accuracy=0.5); print(flush=True); time.sleep(60)"
    )
    run_dir = str(ledger.run_dir("abc"))
    process = subprocess.Popen([sys.executable, "-c", code, run_dir], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    state_now = ledger.state("abc")
    assert (state_now.state, state_now.step, state_now.steps, state_now.accuracy) == ("running", 3, 10, 0.5)
    assert state_now.heartbeat_age is not None
    assert 0 <= state_now.heartbeat_age < 30
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    state_now = ledger.state("abc")
    assert (state_now.state, state_now.step, state_now.cause) == ("lost", 3, "")
    assert "gone" in state_now.message


def test_torn_and_missing_files_cause_no_error(tmp_path: Path) -> None:
    ledger = make_ledger(tmp_path, "abc")
    with Attempt.open(ledger.run_dir("abc")) as attempt:
        attempt.heartbeat(1, 2, "train")
        attempt.close(Cause.OK)
    for torn in ("job.json", "heartbeat.json", "exit.json"):
        for content in ("", '{"step": ', None):
            (attempt.path / torn).unlink() if content is None else (attempt.path / torn).write_text(content)
            assert ledger.state("abc").state == ("lost" if torn == "exit.json" else "finished"), (torn, content)


def test_a_claim_without_a_job_is_running_while_its_lock_is_held(tmp_path: Path) -> None:
    ledger = make_ledger(tmp_path, "abc")
    attempt = Attempt.open(ledger.run_dir("abc"))
    (attempt.path / "job.json").unlink()  # between the claim and the first file
    assert ledger.state("abc").state == "running"
    attempt.close(Cause.PREEMPTED)
    (attempt.path / "exit.json").unlink()
    assert ledger.state("abc").state == "lost"


def test_the_rate_is_that_of_this_attempt_without_its_set_up(tmp_path: Path) -> None:
    # First step ended at -40 s, step 5 just now: 4 steps in 40 s, so the 15 left take 150 s.
    ledger = make_ledger(tmp_path, "abc")
    now = time.time()
    with Attempt.open(ledger.run_dir("abc")) as attempt:
        beat: dict[str, Any] = {"time": now, "step": 5, "steps": 20, "phase": "train", "accuracy": None}
        write_json(attempt.path / "heartbeat.json", {**beat, "origin": {"step": 1, "time": now - 40}})
        assert ledger.state("abc").eta == pytest.approx(150, abs=5)
        write_json(attempt.path / "heartbeat.json", beat)
        assert ledger.state("abc").eta is None
        attempt.close(Cause.OK)


def test_sweeps_are_listed_by_their_newest_launch_and_are_no_runs(tmp_path: Path) -> None:
    ledger = make_ledger(tmp_path, "abc", "abd")
    (tmp_path / "runs/stages/xyz").mkdir(parents=True)
    for sweep_id in ("s1", "s2", "s1"):
        ledger.record_sweep(sweep_id, {"study": "eta"}, [{"run_id": "abc", "name": "n", "overrides": [], "index": 0}])
        time.sleep(0.02)
    assert [sweep.sweep_id for sweep in ledger.sweeps()] == ["s1", "s2"]
    assert (ledger.sweep("s1").run_ids, ledger.runs()) == (["abc"], ["abc", "abd"])


def test_a_typed_text_stands_for_one_run_or_the_error_lists_the_candidates(tmp_path: Path) -> None:
    ledger = make_ledger(tmp_path, "abc1", "abd2", "xyz")
    ledger.create_run("dup", CONFIG, {"name": "name-xyz"})
    assert ledger.resolve_run("runs/name-abc1") == ledger.resolve_run("runs/abc1/") == "abc1"
    assert ledger.resolve_run("abc1") == ledger.resolve_run("abc") == ledger.resolve_run("name-abc1") == "abc1"
    with pytest.raises(ValueError, match=r"ab stands for 2 runs: abc1 \(name-abc1\), abd2"):
        ledger.resolve_run("ab")
    with pytest.raises(ValueError, match="name-xyz stands for 2 runs"):
        ledger.resolve_run("name-xyz")
    (ledger.run_dir("xyz") / "run.json").unlink()  # it has no name now
    for text in ("nope", "", "runs/"):
        with pytest.raises(ValueError, match=f"no run {text.removeprefix('runs/')} in "):
            ledger.resolve_run(text)


def test_a_study_stands_for_its_newest_sweep(tmp_path: Path) -> None:
    ledger = make_ledger(tmp_path)
    for sweep_id, info in (("b12345", {}), ("aa1", {"study": "eta"}), ("aa2", {"study": "eta"})):
        ledger.record_sweep(sweep_id, info, [{"run_id": f"of-{sweep_id}"}])
        time.sleep(0.02)
    assert ledger.resolve_sweep("eta").sweep_id == "aa2"
    expected = {"eta": ["aa2", "aa1"], "aa1": ["aa1"], "b12": ["b12345"], "aa": [], "": []}
    assert {text: [s.sweep_id for s in ledger.resolve_sweeps(text)] for text in expected} == expected
    with pytest.raises(ValueError, match="no sweep c .*aa2, aa1"):
        ledger.resolve_sweep("c")
    for run_id in ("of-aa1", "of-aa2", "of-b12345"):  # of runs with one name: that in the newest sweep
        ledger.create_run(run_id, CONFIG, {"name": "lad-s0"})
    assert ledger.resolve_run("lad-s0") == "of-aa2"


# --- what is damaged or foreign


def test_what_cannot_be_read_of_a_sweep_is_named_and_all_else_is_listed(tmp_path: Path) -> None:
    ledger = make_ledger(tmp_path, "abc", "abd")
    for sweep_id in ("good", "cut", "lines", "other"):
        ledger.record_sweep(sweep_id, {"study": "eta", "created": 5.0}, [{"run_id": "abc"}, {"run_id": "abd"}])
    places = {name: ledger.sweep_dir(name) for name in ("cut", "lines", "other", "empty", "notes.txt")}
    (places["cut"] / "sweep.json").write_text('{"study": "e')
    file = places["lines"] / "manifest.jsonl"
    file.write_text(file.read_text().replace('{"run_id": "abd"}', 'x\n{"run_id": "abd"}\n{"run_id": "abe'))
    write_json(places["other"] / "sweep.json", {"study": "eta"})
    places["empty"].mkdir()  # no sweep, as are the notes
    places["notes.txt"].write_text("not ours")
    sweeps = {sweep.sweep_id: sweep for sweep in ledger.sweeps()}
    read = {name: (sweep.study, sweep.created, sweep.run_ids) for name, sweep in sweeps.items()}
    runs, of_another_version = ["abc", "abd"], sweeps["other"].problems[0]
    whole = ("eta", 5.0, runs)
    assert read == {"good": whole, "cut": ("", 0.0, runs), "lines": whole, "other": ("", 0.0, [])}
    assert sweeps["good"].problems == ()
    assert "sweep.json is missing or damaged" in sweeps["cut"].problems[0]
    assert sweeps["lines"].problems == (f"sweep lines: line 2 is damaged, line 4 is damaged in {file}: left out.",)
    assert of_another_version.startswith("sweep other: made by another version of rlvr (no number of a format")


def test_damaged_files_of_a_sweep_are_copied_when_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ledger = make_ledger(tmp_path, "abc")
    runs = [{"run_id": "abc"}]
    place = ledger.record_sweep("s", {"study": "eta"}, runs)
    ledger.record_sweep("s", {"study": "eta"}, runs)  # nothing is damaged
    assert capsys.readouterr().err == ""
    assert sorted(file.name for file in place.iterdir()) == ["manifest.jsonl", "sweep.json"]
    damaged = {"manifest.jsonl": b'{"run_id": "abc"}\n{"run_id": "ab\xff\n', "sweep.json": b'{"study": "e'}
    for name, content in damaged.items():
        (place / name).write_bytes(content)
    ledger.record_sweep("s", {"study": "eta"}, runs)
    assert (ledger.sweep("s").run_ids, ledger.sweep("s").problems) == (["abc"], ())
    kept = {file.name.partition(".damaged-")[0]: file for file in place.glob("*.damaged-*")}
    assert {name: file.read_bytes() for name, file in kept.items()} == damaged
    assert {oct(file.stat().st_mode & 0o777) for file in kept.values()} == {"0o600"}
    printed = capsys.readouterr().err.splitlines()
    assert printed == [
        f"{place}/manifest.jsonl is written anew: line 2 is damaged. What stood there is kept as "
        f"{kept['manifest.jsonl'].name}.",
        f"{place}/sweep.json is written anew: it is damaged. What stood there is kept as {kept['sweep.json'].name}.",
    ]
    for file in kept.values():
        time.strptime(file.name.partition(".damaged-")[2], "%Y%m%dT%H%M%S")


def test_a_run_of_another_version_is_not_changed(tmp_path: Path) -> None:
    ledger = make_ledger(tmp_path, "abc")
    write_json(ledger.run_dir("abc") / "run.json", {"name": "n", "format": 0})
    before = {p: p.read_bytes() for p in (tmp_path / "runs/abc").iterdir()}
    state = ledger.state("abc")
    assert (state.state, state.name) == ("unreadable", "abc")
    assert state.message.startswith("made by another version of rlvr (format 0; this one reads format 1)")
    with pytest.raises(ValueError, match="run abc: made by another version"):
        ledger.create_run("abc", CONFIG + "eta: 1\n", {"name": "n"})
    assert {p: p.read_bytes() for p in (tmp_path / "runs/abc").iterdir()} == before
    assert ledger.resolve_run("abc") == "abc"


def test_what_another_user_alone_may_read_hides_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is simulated: root may read everything."""
    ledger = make_ledger(tmp_path, "abc", "theirs")
    ledger.record_sweep("s", {"study": "x"}, [{"run_id": "abc"}, {"run_id": "theirs"}])
    ledger.record_sweep("t", {"study": "x"}, [{"run_id": "theirs"}])
    of_sweep = [ledger.sweep_dir("t") / name for name in ("sweep.json", "manifest.jsonl")]
    private = [ledger.run_dir("theirs") / "run.json", *of_sweep]
    read_bytes = Path.read_bytes

    def read(path: Path) -> bytes:
        if path in private:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return read_bytes(path)

    def status(path: Path, **options: Any) -> os.stat_result:
        if path == private[1]:  # the directory is private, too
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return stat(path, **options)

    stat = Path.stat
    monkeypatch.setattr(Path, "read_bytes", read)
    monkeypatch.setattr(Path, "stat", status)
    assert [state.state for state in ledger.states(["abc", "theirs"])] == ["planned", "unreadable"]
    assert ledger.state("theirs").message.startswith(f"{private[0]} is yours, but its permissions")
    assert ledger.names() == {"abc": "name-abc"}
    sweeps = {sweep.sweep_id: sweep for sweep in ledger.sweeps()}
    assert (sweeps["s"].run_ids, sweeps["t"].run_ids) == (["abc", "theirs"], [])
    assert sweeps["t"].problems == (f"sweep t: {private[1]} belongs to another user, who alone may read it.",)


def test_the_same_launch_restores_what_is_missing_or_damaged(tmp_path: Path) -> None:
    (tmp_path / "runs/abc").mkdir(parents=True)
    (tmp_path / "runs/abc/metrics.jsonl").touch()  # something else began the directory
    ledger = make_ledger(tmp_path, "abc")
    assert ledger.state("abc").name == "name-abc"
    assert (ledger.run_dir("abc") / "config.yaml").read_text() == CONFIG
    (ledger.run_dir("abc") / "run.json").write_text("")
    (ledger.run_dir("abc") / "config.yaml").write_text("loss: {")
    assert ledger.state("abc").state == "unreadable"
    make_ledger(tmp_path, "abc")
    assert ledger.state("abc").state == "planned"
    assert (ledger.run_dir("abc") / "config.yaml").read_text() == CONFIG
    (ledger.run_dir("abc") / "config.yaml").write_bytes(CONFIG.encode() + "model: ä".encode()[:-1])
    make_ledger(tmp_path, "abc")
    assert (ledger.run_dir("abc") / "config.yaml").read_text() == CONFIG


def test_a_run_that_ends_while_it_is_read_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The attempt ends, and releases the lock, after the reader has seen no end and before it tests the lock."""
    ledger = make_ledger(tmp_path, "abc")
    attempt = Attempt.open(ledger.run_dir("abc"))
    real = lock.lock_is_held

    def late(path: Path) -> bool | None:
        attempt.close(Cause.OK)
        return real(path)

    monkeypatch.setattr("rlvr.ledger.lock.lock_is_held", late)
    assert ledger.state("abc").state == "finished"


def test_a_truncated_config_is_restored_by_its_launch_wherever_it_was_cut(tmp_path: Path) -> None:
    """At every character; the cluster may differ. A changed value remains an error."""
    complete = "cluster:\n  time_min: 5\neta: 0.5\nloss:\n  _target_: a.b\n  clip: 0.25\nsteps: 160\nseed: 0\n"
    run_id = id_of({"eta": 0.5, "loss": {"_target_": "a.b", "clip": 0.25}, "steps": 160, "seed": 0})
    ledger = Ledger(tmp_path)
    ledger.create_run(run_id, complete, {"name": "r"})
    path = ledger.run_dir(run_id) / "config.yaml"
    newer = complete.replace("time_min: 5", "time_min: 9")
    for cut in range(len(complete) - len("\nseed: 0\n")):
        path.write_text(complete[:cut])
        with pytest.raises(Unreadable, match=r"cut or edited|no YAML|holds no settings"):
            read_verified_config(ledger.run_dir(run_id))
        ledger.create_run(run_id, newer, {"name": "r"})
        assert path.read_text() == newer
    with Attempt.open(ledger.run_dir(run_id)) as attempt:
        attempt.close("ok")
    path.write_text(complete[:30])
    ledger.create_run(run_id, newer, {"name": "r"})  # of a finished run, too: reports read it
    assert read_verified_config(ledger.run_dir(run_id))["eta"] == 0.5
    path.write_text(newer.replace("0.25", "0.3"))
    with pytest.raises(ValueError, match="another config: loss differ"):
        ledger.create_run(run_id, newer, {"name": "r"})
    with pytest.raises(Unreadable, match="cut or edited"):
        read_verified_config(ledger.run_dir(run_id))


def test_a_launch_that_could_not_start_withdraws_what_it_alone_wrote(tmp_path: Path) -> None:
    """Kept are runs that were there before, that have begun, or that another sweep contains."""
    Ledger(tmp_path).create_run("before", "{}", {"name": "before"})
    ledger = Ledger(tmp_path)
    for run_id in ("before", "new", "begun", "shared"):
        ledger.create_run(run_id, "{}", {"name": run_id})
    ledger.record_sweep("s", {"study": "x"}, [{"run_id": i} for i in ("before", "new", "begun", "shared")])
    Ledger(tmp_path).record_sweep("other", {"study": "x"}, [{"run_id": "shared"}])
    with Attempt.open(ledger.run_dir("begun")) as attempt:
        attempt.close("ok")
    ledger.withdraw_sweep("s")
    assert ledger.runs() == ["before", "begun", "shared"]
    assert [sweep.sweep_id for sweep in ledger.sweeps()] == ["other"]
    ledger.withdraw_sweep("s")  # it is gone: nothing is left to do


def test_a_sweep_that_another_command_has_recorded_since_is_not_withdrawn(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.create_run("r", "{}", {"name": "r"})
    ledger.record_sweep("s", {"study": "x"}, [{"run_id": "r"}])
    Ledger(tmp_path).record_sweep("s", {"study": "x", "command": "again"}, [{"run_id": "r"}])
    ledger.withdraw_sweep("s")
    assert (ledger.runs(), [sweep.command for sweep in ledger.sweeps()]) == (["r"], ["again"])


def test_a_text_names_a_sweep_by_its_id_then_its_name_then_its_study_then_the_beginning_of_an_id() -> None:
    """A sweep may have the id of another as its name. Newest first."""
    by_id, by_name = Sweep("abc", {"study": "x"}, ()), Sweep("d1", {"name": "abc", "study": "y"}, ())
    by_study, older = Sweep("d2", {"study": "y", "name": "z"}, ()), Sweep("d3", {"study": "y"}, ())
    sweeps = [by_name, by_study, older, by_id]
    for text, found in {"abc": by_id, "z": by_study, "y": by_name, "ab": by_id, "d2": by_study}.items():
        assert find_sweep(sweeps, text) is found, text
    assert find_sweep([older, Sweep("e", {"name": "y"}, ())], "y").sweep_id == "e"
    with pytest.raises(ValueError, match="d begins 3 sweeps: d1, d2, d3"):
        find_sweep(sweeps, "d")
    for nothing in ("", "q"):
        with pytest.raises(NoSweep):
            find_sweep(sweeps, nothing)


@pytest.mark.parametrize(("shared", "of_directory", "of_file"), [("", 0o700, 0o600), ("1", 0o2770, 0o660)])
def test_runs_are_their_users_alone_or_with_a_shared_home_the_groups_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: str, of_directory: int, of_file: int
) -> None:
    monkeypatch.setenv("RLVR_SHARED", shared)
    before = os.umask(0o022)
    try:
        terminal.set_up()
        ledger = make_ledger(tmp_path, "abc")
        held = lock.lock(tmp_path / "lock")
        assert held is not None
        lock.unlock(held)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "runs").stat().st_mode) == of_directory
    for file in (tmp_path / "lock", ledger.run_dir("abc") / "config.yaml"):
        assert stat.S_IMODE(file.stat().st_mode) == of_file
    (tmp_path / "runs").chmod(0o755)  # of an older version
    make_ledger(tmp_path, "def")
    assert stat.S_IMODE((tmp_path / "runs").stat().st_mode) == of_directory | 0o050


@contextlib.contextmanager
def member(uid: int, group: int = 12340) -> Iterator[None]:
    """This process is a user of the group, with the umask that commands give it."""
    os.setegid(group)
    os.seteuid(uid)
    before = os.umask(0o022)
    try:
        terminal.set_up()
        yield
    finally:
        os.umask(before)
        os.seteuid(0)
        os.setegid(0)


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone is several users")
def test_two_users_of_a_group_launch_into_a_shared_home_and_read_all_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLVR_SHARED", "1")
    with TemporaryDirectory() as parent:  # pytest's are closed to other users
        home = Path(parent, "home")
        home.mkdir()
        os.chown(home, 0, 12340)
        Path(parent).chmod(0o755)
        home.chmod(0o2770)
        for uid, run_id in ((12341, "abc"), (12342, "def")):
            with member(uid):
                ledger = make_ledger(home, run_id)
                ledger.record_sweep(f"s{uid}", {"study": "x"}, [{"run_id": run_id}])
                submission = record(ledger, f"s{uid}", [run_id], {"pack": 1})
                held = lock.lock(layout.lock(submission.parent))
                assert held is not None
                lock.unlock(held)
        with member(12341):
            assert [state.state for state in ledger.states(["abc", "def"])] == ["planned"] * 2
            assert [sweep.problems for sweep in ledger.sweeps()] == [(), ()]
            assert read_config(ledger.run_dir("def"))
            with pytest.raises(Unreadable, match="belongs to user 12342.* RLVR_TRUST=1"):  # to train it is another
                check_owner(ledger.run_dir("def"))
        with member(12343, group=12399), pytest.raises(PermissionError):
            list((home / "runs").iterdir())
