"""Random faults on a real SLURM while sweep after sweep is launched; then the same commands are repeated until all runs
have finished.

python -m tests.bench.soak --minutes 60 [--seed N] [--write-docs]

Every few seconds there is a fault: a process is killed, a file cut, a bit flipped in a checkpoint, a server stopped, a
node fails, the disk is full, a job is requeued or suspended by hand, and for a moment the loss is another one in the
checkout (a copy of this one). On one node no run of every third sweep can begin, and sbatch prints more than a number.
Half of the launches ship to mlflow.db, half to an MLflow server. At the end each run is compared, by step and metric,
with the same run trained on this machine without faults, and with its metrics in MLflow. Needs root and Debian's SLURM.
Exit code 1: something was lost, doubled or wrong without a message. A number of a run of which `status` says that its
code changed is not wrong.
"""

import argparse
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from rlvr.ledger import journal, layout
from rlvr.ledger.attempt import newest_attempt
from rlvr.ledger.cause import State
from rlvr.ledger.files import read_json, write_text
from rlvr.ledger.sweeps import Ledger
from tests.bench.__main__ import machine
from tests.bench.row import put_between
from tests.slurm.local_cluster import cluster as local
from tests.slurm.local_cluster import processes
from tests.slurm.local_cluster.settings import Settings
from tests.slurm.place import BANDIT, SlurmHome
from tests.support.disks import small_disk
from tests.tracker.places import Server

ROOT = Path(__file__).parents[2]
CODE = ("rlvr", "sweeps", "slurm", "analysis", "conf", "hydra_plugins")  # of the copy that launches run
LOSS = "rlvr/loss/lad.py"
RIGHT, EDITED = "derivative * (log_ratio", "1.25 * derivative * (log_ratio"  # its gradient
EDITED_S = (2.0, 12.0)  # so long
DOCS = ROOT / "docs" / "reliability.md"
BEGIN, END = "<!-- faults -->\n", "<!-- end of faults -->"
RUN = ["steps=400", "evaluation.every=100", "checkpoint.every=40", "cluster.memory_gb=0.8", "cluster.requeues=50"]
SEEDS, NODES = 3, 4  # runs of a launch, nodes of the cluster
PAUSE_S = (1.0, 4.0)  # between two faults
LAUNCH_S, SHIP_S = 10.0, 5.0  # longest time after which a launch, or a shipper, is killed
TRIES = 12  # repetitions of the commands at the end
DISK = "256m"  # of the home; a fault fills it
SETUP = 'cluster.setup=["[ $SLURMD_NODENAME != n1 ]"]'  # of every third sweep: on this node none of its runs can begin
BANNER = """#!/bin/sh
echo "Welcome. See also https://example.org (updated 2026)"
{sbatch} "$@"
code=$?
echo "Your quota: 3 of 7"
exit $code
"""
SILENT = ("time/", "throughput/")  # prefixes of metrics that differ between any two runs


@dataclass
class Fault:
    """One kind of fault: how often it happened, and to which runs."""

    strike: "Strike"
    times: int = 0
    struck: Counter[str] = field(default_factory=Counter)


class Soak:
    """The home in which faults happen, and the cluster that works on its runs."""

    def __init__(self, place: SlurmHome, calm: SlurmHome, server: Server, seed: int) -> None:
        self.place, self.calm, self.server, self.random = place, calm, server, random.Random(seed)
        self.undisturbed = ThreadPoolExecutor(1)  # trains the same runs in the calm home meanwhile
        self.checkout = place.cwd or ROOT
        self.ledger = Ledger(place.home)
        self.launches: list[list[str]] = []

    def new_words(self) -> list[str]:
        """The overrides of a further sweep."""
        first = SEEDS * len(self.launches)
        store = [f"tracker.uri={self.server.uri}"] if len(self.launches) % 2 else []
        setup = [] if len(self.launches) % 3 else [SETUP]
        words = [*RUN, f"seed={','.join(str(first + i) for i in range(SEEDS))}"]
        self.launches.append([*words, *store, *setup])
        self.undisturbed.submit(self.train_calmly, words)
        return self.launches[-1]

    def train_calmly(self, words: Sequence[str]) -> None:
        for _ in range(TRIES):  # a launch may take too long on a busy machine
            with suppress(subprocess.TimeoutExpired):
                self.calm.launch(*words, "cluster=local", "tracker=none", "cluster.report=false")
                return

    def command(self, words: Sequence[str]) -> list[str]:
        return ["-m", "rlvr.run", *BANDIT, *words, "cluster=slurm"]

    def repeat(self, words: Sequence[str]) -> str:
        return self.place.python(*self.command(words))[1]

    def has_room(self) -> bool:
        return len(self.place.queue()) < SEEDS

    # --- targets of faults

    def at_work(self) -> tuple[Path, psutil.Process] | None:
        """A run with a living process, and that process; None if there is none."""
        candidates: list[tuple[Path, psutil.Process]] = []
        for run_id in self.ledger.runs():
            run_dir = self.ledger.run_dir(run_id)
            attempt = layout.attempt(run_dir, newest_attempt(run_dir))
            job = read_json(layout.job(attempt))
            if job and not layout.end(attempt).exists():
                with suppress(psutil.Error):
                    candidates.append((run_dir, psutil.Process(job["pid"])))
        return self.random.choice(candidates) if candidates else None

    def shippers(self) -> list[psutil.Process]:
        candidates: list[psutil.Process] = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if {"rlvr.tracker.mlflow", str(self.place.home)} <= set(process.cmdline()):
                    candidates.append(process)
        return candidates

    def tear(self, path: Path) -> None:
        """Cut the file somewhere, in place, as after a crash of the machine during a careless write."""
        size = path.stat().st_size
        os.truncate(path, self.random.randrange(size) if size else 0)

    def flip(self, path: Path) -> None:
        data = bytearray(path.read_bytes())
        if data:
            bit = self.random.randrange(8 * len(data))
            data[bit // 8] ^= 1 << bit % 8
            path.write_bytes(data)


Strike = Callable[[Soak], str | None]  # returns the run that was struck, "" for none in particular, None: no target


def at_a_run(strike: Callable[[Soak, Path, psutil.Process], bool]) -> Strike:
    """A fault of a run at work. strike: by the run's directory and its process; False: it is no target."""

    def of_any(soak: Soak) -> str | None:
        target = soak.at_work()
        return target[0].name if target is not None and strike(soak, *target) else None

    return of_any


@at_a_run
def kill_run(soak: Soak, run_dir: Path, process: psutil.Process) -> bool:
    process.kill()
    return True


@at_a_run
def kill_supervisor(soak: Soak, run_dir: Path, process: psutil.Process) -> bool:
    supervisors = [parent for parent in process.parents() if "sweeps.slurm.job_of_runs" in parent.cmdline()]
    for supervisor in supervisors[:1]:
        supervisor.kill()
    return bool(supervisors)


@at_a_run
def preempt(soak: Soak, run_dir: Path, process: psutil.Process) -> bool:
    process.terminate()
    return True


@at_a_run
def hang_up(soak: Soak, run_dir: Path, process: psutil.Process) -> bool:
    process.send_signal(signal.SIGHUP)
    return True


@at_a_run
def flip_checkpoint(soak: Soak, run_dir: Path, process: psutil.Process) -> bool:
    """The run is killed too, so that it reads the checkpoint."""
    files = [path for path in layout.checkpoints(run_dir).glob("step-*/*") if path.is_file()]
    if files:
        process.kill()
        soak.flip(soak.random.choice(files))
    return bool(files)


@at_a_run
def tear_journal(soak: Soak, run_dir: Path, process: psutil.Process) -> bool:
    """The run is killed first: a crash does not cut a file that a living process has open."""
    if not layout.journal(run_dir).exists():
        return False
    process.kill()
    process.wait(10)
    soak.tear(layout.journal(run_dir))
    return True


def kill_launch(soak: Soak) -> str | None:
    """The launch of a new sweep, or a repeated one; at any moment."""
    words = soak.new_words() if soak.has_room() or not soak.launches else soak.random.choice(soak.launches)
    launch = soak.place.start(*soak.command(words))
    try:
        launch.wait(soak.random.uniform(0, LAUNCH_S))
    except subprocess.TimeoutExpired:
        launch.kill()
        launch.wait()
        return ""
    return None  # it finished before it could be killed


def kill_shipper(soak: Soak) -> str | None:
    """Running shippers, or if there are none, that of a `sync` that is started here."""
    sync = None if soak.shippers() else soak.place.start("-m", "sweeps", "sync")
    if sync is not None:
        time.sleep(soak.random.uniform(1, SHIP_S))
    shippers = soak.shippers()
    for shipper in shippers:
        shipper.kill()
    if sync is not None:
        sync.kill()
        sync.wait()
    return "" if shippers else None


def kill_server(soak: Soak) -> str:
    """It is restarted after a moment on the same port."""
    soak.server.kill()
    time.sleep(soak.random.uniform(*PAUSE_S))
    soak.server.start()
    return ""


def fill_disk(soak: Soak) -> str:
    """For a moment, to the last byte."""
    filler = soak.place.home / "filler"
    try:
        with suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 20))
        time.sleep(soak.random.uniform(*PAUSE_S))
    finally:
        filler.unlink()
    return ""


def fail_node(soak: Soak) -> str:
    """SLURM sends its jobs to other nodes (NODE_FAIL)."""
    node = f"NodeName=n{soak.random.randint(1, NODES)}"
    soak.place.client("scontrol", "update", node, "State=DOWN", "Reason=soak")
    time.sleep(soak.random.uniform(*PAUSE_S))
    soak.place.client("scontrol", "update", node, "State=RESUME")
    return ""


def edit_loss(soak: Soak) -> str:
    """For a moment."""
    path = soak.checkout / LOSS
    text = path.read_text()
    assert RIGHT in text
    try:
        write_text(path, text.replace(RIGHT, EDITED))
        time.sleep(soak.random.uniform(*EDITED_S))
    finally:
        write_text(path, text)
    return ""


def by_hand(*commands: str) -> Strike:
    """What a user types for a job that runs, with pauses."""

    def strike(soak: Soak) -> str | None:
        running = [job for job, state in soak.place.queue().items() if state == "RUNNING"]
        if not running:
            return None
        job = soak.random.choice(running)
        for command in commands:
            soak.place.client("scontrol", command, job)
            time.sleep(soak.random.uniform(*PAUSE_S))
        return ""

    return strike


def remove_mlflow(soak: Soak) -> str:
    layout.mlflow_database(soak.place.home).unlink(missing_ok=True)
    return ""


def tear(pattern: str) -> Strike:
    def strike(soak: Soak) -> str | None:
        paths = sorted(soak.place.home.glob(pattern))
        if not paths:
            return None
        soak.tear(path := soak.random.choice(paths))
        return path.parent.name if path.parent.parent.name == "runs" else ""

    return strike


def kill_daemon(kind: str) -> Strike:
    def strike(soak: Soak) -> str | None:
        candidates = processes.daemons(soak.place.cluster.root, kind)
        if not candidates:
            return None
        command = psutil.Process(pid := soak.random.choice(candidates)).cmdline()
        os.kill(pid, signal.SIGKILL)
        time.sleep(1)
        if kind == "slurmctld":
            local.start_controller(soak.place.cluster)
        elif kind == "slurmdbd":
            local.start_accounting(soak.place.cluster)
        else:
            local.start_node(soak.place.cluster, command[command.index("-N") + 1])
        return ""

    return strike


FAULTS: dict[str, Strike] = {
    "kill -9 of a run": kill_run,
    "kill -9 of a run's supervisor": kill_supervisor,
    "SIGTERM to a run": preempt,
    "SIGHUP to a run": hang_up,
    "a bit flipped in a checkpoint": flip_checkpoint,
    "metrics.jsonl cut, run killed": tear_journal,
    "run.json cut": tear("runs/*/run.json"),
    "config.yaml cut": tear("runs/*/config.yaml"),
    "heartbeat.json cut": tear("runs/*/attempts/*/heartbeat.json"),
    "sweep.json cut": tear("runs/sweeps/*/sweep.json"),
    "manifest.jsonl cut": tear("runs/sweeps/*/manifest.jsonl"),
    "mlflow.json (a cursor) cut": tear("runs/*/mlflow.json"),
    "mlflow.db deleted": remove_mlflow,
    "a full disk": fill_disk,
    "a node that fails": fail_node,
    "the loss edited, then put back": edit_loss,
    "scontrol requeue of a job": by_hand("requeue"),
    "scontrol suspend, then resume": by_hand("suspend", "resume"),
    "scontrol requeuehold, then release": by_hand("requeuehold", "release"),
    "kill -9 of a launch": kill_launch,
    "kill -9 of the shipper": kill_shipper,
    "kill -9 of the MLflow server": kill_server,
    "kill -9 of slurmctld": kill_daemon("slurmctld"),
    "kill -9 of a slurmd": kill_daemon("slurmd"),
    "kill -9 of slurmdbd": kill_daemon("slurmdbd"),
}


# --- consequences


def metrics_of(run_dir: Path) -> dict[tuple[int, str], float]:
    """Every metric that is not a time, by step and name."""
    return {
        (record.step, name): value
        for record in journal.Follower(layout.journal(run_dir)).all()
        for name, value in record.metrics.items()
        if not name.startswith(SILENT)
    }


def differing(mine: dict[tuple[int, str], float], theirs: dict[tuple[int, str], float]) -> list[tuple[int, str]]:
    """Steps and metrics for which two runs have different values; NaN equals NaN."""
    return [key for key in mine.keys() & theirs.keys() if repr(mine[key]) != repr(theirs[key])]


def stored(database: Path, run_id: str) -> Counter[tuple[int, str]]:
    """Number of rows that MLflow has for each step and metric of a run, in MLflow runs that are not deleted."""
    if not database.exists():
        return Counter()
    text = (
        "select m.step, m.key from metrics m join runs r using (run_uuid) join tags t using (run_uuid) "
        "where t.key = 'rlvr.run_id' and t.value = ? and r.lifecycle_stage = 'active'"
    )
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        return Counter((step, key) for step, key in connection.execute(text, [run_id]))


@dataclass
class Harm:
    """The consequences for one run."""

    lost: bool = False  # it has not finished, and there is no message
    explained: bool = False  # it has not finished, and there is a message
    rows_lost: int = 0
    rows_doubled: int = 0
    wrong: int = 0
    named: int = 0  # numbers of other code, of which there is a message

    def __bool__(self) -> bool:
        return self.lost or bool(self.rows_lost or self.rows_doubled or self.wrong)


def harm_of(soak: Soak, run_dir: Path, reference: Path, code: str) -> Harm:
    """code: what the ledger says of the code of the reference."""
    state = soak.ledger.state(run_dir.name)
    if state.state is not State.FINISHED:
        return Harm(lost=not state.message, explained=bool(state.message))
    metrics, expected = metrics_of(run_dir), metrics_of(reference)
    # Of both stores: a row that is in both counts as doubled.
    rows = stored(layout.mlflow_database(soak.place.home), run_dir.name) + stored(soak.server.database, run_dir.name)
    missing = expected.keys() - metrics.keys()
    differ, is_named = len(differing(metrics, expected)), state.code != code
    unshipped = {key for key, value in metrics.items() if key not in rows and abs(value) < float("inf")}
    return Harm(
        rows_lost=len(missing) + len(unshipped),
        rows_doubled=sum(count - 1 for count in rows.values()),
        wrong=0 if is_named else differ,
        named=differ if is_named else 0,
    )


def heal(soak: Soak) -> None:
    """Repeat the commands until every run has finished, TRIES times at most; then ship all metrics to MLflow.

    If a slurmd is killed at a bad moment, SLURM drains its node and holds its job: they are released here, which is
    otherwise done by an administrator."""
    for _ in range(TRIES):
        for node in soak.place.client("sinfo", "-h", "-N", "-t", "drain", "-o", "%N").split():
            soak.place.client("scontrol", "update", f"NodeName={node}", "State=RESUME")
        for line in soak.place.client("squeue", "-h", "-r", "-o", "%i %r").splitlines():
            job, _, reason = line.partition(" ")
            if "held" in reason:
                soak.place.client("scontrol", "release", job)
        _drain(soak, 600)
        for words in soak.launches:
            soak.repeat(words)
        if not soak.place.queue() and all(s.state is State.FINISHED for s in soak.ledger.states(soak.ledger.runs())):
            break
    _drain(soak, 600)
    print(soak.place.python("-m", "sweeps", "sync")[1].strip(), flush=True)


def _drain(soak: Soak, patience_s: float) -> None:
    until = time.monotonic() + patience_s
    while time.monotonic() < until:
        with suppress(Exception):
            if not soak.place.queue():
                return
        time.sleep(1)


def cause_faults(soak: Soak, faults: dict[str, Fault], minutes: float) -> None:
    until, next_launch = time.monotonic() + 60 * minutes, 0.0
    while time.monotonic() < until:
        with suppress(Exception):
            if time.monotonic() > next_launch and soak.has_room():
                soak.repeat(soak.new_words())
                next_launch = time.monotonic() + 20
        name = soak.random.choice(list(faults))
        with suppress(FileNotFoundError, ProcessLookupError, psutil.Error, ValueError):
            struck = faults[name].strike(soak)
            if struck is not None:
                faults[name].times += 1
                faults[name].struck[struck] += 1
                print(f"{time.strftime('%H:%M:%S')} {name} {struck}", flush=True)
        time.sleep(soak.random.uniform(*PAUSE_S))


def print_banners(folder: Path) -> None:
    """Let sbatch print what sites print around the number of a job."""
    folder.mkdir()
    (wrapper := folder / "sbatch").write_text(BANNER.format(sbatch=shutil.which("sbatch")))
    wrapper.chmod(0o755)
    os.environ["PATH"] = f"{folder}:{os.environ['PATH']}"


def table(faults: dict[str, Fault], harms: dict[str, Harm]) -> str:
    """A row for each kind of fault, with the harm to the runs that it struck, whichever fault caused the harm."""
    head = "| fault | times | runs lost | rows lost | rows doubled | wrong numbers |\n|---|---|---|---|---|---|\n"
    everything, total = list(harms.values()), sum(fault.times for fault in faults.values())
    for name, fault in faults.items():
        of = everything if "" in fault.struck else [harms[run_id] for run_id in fault.struck if run_id in harms]
        head += _row(name, fault.times, of)
    return head + _row("**all together**", total, everything)


def _row(name: str, times: int, of: Sequence[Harm]) -> str:
    sums = [sum(h.lost for h in of), sum(h.rows_lost for h in of), sum(h.rows_doubled for h in of)]
    return "| " + " | ".join(map(str, [name, times, *sums, sum(h.wrong for h in of)])) + " |\n"


def run(cluster: Settings, home: Path, server: Server, minutes: float, seed: int) -> tuple[str, bool]:
    """(text for docs/reliability.md, whether anything was lost, doubled or wrong without a message)."""
    for name in CODE:
        shutil.copytree(ROOT / name, home / "checkout" / name, ignore=shutil.ignore_patterns("__pycache__"))
    calm = SlurmHome(home / "calm", cluster, ROOT)
    soak = Soak(SlurmHome(home / "struck", cluster, home / "checkout"), calm, server, seed)
    print_banners(home / "bin")
    faults = {name: Fault(strike) for name, strike in FAULTS.items()}
    cause_faults(soak, faults, minutes)
    heal(soak)
    soak.undisturbed.shutdown()
    undisturbed = Ledger(calm.home)
    assert len(undisturbed.runs()) == SEEDS * len(soak.launches)
    harms = {
        run_id: harm_of(soak, soak.ledger.run_dir(run_id), undisturbed.run_dir(run_id), undisturbed.state(run_id).code)
        for run_id in sorted(undisturbed.runs())
    }
    for run_id, harm in harms.items():
        if harm or harm.explained or harm.named:
            print(run_id, harm, soak.ledger.state(run_id).message, flush=True)
    explained, of_code = sum(harm.explained for harm in harms.values()), sum(harm.named > 0 for harm in harms.values())
    command, cores = f"python -m tests.bench.soak --minutes {minutes:g} --seed {seed}", machine()["cores"]
    text = f"`{command}`, {cores} cores: {len(harms)} runs, of which {explained} did not finish and say why. "
    text += f"{of_code} were trained with another loss for some steps, and `status` names them."
    return f"{text}\n\n{table(faults, harms)}", any(harms.values())


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60, help="of faults; the rest takes about as long again")
    parser.add_argument("--seed", type=int, default=0, help="of the random faults")
    parser.add_argument("--write-docs", action="store_true", help="put the table into docs/reliability.md")
    options = parser.parse_args(arguments)
    root = Path(tempfile.mkdtemp(prefix="rlvr-soak-", dir="/tmp"))
    root.chmod(0o711)  # the cluster's database runs as another user, who must be able to pass through
    cluster = local.up(root / "c", nodes=NODES)
    server = Server(root)
    try:
        server.start()
        with small_disk(root / "struck", DISK):
            text, harmed = run(cluster, root, server, options.minutes, options.seed)
            if harmed:
                shutil.copytree(root / "struck", root / "kept")
    finally:
        server.kill()
        local.down(root / "c")
    print(text)
    if options.write_docs:
        put_between(DOCS, BEGIN, END, text)
    if not harmed:
        shutil.rmtree(root)
    else:
        print(f"files are kept in {root}", file=sys.stderr)
    return int(harmed)


if __name__ == "__main__":
    sys.exit(main())
