"""The Ray engine with real vLLMs on the CPU, against one vLLM without Ray; and that it leaves no process behind.

vLLM has an environment of its own: `make vllm-env`.
"""

import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch

from rlvr.ledger.cause import Cause
from rlvr.records import Completion, Request, Sampling
from rlvr.rollout.child import EngineLost
from rlvr.rollout.ray import RayEngine, own_places
from rlvr.rollout.ray_broadcast import Broadcast
from rlvr.rollout.sampler import CollectedSamples
from rlvr.rollout.vllm import VllmEngine
from rlvr.rollout.vllm_client import VllmClient
from rlvr.rollout.vllm_requests import most_of_each
from tests.rollout.test_native import check_logp, check_until, make_requests, make_sampling, tokens_of
from tests.rollout.test_vllm import PYTHON, SETTINGS, tied
from tests.support.fake_cuda import ROOT

STAND_IN = ROOT / "tests" / "support" / "vllm_stand_in"
WORKERS = 2
real = [
    pytest.mark.real,
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON.exists(), reason="no environment with vLLM: make vllm-env"),
]


def start_ray(directory: Path, **knobs: object) -> RayEngine:
    return RayEngine(directory, **{**SETTINGS, "workers": WORKERS, **knobs})  # type: ignore[arg-type]


def pids_of(engine: RayEngine) -> list[tuple[int, int]]:
    """Process ids of each worker's actor and of its vLLM."""
    return [client.process.pids() for client in engine._clients]  # type: ignore[union-attr]


def only_broadcast(engine: RayEngine, clients: list[VllmClient]) -> None:
    """From now on all weights are broadcast, to these clients."""
    engine._readers = []
    engine._broadcast = Broadcast(clients, processes=1, device=torch.device("cpu"))
    engine._broadcast._form()


def family() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))


def listening() -> set[tuple[int, str, int]]:
    """(process, address, port) of every socket on which this process or a descendant of it listens."""
    processes = [psutil.Process(), *family()]
    sockets = [(p.pid, c) for p in processes for c in p.net_connections() if c.status == psutil.CONN_LISTEN]
    return {(pid, socket.laddr.ip.removeprefix("::ffff:"), socket.laddr.port) for pid, socket in sockets}


@pytest.fixture(scope="class")
def before(engine: VllmEngine) -> set[tuple[int, str, int]]:
    """The sockets that listen without Ray: those of one vLLM, and of servers that other tests may have started."""
    return listening()


@pytest.fixture(scope="class")  # Ray is one per process
def engines(
    engine: VllmEngine, before: object, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[VllmEngine, RayEngine]]:
    """One vLLM, and two in actors, all on the same weights, which differ from those at the start."""
    directory = tmp_path_factory.mktemp("model")
    tied(0).save_pretrained(directory)
    weights = tied(1)
    engine.sync(weights.named_parameters())  # it has started now
    others = family()
    previous = signal.getsignal(signal.SIGTERM), dict(os.environ)
    several = start_ray(directory)
    assert (signal.getsignal(signal.SIGTERM), dict(os.environ)) == previous
    several.sync(weights.named_parameters())
    yield engine, several
    started = family() - others
    assert {"raylet", "gcs_server"} <= {process.name() for process in started}
    several.close()
    _, alive = psutil.wait_procs(started, timeout=60)
    assert not alive


def test_places_are_shared_equally_and_on_the_own_node_first() -> None:
    """Two ranks on each of two nodes: (places by node) -> places of each rank."""
    for nodes, expected in {
        (0, 1, 0, 1): [[0], [2], [1], [3]],
        (0, 1, 0, 1, 0, 1, 0, 1): [[0, 2], [4, 6], [1, 3], [5, 7]],
        (2, 2, 2, 2): [[0], [1], [2], [3]],  # all on a node without ranks
        (1, 2, 1, 2): [[1], [3], [0], [2]],  # the second node's ranks come first there
        (1, 0): [[1], [], [0], []],
        (2, 2): [[0], [], [1], []],
        (1,): [[0], [], [], []],
    }.items():
        assert [own_places(nodes, rank, 4, 2) for rank in range(4)] == expected


class Stock:
    """A supply of groups of 8 samples, all of which may begin at once."""

    enough = False

    def __init__(self, groups: int) -> None:
        self.groups, self.most_running = list(range(groups)), 8 * groups

    def begin(self, most: int, version: int) -> list[tuple[int, Request, Sampling]]:
        count = max(0, -(-most // 8))
        taken, self.groups = self.groups[:count], self.groups[count:]
        return [(row, *request_of_8()) for row in taken]

    def deliver(self, row: int, samples: tuple[Completion, ...], version: int) -> None: ...
    def wait(self) -> None: ...


def request_of_8() -> tuple[Request, Sampling]:
    return make_requests(8, [[3, 1, 4]])[0], make_sampling()


def test_clients_share_what_may_begin() -> None:
    """80 groups of 8: a worker with room for 512 samples gets 27 groups, for 3 workers have 640 samples."""
    stock = Stock(80)
    most = min(512, most_of_each(stock, 3))
    assert [len(stock.begin(most, 1)) for _ in range(3)] == [27, 27, 26]
    assert not stock.begin(512, 1)


class TestAnswers:
    pytestmark = real

    def test_clients_answer_what_one_vllm_does(self, engines: tuple[VllmEngine, RayEngine]) -> None:
        one, several = engines
        for sampling in (make_sampling(20), make_sampling(20, seed=6), make_sampling(20, temperature=0.0)):
            assert tokens_of(several.generate(make_requests(), sampling)) == tokens_of(
                one.generate(make_requests(), sampling)
            )
        assert several.generate(make_requests(2, [[3, 1, 4]]), make_sampling(4))  # fewer requests than workers
        assert 0 in check_until(several, make_requests(2, [[3, 1, 4]] * 9), make_sampling(20))[1]

    def test_every_worker_takes_new_weights(self, engines: tuple[VllmEngine, RayEngine]) -> None:
        _, several = engines
        for seed in (2, 3):
            model = tied(seed)
            several.sync(model.named_parameters())
            check_logp(model, several, make_sampling(), 1e-4)

    def test_weights_are_broadcast_to_all_clients(
        self, engines: tuple[VllmEngine, RayEngine], caplog: pytest.LogCaptureFixture
    ) -> None:
        """Workers of this node take part as those of others do."""
        _, several = engines
        caplog.set_level(logging.INFO, "rlvr.rollout.ray_broadcast")
        only_broadcast(several, several._clients)
        assert "weights are broadcast to 2 processes of vLLM by gloo" in caplog.messages
        for seed in (4, 5):
            model = tied(seed)
            several.sync(model.named_parameters())
            check_logp(model, several, make_sampling(), 1e-4)

    def test_a_client_with_a_wrong_token_is_rejected(self, engines: tuple[VllmEngine, RayEngine]) -> None:
        import ray  # not before the engine has

        address = ray.get_runtime_context().gcs_address
        ask = f"from ray._raylet import GcsClient\nprint(GcsClient(address={address!r}).internal_kv_keys(b'', b''))"
        guess = {**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}
        done = subprocess.run([sys.executable, "-c", ask], env=guess, capture_output=True, text=True, timeout=120)
        assert done.returncode == 1
        assert "InvalidAuthToken" in done.stderr

    def test_all_sockets_listen_on_loopback(
        self, before: set[tuple[int, str, int]], engines: tuple[VllmEngine, RayEngine]
    ) -> None:
        sockets = listening() - before
        assert len(sockets) >= 4  # gcs_server, raylet, two actors
        assert {address for _, address, _ in sockets} == {"127.0.0.1"}

    def test_a_lost_actor_and_vllm_are_named_and_end_the_attempt(self, engines: tuple[VllmEngine, RayEngine]) -> None:
        """One is killed amid its requests, one amid new weights. No test of these workers follows."""
        _, several = engines
        (_, vllm), (actor, _) = pids_of(several)
        only_broadcast(several, several._clients[:1])

        class Killing(CollectedSamples):
            def take(self, row: int, samples: tuple[Completion, ...]) -> None:
                os.kill(actor, signal.SIGKILL)

        with pytest.raises(EngineLost, match=r"worker 1 of Ray on node 0: .* its actor or node was lost") as end:
            several.generate_until(make_requests(400), make_sampling(100), Killing())
        assert end.value.cause is Cause.NODE

        def weights() -> Iterator[tuple[str, torch.Tensor]]:
            yield from tied(6).named_parameters()
            os.kill(vllm, signal.SIGKILL)

        with pytest.raises(
            EngineLost, match=r"did not reach all .*worker 0 of Ray on node 0: .* exit status -9"
        ) as end:
            several.sync(weights())
        assert end.value.cause is Cause.NODE


@pytest.mark.real
@pytest.mark.slow
def test_a_worker_on_several_gpus_has_them_from_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three GPUs the rank uses the first; its worker, a stand-in that never sleeps, needs the other two. Neither a
    long TMPDIR nor a variable that keeps Ray from assigning GPUs, which other trainers set, matters."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES", "1")
    tied(0).save_pretrained(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6")
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{STAND_IN}")
    engine = start_ray(tmp_path, device=torch.device("cuda"), python=sys.executable, workers=1, tensor_parallel=2)
    try:
        (group,) = engine.generate(make_requests(2, [[3, 1, 4]]), make_sampling(4))
        assert len(group) == 2
        [(_, vllm)] = pids_of(engine)
        assert set(psutil.Process(vllm).environ()["CUDA_VISIBLE_DEVICES"].split(",")) == {"5", "6"}
        assert json.loads(psutil.Process(vllm).cmdline()[-1])["sleeps"] is False
    finally:
        engine.close()
