"""The batch script, whole, and what is concluded from the queue. One test asks a real SLURM where logs are written."""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from rlvr.ledger.attempt import Attempt
from rlvr.ledger.cause import Cause
from rlvr.ledger.sweeps import Ledger
from slurm import client
from slurm.client import QueuedTask, earlier_starts, is_configured, queue
from slurm.submit import Resources, script, submit_script
from slurm.supervise import Allocation, ProcessEnd, Supervisor
from sweeps.slurm import submissions
from sweeps.slurm.launch import Array, chunks
from sweeps.slurm.submissions import Queue, by_run, record, with_queue_states
from sweeps.slurm.supervised_run import SupervisedRun
from tests.slurm.local_cluster import cluster as local
from tests.slurm.local_cluster.settings import Settings
from tests.slurm.place import wait_for

SCRIPT = """\
#!/bin/bash

# Parameters
#SBATCH --account=ours
#SBATCH --array=0-11%3
#SBATCH --cpus-per-task=2
#SBATCH --exclude=old
#SBATCH --gpus-per-node=1
#SBATCH --job-name=rlvr-ab
#SBATCH --mem=4096M
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --open-mode=append
#SBATCH --output=/shared/runs/submissions/ab/task_%a.out
#SBATCH --partition=main
#SBATCH --requeue
#SBATCH --signal=USR2@120
#SBATCH --time=240

# setup
export RLVR_BEGAN=$(mktemp)
array=${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}
task=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_}${SLURM_ARRAY_TASK_ID:-$SLURM_JOB_ID}
leave_node() {
  trap - ERR
  echo "ended on node $SLURMD_NODENAME before its program began, with exit code $1"
  echo "$SLURMD_NODENAME" >> /shared/bad
  bad=$(sort -u /shared/bad | paste -sd,)
  num_bad=$(sort -u /shared/bad | wc -l)
  if [ "$num_bad" -ge 3 ] || [ "$num_bad" -ge "$(sinfo -h -N -o %N -p "$SLURM_JOB_PARTITION" | sort -u | wc -l)" ]
  then
    echo "so it did on each of $bad: the jobs that wait are cancelled"
    scancel --state=PENDING "$array"
  elif [ "${SLURM_RESTART_COUNT:-0}" -lt 5 ]; then
    trap '' TERM
    scontrol update JobId="$array" ExcNodeList=old,"$bad" > /dev/null 2>&1
    scontrol requeue "$task" && scontrol update JobId="$task" ExcNodeList=old,"$bad"
  fi
  exit "$1"
}
trap '[ "${#BASH_SOURCE[@]}" -gt 1 ] || { code=$?; echo "failed: $BASH_COMMAND"; leave_node "$code"; }' ERR
module load cuda
export PYTHONUNBUFFERED=1
trap - ERR

# command
export SUBMITIT_EXECUTOR=slurm
srun --cpus-per-task=2 python -m sweeps.slurm.job_of_runs '/a b'

code=$?
if [ "$code" -ne 0 ] && scontrol show job -o "$task" | grep -q JobState=RUNNING \\
    && ! tail -c 4096 /shared/runs/submissions/ab/task_$SLURM_ARRAY_TASK_ID.out | grep -Eq 'memory limit|oom_kill'; then
  [ -s "$RLVR_BEGAN" ] || leave_node "$code"
  if [ "$code" -eq 137 ] && [ "${SLURM_RESTART_COUNT:-0}" -lt 5 ]; then
    echo "killed by somebody else than SLURM: requeued"
    scontrol requeue "$task"
  fi
fi
rm -f "$RLVR_BEGAN"
exit "$code"
"""


def test_the_batch_script_is_this() -> None:
    resources = Resources(
        240, 2, 4.0, 1, partition="main", account="ours", setup=("module load cuda",), options={"exclude": "old"}
    )
    folder = Path("/shared/runs/submissions/ab")
    command = ["python", "-m", "sweeps.slurm.job_of_runs", "/a b"]
    about = {"name": "rlvr-ab", "folder": folder, "log": "task_%a.out", "count": 12, "max_parallel": 3, "requeues": 5}
    assert script(command, resources, bad_nodes=Path("/shared/bad"), **about) == SCRIPT


PLACE = {"folder": Path("/x"), "bad_nodes": Path("/x/bad_nodes")}
# Options of a script of two minutes → (lines that it has, texts that it has not)
OPTIONS: list[tuple[dict[str, Any], list[str], list[str]]] = [
    (
        {"count": None, "log": "report.out", "after_any": ["7", "12"]},  # no array
        ["#SBATCH --dependency=afterany:7:12", "#SBATCH --output=/x/report.out"],
        ["--array", "%a"],
    ),
    (
        {"count": 2, "after_ok": ["7", "12"]},  # cancelled if one of those fails
        ["#SBATCH --dependency=afterok:7:12", "#SBATCH --kill-on-invalid-dep=yes"],
        [],
    ),
    ({"count": 1}, ["#SBATCH --signal=USR2@30"], ["--partition", "--gpus"]),  # warned in its last quarter
    # SLURM reads %j and the like in the name of a log, and %% as one sign. srun has no log of its own.
    *(
        (
            {"count": count, "log": log, "folder": Path("/a%j/50%%")},
            [f"#SBATCH --output=/a%%j/50%%%%/{log}", "srun --cpus-per-task=1 true"],
            [],
        )
        for count, log in ((None, "report.out"), (2, "task_%a.out"))
    ),
]


def test_what_is_asked_of_a_script_is_in_it() -> None:
    for options, lines, absent in OPTIONS:
        text = script(["true"], Resources(2, 1, 1.0), **{"name": "x", "log": "o", **PLACE, **options})
        assert set(lines) <= set(text.splitlines()), options
        assert not [word for word in absent if word in text], options


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.timeout(600)
def test_slurm_writes_the_logs_of_such_a_folder_into_it(
    cluster: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_CONF", str(cluster.conf))
    folder = tmp_path / "a%j" / "50% %%x"
    folder.mkdir(parents=True)
    for count, log in ((None, "report.out"), (2, "task_%a.out")):
        text = script(
            ["echo", "here"], Resources(2, 1, 0.1), name="x", log=log, count=count, **{**PLACE, "folder": folder}
        )
        path = folder / f"{count}.sbatch"
        path.write_text(text)
        submit_script(path, Resources(2, 1, 0.1))
    wait_for(lambda: not local.client(cluster, "squeue", "-h", f"--user={os.geteuid()}"), patience_s=300)
    logs = {file.relative_to(tmp_path).as_posix(): file.read_text() for file in tmp_path.rglob("*.out")}
    assert logs == dict.fromkeys([f"a%j/50% %%x/{name}.out" for name in ("report", "task_0", "task_1")], "here\n")


def test_a_profile_says_what_a_site_needs() -> None:
    shell = {"setup": ("module load cuda",), "environment": {"HF_HOME": '/data/$USER/"hf"'}, "scratch": "/local/$USER"}
    site = Resources(60, 1, 1.0, **shell, options={"constraint": "a100", "exclusive": True})
    text = script(["true"], site, name="x", log="o", count=1, **PLACE)
    assert "#SBATCH --constraint=a100\n" in text
    assert "#SBATCH --exclusive\n" in text
    prepared = text.split("# setup\n")[1].split("\n\n")[0].splitlines()
    assert prepared[prepared.index("}") + 2 :] == [
        *("module load cuda", 'export HF_HOME="/data/$USER/\\"hf\\""'),
        *('export TMPDIR="/local/$USER"/rlvr-$SLURM_JOB_ID', 'mkdir -p "$TMPDIR"', "trap 'rm -rf \"$TMPDIR\"' EXIT"),
        "export PYTHONUNBUFFERED=1",
        "trap - ERR",
    ]


def test_arrays_are_one_per_signature_and_no_longer_than_slurm_takes() -> None:
    small, large = ({"gpus": gpus, "pack": 1} for gpus in (0, 1))
    arrays = chunks([Array(small, ["a", "b", "c", "d", "e"]), Array(large, ["f"])], 2)
    shares = [(small, ["a", "b"]), (small, ["c", "d"]), (small, ["e"]), (large, ["f"])]
    assert [(array.cluster, array.run_ids) for array in arrays] == shares


def test_what_a_submission_says_is_the_users_alone_to_read(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        target = record(Ledger(tmp_path), "s", ["a"], {"pack": 1})
    finally:
        os.umask(before)
    assert oct((target / "submission.json").stat().st_mode & 0o777) == "0o600"


def test_a_task_knows_its_job_and_how_often_it_was_requeued() -> None:
    environment = {"SLURM_JOB_ID": "15", "SLURM_ARRAY_JOB_ID": "12", "SLURM_ARRAY_TASK_ID": "3"}
    environment |= {"SLURM_RESTART_COUNT": "2", "SLURM_NODEID": "1"}
    assert Allocation.here(environment) == Allocation("12_3", "12", index=3, node=1, restarts=2)
    assert Allocation.here({"SLURM_JOB_ID": "15"}) == Allocation("15", "15", index=0, node=0, restarts=0)
    with pytest.raises(ValueError, match="SLURM_JOB_ID is not set"):
        Allocation.here({})


def made(tmp_path: Path) -> tuple[Ledger, str]:
    """Runs a (not begun), b (its process gone without a word), c (finished), submitted as tasks 0, 1, 2."""
    ledger = Ledger(tmp_path)
    for run_id in "abc":
        ledger.create_run(run_id, "{}", {"name": run_id})
    (tmp_path / "runs/b/attempts/1").mkdir(parents=True)
    with Attempt.open(ledger.run_dir("c")) as attempt:
        attempt.close(Cause.OK)
    return ledger, record(ledger, "s", ["a", "b", "c"], {"pack": 1}).name


def task(token: str, index: int, state: str, reason: str = "None") -> QueuedTask:
    return QueuedTask(f"7_{index}", f"rlvr-{token}", index, state, reason, "n1")


def test_another_job_of_the_user_may_have_a_name_in_any_encoding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (squeue := tmp_path / "squeue").write_bytes(
        b"#!/bin/sh\ncat <<END\n1|N/A|RUNNING|None|n1|\xe9tude\n2_0|0|PENDING|None||rlvr-x\nEND\n"
    )
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert queue("rlvr-") == [QueuedTask("2_0", "rlvr-x", 0, "PENDING", "None", "")]


def test_the_queue_says_what_waits_and_goes_on_by_the_names_of_jobs_and_not_by_their_numbers(tmp_path: Path) -> None:
    ledger, token = made(tmp_path)
    tasks = [task(token, 0, "PENDING", "Priority"), task(token, 1, "RUNNING"), task(token, 2, "RUNNING")]
    foreign = task("of-another-home", 1, "PENDING")
    assert by_run(ledger, [*tasks, foreign]) == dict(zip("abc", tasks, strict=True))
    states = with_queue_states(ledger, ledger.states("abc"), Queue(by_run(ledger, tasks)))
    expected = [("queued", "PENDING (Priority)"), ("running", "RUNNING on n1"), ("finished", "")]
    assert [(s.state, s.phase) for s in states] == expected
    known = with_queue_states(ledger, ledger.states("abc"), Queue({}))  # what SLURM does not tell is no end
    assert [s.state for s in known] == ["planned", "lost", "finished"]
    unknown = with_queue_states(ledger, ledger.states("abc"), Queue({}, answered=False))
    assert [s.state for s in unknown] == ["queued", "queued", "finished"]
    assert unknown[1].phase == submissions.UNKNOWN


def test_a_run_whose_job_is_about_to_return_to_the_queue_has_not_ended(tmp_path: Path) -> None:
    """`watch` and cluster.wait=true follow it: RUNNING, COMPLETING, PENDING, RUNNING is one preemption."""
    ledger, token = made(tmp_path)
    ledger.create_run("d", "{}", {"name": "d"})
    with Attempt.open(ledger.run_dir("d")) as attempt:
        attempt.close(Cause.PREEMPTED)
    (failed := ledger.create_run("e", "{}", {"name": "e"}))
    with Attempt.open(failed) as attempt:
        attempt.close(Cause.ERROR)
    tasks = {run_id: task(token, 0, "COMPLETING") for run_id in "abcde"}
    states = with_queue_states(ledger, ledger.states("abcde"), Queue(tasks))
    assert [(s.state, s.phase) for s in states] == [
        ("running", "COMPLETING"),  # not begun
        ("running", "COMPLETING"),  # lost
        ("finished", ""),
        ("running", "COMPLETING"),  # preempted
        ("failed", "COMPLETING"),
    ]


MEMORY = """\
slurmstepd-n1: error: StepId=2.0 exceeded memory limit (199704576 > 161480704), being killed
srun: Job step aborted: Waiting up to 7 seconds for job step to finish.
slurmstepd-n1: error: *** STEP 2.0 ON n1 CANCELLED AT 2026-11-21T08:45:39 ***
"""
LIMIT = "slurmstepd-n1: error: *** STEP 3.0 ON n1 CANCELLED AT 2026-11-21T08:49:35 DUE TO TIME LIMIT ***\n"
CANCELLED = "slurmstepd-n1: error: *** JOB 3 ON n1 CANCELLED AT 2026-11-21T08:49:35 ***\nsrun: got SIGCONT\n"
NO_PYTHON = "slurmstepd-n1: error: execve(): /gone/bin/python: No such file or directory\n"
EXITED = "srun: error: n1: task 0: Exited with exit code 2\n"
LEFT = "ended on node n1 before its program began, with exit code 2\n"
STOPPED = "so it did on each of n1,n2,n3: the jobs that wait are cancelled\n"
ENDED = "before the run began: slurmstepd-n1: error: execve(): /gone/bin/python: No such file or directory"


LOGS = [
    (MEMORY, "failed", "host_oom", "out of memory: raise cluster.memory_gb; see "),
    (LIMIT, "preempted", "time_limit", "killed at its time limit before it could save; see "),
    (CANCELLED, "preempted", "preempted", "cancelled before it began"),
    (NO_PYTHON, "failed", "error", "its job ended before the run began: slurmstepd-n1: error: execve(): /gone/bin"),
    (NO_PYTHON + EXITED, "failed", "error", f"its job ended {ENDED}"),  # not srun's line after it
    (NO_PYTHON + EXITED + LEFT + EXITED, "failed", "error", f"its job ended on node n1 {ENDED}"),
    (NO_PYTHON + LEFT + STOPPED, "failed", "error", f"its job ended on node n1 {ENDED}; so it did on each of n1,n2,n3"),
    ("", "planned", "", ""),
]


def test_a_job_that_is_gone_and_never_began_its_run_is_explained_by_its_log(tmp_path: Path) -> None:
    ledger, token = made(tmp_path)
    for log, state, cause, said in LOGS:
        (tmp_path / "runs/submissions" / token / "task_0.out").write_text(log)
        shown = with_queue_states(ledger, ledger.states("a"), Queue({}))[0]
        assert (shown.state, shown.cause) == (state, cause)
        assert shown.message.startswith(said)
        queue = Queue({"a": task(token, 0, "PENDING")})
        assert with_queue_states(ledger, ledger.states("a"), queue)[0].state == "queued"


def test_looking_reads_each_submission_once(tmp_path: Path) -> None:
    ledger, token = made(tmp_path)
    again = record(ledger, "s", ["a"], {"pack": 1}).name
    opened: list[str] = []
    sys.addaudithook(lambda event, of: opened.append(of[0]) if event == "open" and _says(of[0]) else None)
    tasks = [task(again, 0, "RUNNING"), task(again, 1, "RUNNING"), task(token, 2, "PENDING")]
    for _ in range(2):
        with_queue_states(ledger, ledger.states("abc"), Queue(by_run(ledger, tasks)))
        with_queue_states(ledger, ledger.states("abc"), Queue({}))
        with_queue_states(ledger, ledger.states("abc"), Queue({}, answered=False))
    assert sorted(Path(path).parent.name for path in opened) == sorted([token, again])


def _says(path: object) -> bool:
    return str(path).endswith("submission.json")


def test_programs_without_a_cluster_are_no_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "none.conf"))
    assert not is_configured()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not is_configured()
    with pytest.raises(ValueError, match=r"squeue is not on PATH.*cluster=local"):
        queue("x")


OBEYS = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
os.kill(os.getppid(), signal.SIGTERM)  # the supervisor alone hears it, and passes it on
time.sleep(30)
"""


def test_a_signal_to_the_supervisor_reaches_the_job_and_is_remembered() -> None:
    with Supervisor() as supervisor:
        ended = supervisor.run([sys.executable, "-c", OBEYS], {}, ranks=1)
        later = supervisor.run(["sleep", "30"], {}, ranks=1)  # it came before this process was there
    assert ended == ProcessEnd(75, out_of_memory=False)
    assert supervisor.stop_signal == signal.SIGTERM == -later.status


def test_a_killed_process_is_told_from_one_that_left_and_the_warning_does_not_kill_what_starts_ranks() -> None:
    """With several ranks the first process must survive SIGUSR2, whose default is death."""
    code = "import os, signal; os.kill(os.getpid(), signal.SIGUSR2)"
    with Supervisor() as supervisor:
        assert supervisor.run([sys.executable, "-c", code], {}, ranks=2).status == 0
        assert supervisor.run([sys.executable, "-c", code], {}, ranks=1).status == -signal.SIGUSR2
    assert supervisor.stop_signal is None


def test_a_users_own_options_of_slurm_reach_no_command_but_what_a_launch_leaves_open(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """They win over a batch script. The programs are stand-ins that say what they were given."""
    for name, said in (("sbatch", "echo 7"), ("squeue", "true")):
        (program := tmp_path / name).write_text(f"#!/bin/sh\nenv > {tmp_path}/{name}.env\n{said}\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    mine = {"SBATCH_JOB_NAME": "mine", "SBATCH_TIMELIMIT": "5", "SBATCH_ACCOUNT": "ours", "SBATCH_PARTITION": "night"}
    for key, value in {**mine, "SQUEUE_STATES": "RUNNING", "SLURM_JOB_ID": "3", "SLURM_CONF": "/etc/here"}.items():
        monkeypatch.setenv(key, value)

    def given(name: str) -> dict[str, str]:
        pairs = (line.partition("=") for line in (tmp_path / f"{name}.env").read_text().splitlines())
        return {key: value for key, _, value in pairs if key.startswith(("SBATCH_", "SQUEUE_", "SLURM_"))}

    assert submit_script(tmp_path / "a.sbatch", Resources(2, 1, 1.0, partition="day")) == "7"
    assert given("sbatch") == {"SBATCH_ACCOUNT": "ours", "SLURM_CONF": "/etc/here"}
    monkeypatch.setenv("SBATCH_CONSTRAINT", "old")
    monkeypatch.setenv("SBATCH_RESERVATION", "mine")
    submit_script(tmp_path / "a.sbatch", Resources(2, 1, 1.0, partition="day", options={"constraint": "new"}))
    kept = {"SBATCH_ACCOUNT": "ours", "SBATCH_RESERVATION": "mine", "SLURM_CONF": "/etc/here"}
    assert given("sbatch") == kept
    queue("rlvr-")
    assert given("squeue") == {"SLURM_JOB_ID": "3", "SLURM_CONF": "/etc/here"}


@pytest.mark.parametrize("printed", ["7", "7;cluster", "Welcome to 2 clusters\n\n  7 \nUse node-hours with care."])
def test_the_number_of_a_job_is_found_among_what_a_site_prints(
    printed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (program := tmp_path / "sbatch").write_text(f"#!/bin/sh\ncat <<'END'\n{printed}\nEND\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert submit_script(tmp_path / "a.sbatch", Resources(2, 1, 1.0)) == "7"
    program.write_text("#!/bin/sh\necho It\\'s down\n")
    with pytest.raises(ValueError, match=r"sbatch printed no number of a job, but \"It's down\""):
        submit_script(tmp_path / "a.sbatch", Resources(2, 1, 1.0))


CONTROLLER = """\
JobId=9 ArrayJobId=7 ArrayTaskId=4-5,8%3 JobName=eta-2-arms-rlvr-ab UserId=me JobState=PENDING Reason=Priority
JobId=8 ArrayJobId=7 ArrayTaskId=1 JobName=eta-lad-s1-rlvr-ab JobState=RUNNING Reason=None EndTime=2026-03-01T12:00:00
JobId=7 ArrayJobId=7 ArrayTaskId=0 JobName=eta-lad-s0-rlvr-ab JobState=COMPLETED Reason=None
"""


def test_the_controller_says_which_tasks_of_a_job_have_not_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (program := tmp_path / "scontrol").write_text(f"#!/bin/sh\ncat <<'END'\n{CONTROLLER}END\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    tasks = client.tasks_of("7")
    assert [(of.job, of.state) for of in tasks] == [
        *(("7_4", "PENDING"), ("7_5", "PENDING"), ("7_8", "PENDING")),
        ("7_1", "RUNNING"),
    ]
    assert {submissions.token(of.name) for of in tasks} == {"ab"}
    program.write_text("#!/bin/sh\necho slurm_load_jobs error: Invalid job id specified >&2; exit 1\n")
    assert client.tasks_of("7") == []


def test_the_name_of_a_job_is_one_short_word_that_ends_with_its_token() -> None:
    name = submissions.job_name(Path("/runs/submissions/ab12"), "my study; $(x)", "a" * 50)
    assert name == f"my_study____x_-{'a' * 40}-rlvr-ab12"
    assert submissions.token(name) == "ab12"


def test_the_earlier_starts_of_a_requeued_job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    node_fail, cancelled = ("NODE_FAIL", 12.0), ("CANCELLED", 3.0)
    for lines, starts in {
        "'NODE_FAIL|12' 'CANCELLED by 0|3' 'RUNNING|7'": [node_fail, cancelled],
        "'NODE_FAIL|12' 'PENDING|'": [node_fail],
        "'Welcome to our site' 'RUNNING|7'": [],
        "": [],
    }.items():
        (program := tmp_path / "sacct").write_text(f"#!/bin/sh\nprintf '%s\\n' {lines}\n")
        program.chmod(0o755)
        assert earlier_starts("7") == starts, lines


def test_a_run_that_outlasts_its_warning_is_ended_while_its_job_can_still_return_to_the_queue(tmp_path: Path) -> None:
    """Of 120 s, 30 s are left to record the end and to requeue; of a job of two minutes, 30 s, it is a quarter."""
    with Supervisor() as supervisor:
        for minutes, left_s in ((60, 90.0), (2, 22.5)):
            settings, here = {"asked": {"time_min": minutes}}, Allocation("1", "1", 0, 0, 0)
            run = SupervisedRun(Ledger(tmp_path), "a", settings, supervisor, here, tmp_path, None, None)
            for number, seconds, is_up in (
                (signal.SIGUSR2, left_s - 1, False),
                (signal.SIGUSR2, left_s + 1, True),
                (signal.SIGTERM, 1000.0, False),  # SLURM itself ends it
                (None, -math.inf, False),
            ):
                supervisor.stop_signal, supervisor.stopped_at = number, time.monotonic() - seconds
                assert run._time_is_up() == is_up, (minutes, number, seconds)


def test_a_suspended_run_is_not_silent(tmp_path: Path) -> None:
    ledger, token = made(tmp_path)
    with Attempt.open(ledger.run_dir("a")) as attempt:
        tasks = {"a": task(token, 0, "SUSPENDED"), "b": task(token, 1, "PENDING", "JobHeldUser")}
        states = with_queue_states(ledger, ledger.states("ab"), Queue(tasks))
        attempt.close(Cause.OK)
    assert [(s.state, s.phase) for s in states] == [("running", "SUSPENDED"), ("queued", "PENDING (JobHeldUser)")]
    assert states[0].heartbeat_age is None
