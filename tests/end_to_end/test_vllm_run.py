"""Whole runs that sample with vLLM, on one rank, two, and two nodes: killed, resumed, and beside the native engine."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import psutil
import pytest
from omegaconf import OmegaConf
from transformers import AutoModelForCausalLM

from rlvr.ledger import layout
from rlvr.ledger.attempt import newest_attempt, read_end, read_rank_end
from rlvr.ledger.cause import Cause
from rlvr.ledger.rollouts import read_rollouts
from sweeps.worker import ranks_command
from tests.end_to_end.test_sweep import deterministic
from tests.rollout.test_native import check_logp, make_sampling
from tests.rollout.test_vllm import start as serve
from tests.support import network
from tests.support.words import newest

PYTHON = Path(__file__).parents[2] / ".venv-vllm" / "bin" / "python"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.real,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not PYTHON.exists(), reason="no environment with vLLM: make vllm-env"),
]

STEPS = 16
MAZE = [
    *("task.size=5", "task.test_problems=8", "model.steps=120", "model.batch=32", f"steps={STEPS}"),
    *("rollout.prompts=16", "rollout.samples=8", "rollout.dynamic_sampling=none", f"evaluation.every={STEPS}"),
    *("evaluation.samples=32", "loss=grpo", "lr=5e-4", "checkpoint.every=2", "cluster=local"),
    "tracker.enabled=false",
]
VLLM = [
    *("rollout=vllm", f"rollout.engine.python={PYTHON}", "rollout.engine.eager=true"),
    *("rollout.engine.max_cache_gb=0.1", "rollout.engine.max_batch_sequences=256"),
]
ROOM = "rollout.engine.max_batch_sequences=384"
KILLED_AT = 3
ACCURACY = "evaluation/maze_5x5/avg_at_32"


def start(home: Path, *overrides: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "RLVR_HOME": str(home), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "rlvr.run", *newest([*MAZE, *overrides])]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def metrics(home: Path) -> dict[int, dict[str, float]]:
    """By step, of the only run."""
    (path,) = (home / "runs").glob("*/metrics.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return {line["step"]: line["metrics"] for line in lines}


def wait_for_step(process: subprocess.Popen[str], home: Path, step: int) -> None:
    spool = list[Path]()
    while not spool or len(spool[0].read_text().splitlines()) < step + 1:
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.05)
        spool = list((home / "runs").glob("*/metrics.jsonl"))


def finished(home: Path, *overrides: str) -> dict[int, dict[str, float]]:
    process = start(home, *overrides)
    out, _ = process.communicate(timeout=400)
    assert process.returncode == 0, out
    return metrics(home)


@pytest.fixture(scope="module")
def homes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One base policy for all of them."""
    made = {name: tmp_path_factory.mktemp(name) for name in ("native", "one", "two", "ray", "dies")}
    stages = made["native"] / "runs" / "stages"
    stages.mkdir(parents=True)
    for home in made.values():
        (home / "runs").mkdir(exist_ok=True)
        if home is not made["native"]:
            (home / "runs" / "stages").symlink_to(stages)
    return made


@pytest.fixture(scope="module")
def native(homes: dict[str, Path]) -> dict[int, dict[str, float]]:
    return finished(homes["native"])


@pytest.fixture(scope="module")
def two_ranks(homes: dict[str, Path], native: dict[int, dict[str, float]]) -> dict[int, dict[str, float]]:
    return finished(homes["two"], *VLLM, "cluster.ranks=2")


@pytest.fixture(scope="module")
def one_rank(homes: dict[str, Path], native: dict[int, dict[str, float]]) -> dict[int, dict[str, float]]:
    """Killed after a few steps, then run again."""
    home = homes["one"]
    process = start(home, *VLLM)
    wait_for_step(process, home, KILLED_AT)
    family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    servers = [p for p in family if "vllm_server.py" in " ".join(p.cmdline())]
    assert len(servers) == 1
    for each in family:
        if each not in servers:
            each.kill()
    process.communicate()
    gone, alive = psutil.wait_procs(servers, timeout=60)
    assert gone
    assert not alive
    return finished(home, *VLLM)


def test_engine_and_trainer_agree_on_all_that_is_trained_on(
    native: dict[int, dict[str, float]], one_rank: dict[int, dict[str, float]], two_ranks: dict[int, dict[str, float]]
) -> None:
    """In every step of sixteen, each after a sync of its own."""
    assert "mismatch/max" not in native[1]  # one and the same code: not asked
    for run in (one_rank, two_ranks):
        for step in range(1, STEPS + 1):
            assert 0 < run[step]["mismatch/mean"] <= run[step]["mismatch/max"] < 1e-4, step


def test_a_killed_run_goes_on_where_it_was(one_rank: dict[int, dict[str, float]], homes: dict[str, Path]) -> None:
    assert list(one_rank) == list(range(STEPS + 1))
    (run,) = (homes["one"] / "runs").glob("*/run.json")
    assert "resuming from step-" in (run.parent / "attempts" / "2" / "log.txt").read_text()


def test_two_ranks_sample_and_learn_what_one_does(
    one_rank: dict[int, dict[str, float]], two_ranks: dict[int, dict[str, float]]
) -> None:
    """Every sample has a seed of its own, whichever rank draws it. Later, rounding turns a token now and then."""
    of_training = ("reward/mean", "response/length", "loss/total", "optim/grad_norm", "policy/entropy")
    for step, names in ((0, (ACCURACY,)), (1, of_training), (2, of_training)):
        for name in names:
            assert two_ranks[step][name] == pytest.approx(one_rank[step][name], rel=1e-3, abs=1e-4), (name, step)


def test_workers_of_ray_sample_what_one_vllm_does_and_die_with_the_trainer(
    homes: dict[str, Path], one_rank: dict[int, dict[str, float]]
) -> None:
    """One step ahead: what a step learns from is of the policy before it, and was weighed."""
    ahead = ["rollout.ahead=1", "rollout.importance=truncate"]
    process = start(
        homes["dies"],
        *(word for word in VLLM if word != "rollout=vllm"),
        "rollout=ray",
        "rollout.engine.workers=2",
        *ahead,
    )
    wait_for_step(process, homes["dies"], 2)
    everyone = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    (raylet,) = [p for p in everyone if p.name() == "raylet"]
    trainer = next(p for p in raylet.parents() if "rlvr.job" in p.cmdline())
    begun = trainer.children(recursive=True)
    assert sum(p.name().startswith("ray::ChildActor") for p in begun) == 2  # and what it is doing
    watched = [p for p in begun if not p.name().endswith("Agent")]  # Ray's own two give up after a minute
    for each in everyone:
        if each not in begun:
            each.kill()
    process.communicate()
    while any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in watched):
        time.sleep(0.1)
    found = metrics(homes["dies"])
    for step, name in ((0, ACCURACY), (1, "reward/mean"), (1, "loss/total"), (1, "policy/entropy")):
        assert found[step][name] == pytest.approx(one_rank[step][name], rel=1e-3, abs=1e-4), (name, step)
    assert found[2]["rollout/staleness"] > found[1]["rollout/staleness"] == 0
    assert found[1]["mismatch/max"] < 1e-4 < found[2]["mismatch/max"]


def test_two_steps_ahead_a_worker_of_ray_takes_weights_amid_its_requests(
    homes: dict[str, Path], native: dict[int, dict[str, float]], tmp_path: Path
) -> None:
    """48 groups begin at once: those of three steps, before any is learned. What each step learns from is no further
    from its start than two steps, is the stream's next, and is weighed by how far it is from the trainer."""
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "stages").symlink_to(homes["native"] / "runs" / "stages")
    few = ("steps=5", "evaluation.every=5", "keep_rollouts=5", "rollout.ahead=2", "rollout.importance=truncate")
    of_ray = (word for word in VLLM if word != "rollout=vllm")
    found = finished(tmp_path, *of_ray, "rollout=ray", "rollout.engine.workers=1", *few, ROOM)
    (run,) = (tmp_path / "runs").glob("*/run.json")
    assert "is not the same bit for bit" in (run.parent / "attempts" / "1" / "log.txt").read_text()
    (config,) = (tmp_path / "runs").glob("*/config.yaml")
    updates = OmegaConf.load(config).trainer.updates
    steps = [read_rollouts(layout.rollouts(run.parent, step)) for step in range(1, 6)]
    for step, groups in enumerate(steps, 1):
        oldest = [group.updates[0] for group in groups]
        assert len(groups) == 16
        assert min(oldest) >= updates * max(0, step - 3)
        assert max(group.updates[1] for group in groups) <= updates * (step - 1)
        assert found[step]["rollout/staleness_max"] == updates * (step - 1) - min(oldest)
        if step <= 3:
            assert set(oldest) == {0}
    numbers = [group.problem.id for groups in steps for group in groups]
    assert len(set(numbers)) == 80
    assert found[1]["mismatch/max"] < 1e-4 < found[3]["mismatch/max"]
    assert ACCURACY in found[5]


@pytest.mark.skipif(not network.can_be(), reason="no namespaces of networks here")
def test_nodes_that_train_and_one_that_samples_learn_what_one_node_does_and_go_on_after_its_ray_was_lost(
    homes: dict[str, Path], tmp_path: Path
) -> None:
    """One rank on each of two nodes, two workers on a third. The loss of its Ray ends the attempt; the next one
    continues."""
    spread = ("rollout=ray", "rollout.engine.workers=2", "cluster.ranks=2", "checkpoint.every=1")
    few = ("steps=3", "evaluation.every=3", "evaluation.samples=2", "evaluation.k=[1]")
    of_ray = (word for word in VLLM if word != "rollout=vllm")
    finished(homes["ray"], *of_ray, *spread, *few)
    run, (frozen,) = tmp_path / "runs" / "spread", (homes["ray"] / "runs").glob("*/config.yaml")
    run.mkdir(parents=True)
    for file in (frozen, frozen.with_name("run.json")):
        shutil.copy(file, run)
    (run.parent / "stages").symlink_to(homes["native"] / "runs" / "stages")
    log = tmp_path / "log.txt"
    with network.nodes(3) as nodes, log.open("w") as out:
        with on_all(nodes, run, out) as started:
            wait_for_line(run, started, 1, log)
            of_node = psutil.Process(started[2].pid).children(recursive=True)
            next(each for each in of_node if each.name() == "raylet").kill()
            assert all(node.wait(timeout=300) for node in started), log.read_text()
        first_log = log.read_text() + (run / "attempts" / "1" / "log.txt").read_text()
        first_cause, message = newest_end(run)
        with on_all(nodes, run, out) as started:
            assert [node.wait(timeout=900) for node in started] == [0, 0, 0], log.read_text()
    assert first_cause is Cause.NODE, message
    assert re.search(r"worker \d of Ray on node 2: vLLM", message)
    assert "Ray of this node has ended" in first_log
    assert "weights are broadcast to 2 processes of vLLM by gloo" in first_log
    assert "resuming from step-" in (run / "attempts" / "2" / "log.txt").read_text()
    found, expected = deterministic(run), deterministic(frozen.parent)
    assert list(found) == list(range(4))
    for step, values in found.items():
        both = {name: values[name] for name in values.keys() & expected[step].keys()}
        assert {"reward/mean", "loss/total", "optim/grad_norm", "mismatch/max"} <= both.keys() or step == 0
        assert both == pytest.approx({name: expected[step][name] for name in both}, rel=1e-6, abs=1e-6)


def newest_end(run: Path) -> tuple[Cause, str]:
    """Cause and message of the newest attempt, by its own record or by that of one of its ranks."""
    number = newest_attempt(run)
    end = read_end(layout.attempt(run, number))
    record = (end.cause, end.message) if end is not None else read_rank_end(run, number)
    assert record is not None
    return record


@contextlib.contextmanager
def on_all(nodes: Sequence[network.Node], run: Path, out: IO[str]) -> Iterator[list[subprocess.Popen[bytes]]]:
    """The parts of a run on its nodes, which are ended on exit."""
    started = [start_on(node, nodes[0], run, out, token="7" * 64) for node in nodes]
    try:
        yield started
    finally:
        for node in started:
            node.kill()
            node.wait()


def start_on(
    node: network.Node, first: network.Node, run: Path, out: IO[str], *, token: str
) -> subprocess.Popen[bytes]:
    """A node's part of a run: one rank, or on the third workers alone."""
    number = int(node.name.rsplit("-", 1)[1])
    place = ("--nodes=2", f"--node={number}", "--sampling=1", f"--meet={first.ip}:6000", f"--ray={first.ip}:6001")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "RAY_AUTH_TOKEN": token}
    command = node.command([*ranks_command(int(number < 2), place=place), str(run)])
    return subprocess.Popen(command, env=environment, stdout=out, stderr=out)


def wait_for_line(run: Path, nodes: list[subprocess.Popen[bytes]], step: int, log: Path) -> None:
    record = run / "metrics.jsonl"
    while not record.exists() or len(record.read_text().splitlines()) < step + 1:
        assert [node.poll() for node in nodes] == [None] * len(nodes), log.read_text()
        time.sleep(0.05)


def test_runs_learn_as_with_the_native_engine(
    native: dict[int, dict[str, float]], one_rank: dict[int, dict[str, float]], two_ranks: dict[int, dict[str, float]]
) -> None:
    for run in (native, one_rank, two_ranks):
        first, last = run[0][ACCURACY], run[STEPS][ACCURACY]
        assert last > first + 0.1, (first, last)
        assert last == pytest.approx(native[STEPS][ACCURACY], abs=0.12)


def test_what_is_exported_is_what_vllm_serves(
    homes: dict[str, Path], one_rank: dict[int, dict[str, float]], tmp_path: Path
) -> None:
    """From the directory alone, without a trainer: vLLM's log-probabilities are those of transformers."""
    (run,) = (homes["one"] / "runs").glob("*/run.json")
    export = [sys.executable, "-m", "rlvr.export", str(run.parent), str(tmp_path / "policy")]
    subprocess.run(export, check=True, capture_output=True, timeout=120)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "policy")
    engine = serve(tmp_path / "policy")
    try:
        check_logp(model, engine, make_sampling(), 1e-4)
    finally:
        engine.close()
