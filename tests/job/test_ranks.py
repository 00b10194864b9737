import contextlib
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from rlvr.ledger.runs import write_run
from tests.job import ranks
from tests.job.test_loop import recorded
from tests.support.ranks import OF_A_CPU, ROOT, start

# Four classes: some answers are right. Whitened advantages of equal rewards are rounding errors (ppo); so is the first
# gradient of log Z with centred advantages, which AdamW takes for one (flowrl).
KNOBS = ["task.classes=4", "lr=0.1", "steps=4", "rollout.samples=4", "trainer.base_kl=true"]

LOSSES = [["loss=ppo"], ["loss=flowrl", "advantage=reinforce"], ["loss=grpo", "trainer.kl=0.1"]]
# Solved before the end, so that some steps have nothing to learn from.
LOSSES += [["loss=reinforce", "task.classes=2", "lr=3", "rollout.dynamic_sampling=drop", "rollout.ahead=1"]]


def started(count: int, code: str, *options: str) -> subprocess.Popen[str]:
    return start(count, *options, "-c", code, environment={})


def test_the_process_that_starts_the_ranks_imports_neither_torch_nor_ray() -> None:
    """It runs beside the ranks and their models, which need the memory."""
    code = "import sys, rlvr.job.ranks; sys.exit(bool({'torch', 'ray'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_ranks_are_numbered_and_meet_in_a_private_directory() -> None:
    code = """
import os, stat
folder = os.path.dirname(os.environ["RLVR_STORE"])
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
line = " ".join([*(os.environ[name] for name in names), oct(stat.S_IMODE(os.stat(folder).st_mode)), folder])
os.write(1, line.encode() + b"\\n")  # in one piece, beside those of others
"""
    process = started(2, code)
    lines = sorted(process.communicate(timeout=60)[0].splitlines())
    folder = lines[0].split()[-1]
    assert (lines, process.returncode) == ([f"0 0 2 2 0o700 {folder}", f"1 1 2 2 0o700 {folder}"], 0)
    assert not Path(folder).exists()


def test_ranks_of_further_nodes_have_the_next_numbers_and_meet_at_a_port() -> None:
    template = "{RANK} {WORLD_SIZE} {MASTER_ADDR} {GLOO_SOCKET_IFNAME}"
    code = f"import os; os.write(1, '{template}\\n'.format(**os.environ).encode())"
    lines = started(2, code, "--nodes=3", "--node=1", "--meet=127.0.0.1:77").communicate(timeout=60)[0].splitlines()
    assert sorted(lines) == ["2 6 127.0.0.1 lo", "3 6 127.0.0.1 lo"]


@pytest.mark.slow
def test_nccl_of_one_node_stays_on_loopback_unless_other_nodes_have_workers() -> None:
    names = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"
    code = f"import os; from rlvr.trainer.distributed import join_group; join_group(); print(*map(os.getenv, {names}))"
    for options, expected in {(): "lo lo", ("--sampling=1", "--ray=127.0.0.1:77"): "lo =lo"}.items():
        assert started(1, code, *options).communicate(timeout=60)[0].strip() == expected


def test_several_nodes_that_sample_with_ray_need_a_port_and_a_token(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    write_run(tmp_path / "x", "rollout: {engine: {workers: 2}}\n", {"name": "x", "overrides": []})
    words = ["--nodes=2", "--meet=a.b:77", "2", "-m", "rlvr.job", str(tmp_path / "x")]
    environment = {key: value for key, value in os.environ.items() if key != "RAY_AUTH_TOKEN"}
    for more, known in ([], {"RAY_AUTH_TOKEN": "0" * 64}), (["--ray=10.0.0.1:78"], {}):
        command = [sys.executable, "-m", "rlvr.job.ranks", *more, *words]
        done = subprocess.run(command, env=environment | known, cwd=ROOT, capture_output=True, text=True, timeout=60)
        assert "need --ray IP:PORT, and RAY_AUTH_TOKEN in their environment" in done.stderr
        assert done.returncode == 2


@pytest.mark.parametrize(
    ("fails", "status"), [("sys.exit(7)", 7), ("os.kill(os.getpid(), 9)", -9), ("os.kill(os.getpid(), 6)", -6)]
)
def test_a_failing_rank_ends_the_others_and_its_status_is_reported(fails: str, status: int) -> None:
    code = f"""
import os, signal, sys, time
if os.environ["RANK"] == "1":
    {fails}
signal.signal(signal.SIGTERM, lambda *_: (os.write(1, b"stopping\\n"), sys.exit(3)))
while True:
    time.sleep(0.1)
"""
    process = started(2, code)
    # The signal may come before rank 0 has its handler: then it is killed and prints nothing.
    assert process.communicate(timeout=60)[0].strip() in ("stopping", "")
    assert process.returncode == status


DEAF = """
import os, signal, sys, time
folder, status = sys.argv[1:]
if os.environ["RANK"] == "0":  # as a rank that waits for its GPU: it handles SIGTERM only afterwards
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    open(folder + "/deaf", "w").close()
    time.sleep(5)
    os.write(1, b"saved\\n")
    os._exit(75)
while not os.path.exists(folder + "/deaf"):
    time.sleep(0.01)
if int(status) < 0:
    os.kill(os.getpid(), -int(status))
os._exit(int(status))
"""


@pytest.mark.parametrize(
    ("status", "output"), [(1, ""), (5, ""), (4, ""), (-9, ""), (75, "saved\n"), (3, "saved\n")], ids=str
)
def test_a_rank_that_blocks_signals_is_killed_unless_the_other_saved(status: int, output: str, tmp_path: Path) -> None:
    """With a second's patience; 75 and 3 are the codes of preempted and of pruned runs."""
    words = ["-c", DEAF, str(tmp_path), str(status)]
    code = f"from rlvr.job.ranks import Ranks; print(Ranks({words!r}, 2, 0, 1, {{}}).wait(failed_s=1))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == (f"{output}{status}\n", "")


def test_after_a_failure_a_rank_that_was_to_save_is_no_longer_waited_for(tmp_path: Path) -> None:
    """One is preempted, then another fails: the third, which blocks signals, is killed soon."""
    rank = f"""
import os, signal, time
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
open(os.path.join({str(tmp_path)!r}, os.environ["RANK"]), "w").close()
while len(os.listdir({str(tmp_path)!r})) < 3:
    time.sleep(0.01)
delay, status = [(0, 75), (1, 1), (5, 0)][int(os.environ["RANK"])]
time.sleep(delay)
os.write(1, b"waited for\\n" * (status == 0))
os._exit(status)
"""
    code = f"from rlvr.job.ranks import Ranks; print(Ranks(['-c', {rank!r}], 3, 0, 1, {{}}).wait(failed_s=1))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("75\n", "")


def test_signals_to_ranks_that_have_ended_already_are_harmless(tmp_path: Path) -> None:
    """All have ended when the first one is waited for; the others are then sent a signal nevertheless."""
    code = f"""
import os, time
from pathlib import Path
Path({str(tmp_path)!r}, os.environ["RANK"]).touch()
while not Path({str(tmp_path)!r}, "go").exists():
    time.sleep(0.01)
os._exit(75)
"""
    process = started(4, code)
    launcher = psutil.Process(process.pid)
    while len(list(tmp_path.iterdir())) < 4:
        time.sleep(0.01)
    launcher.suspend()
    (tmp_path / "go").touch()
    while {child.status() for child in launcher.children()} != {psutil.STATUS_ZOMBIE}:
        time.sleep(0.01)
    launcher.resume()
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (75, "")


def test_a_signal_to_stop_reaches_every_rank() -> None:
    code = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (os.write(1, b"stopping\\n"), sys.exit(0)))
os.write(1, b"ready\\n")
while True:
    time.sleep(0.1)  # the signal is handled between two of them
"""
    process = started(2, code)
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == ["ready\n"] * 2
    process.terminate()
    assert (process.communicate(timeout=60)[0].splitlines(), process.returncode) == (["stopping"] * 2, 0)


@dataclass(frozen=True)
class Ended:
    """Runs of two ranks, in a directory for each loss, and the addresses at which their processes listened."""

    directory: Path
    addresses: set[str]


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    directory = tmp_path_factory.mktemp("ranks")
    runs = [[str(directory / loss[0]), *KNOBS, *loss] for loss in LOSSES]
    command = [sys.executable, "-m", "rlvr.job.ranks", "2", str(Path(ranks.__file__)), json.dumps(runs)]
    environment = os.environ | OF_A_CPU
    seen, errors = set[str](), directory / "errors.txt"
    with errors.open("w") as out, subprocess.Popen(command, env=environment, stderr=out) as process:
        while process.poll() is None:
            parent = psutil.Process(process.pid)
            for child in (parent, *parent.children(recursive=True)):
                with contextlib.suppress(psutil.Error):
                    listening = [c for c in child.net_connections("inet") if c.status == psutil.CONN_LISTEN]
                    seen |= {connection.laddr[0] for connection in listening}
            time.sleep(0.02)
    assert process.returncode == 0, errors.read_text()[-4000:]
    return Ended(directory, seen)


@pytest.mark.slow
def test_ranks_of_one_node_listen_on_the_loopback_device_alone(two_ranks: Ended) -> None:
    assert two_ranks.addresses == {"127.0.0.1"}  # gloo's; not empty, so that they were looked at while they listened


@pytest.mark.slow
@pytest.mark.parametrize("loss", LOSSES, ids=" ".join)
def test_two_ranks_record_the_metrics_of_one(loss: list[str], two_ranks: Ended, tmp_path: Path) -> None:
    ranks.train(tmp_path, [*KNOBS, *loss], first=True)
    one, two = (recorded(at / "runs" / "x") for at in (tmp_path, two_ranks.directory / loss[0]))
    assert list(one) == list(two) == [0, 1, 2, 3, 4]
    assert (0 in [metrics.get("tokens/used") for metrics in one.values()]) == ("lr=3" in loss)
    for step, expected in one.items():
        assert two[step] == pytest.approx(expected, rel=1e-4, abs=1e-6), step
