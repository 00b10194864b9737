"""The Ray engine with real vLLMs on the CPU, against one vLLM without Ray; and that it leaves no process behind.

vLLM has an environment of its own: `make vllm-env`.
"""

from __future__ import annotations

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

from rlvr.records import Completion, EngineLost, Request, Sampling
from rlvr.rollout.ray import RayEngine, SharedSupply, own_places, remote_places
from rlvr.rollout.ray_broadcast import Broadcast, takes_part
from rlvr.rollout.vllm import VllmEngine
from tests.rollout.test_native import check_logp, check_until, make_requests, make_sampling, tokens_of
from tests.rollout.test_vllm import PYTHON, SETTINGS, tied
from tests.support.fake_cuda import ROOT

STAND_IN = ROOT / "tests" / "support" / "vllm_stand_in"
WORKERS = 2
PIPE_BYTES = 2 * 65536  # twice what a pipe holds
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
    """Two ranks on each of two nodes: (places by node) -> places of each rank; those that are not on its node."""
    for nodes, (expected, expected_remote) in {
        (0, 1, 0, 1): ([[0], [2], [1], [3]], []),
        (0, 1, 0, 1, 0, 1, 0, 1): ([[0, 2], [4, 6], [1, 3], [5, 7]], []),
        (2, 2, 2, 2): ([[0], [1], [2], [3]], [0, 1, 2, 3]),  # all on a node without ranks
        (1, 2, 1, 2): ([[1], [3], [0], [2]], [1, 3]),  # the second node's ranks come first there
        (1, 0): ([[1], [], [0], []], []),
        (2, 2): ([[0], [], [1], []], [0, 1]),
        (1,): ([[0], [], [], []], [0]),
    }.items():
        assert [own_places(nodes, rank, 4, 2) for rank in range(4)] == expected
        assert remote_places(nodes, 4, 2) == expected_remote


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
    shared = SharedSupply(Stock(80), workers=3)
    assert [len(shared.begin(min(512, shared.most_running), 1)) for _ in range(3)] == [27, 27, 26]
    assert not shared.begin(512, 1)


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

    def test_a_lost_actor_and_a_lost_vllm_are_replaced_and_their_requests_repeated(
        self, engines: tuple[VllmEngine, RayEngine], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each is killed while it sends its answers."""
        _, several = engines
        requests, sampling = make_requests(400), make_sampling(100)
        answers, first = several.generate(requests, sampling), pids_of(several)
        for share in (answers[::2], answers[1::2]):
            tokens = sum(len(completion.tokens) for group in share for completion in group)
            assert tokens * 12 > PIPE_BYTES  # so no process can have sent all its answers
        expected = tokens_of(answers)
        for client, victim in zip(several._clients, (first[0][0], first[1][1]), strict=True):
            assert client.process is not None
            receive = client.process.receive

            def receive_then_kill(timeout_s: float, receive: object = receive, victim: int = victim) -> object:
                message = receive(timeout_s)  # type: ignore[operator]
                os.kill(victim, signal.SIGKILL)
                return message

            monkeypatch.setattr(client.process, "receive", receive_then_kill)
        assert tokens_of(several.generate(requests, sampling)) == expected
        assert not {pid for pair in first for pid in pair} & {pid for pair in pids_of(several) for pid in pair}

    def test_weights_are_broadcast_to_all_clients_and_a_worker_lost_meanwhile_is_replaced(
        self, engines: tuple[VllmEngine, RayEngine], caplog: pytest.LogCaptureFixture
    ) -> None:
        """Workers of this node take part as those of others do."""
        _, several = engines
        several._broadcast = Broadcast(several._clients, processes=1, device=torch.device("cpu"), dtype=torch.float32)
        caplog.set_level(logging.INFO, "rlvr.rollout.ray_broadcast")

        def sync(seed: int, victim: int = 0) -> list[str]:
            """Sync weights; returns the logged messages."""
            caplog.clear()
            model = tied(seed)
            several.sync(killing(model.named_parameters(), victim))
            check_logp(model, several, make_sampling(), 1e-4)
            records = [record for record in caplog.records if record.name == "rlvr.rollout.ray_broadcast"]
            return [record.message.split(":")[0] for record in records]

        def killing(weights: Iterator[tuple[str, torch.Tensor]], victim: int) -> Iterator[tuple[str, torch.Tensor]]:
            for index, pair in enumerate(weights):
                if victim and index == 3:
                    os.kill(victim, signal.SIGKILL)
                yield pair

        def failing(weights: Iterator[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
            yield next(weights)
            raise FloatingPointError

        formed = "weights are broadcast to 2 processes of vLLM by gloo"
        failed = "weights go to workers of Ray through main memory"
        first = pids_of(several)
        assert [sync(4), sync(5), pids_of(several)] == [[formed], [], first]
        assert sync(6, victim=first[0][1]) == [failed]
        assert [sync(7), sync(8)] == [[formed], []]
        with pytest.raises(FloatingPointError):  # during a transfer: the waiting workers are restarted
            several.sync(failing(tied(9).named_parameters()))
        assert [sync(10), sync(11)] == [[], [formed]]

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

    def test_a_worker_that_cannot_be_replaced_or_whose_node_is_lost_ends_the_attempt(
        self, engines: tuple[VllmEngine, RayEngine], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As with a GPU that has failed: all that is started there fails. No test of these workers follows."""
        from rlvr.rollout import ray_cluster  # not before the engine has imported Ray

        _, several = engines
        first, second = several._clients
        monkeypatch.setattr(second, "python", "/usr/bin/false")
        os.kill(second.process.pids()[1], signal.SIGKILL)
        with pytest.raises(EngineLost, match="did not start"):
            several.generate(make_requests(), make_sampling(20))
        monkeypatch.setattr(ray_cluster, "_alive", dict)  # no node is
        os.kill(first.process.pids()[1], signal.SIGKILL)
        with pytest.raises(EngineLost, match="the node of worker 0 is lost"):
            first.generate(make_requests(), make_sampling(20))


def test_weights_are_broadcast_to_gpus_and_to_other_nodes_but_not_to_a_vllm_with_its_own_nccl(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cpu, gpu = torch.device("cpu"), torch.device("cuda", 0)
    monkeypatch.delenv("VLLM_BATCH_INVARIANT", raising=False)
    assert [takes_part(cpu, is_remote=is_remote) for is_remote in (False, True)] == [False, True]
    assert [takes_part(gpu, is_remote=is_remote) for is_remote in (False, True)] == [True, True]
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    assert [takes_part(device, is_remote=True) for device in (cpu, gpu)] == [True, False]


@pytest.mark.real
@pytest.mark.slow
def test_an_interpreter_without_vllm_is_reported(tmp_path: Path) -> None:
    engine = start_ray(tmp_path, python="/usr/bin/false", workers=1)
    try:
        with pytest.raises(RuntimeError, match=r"vLLM \(/usr/bin/false\) did not start: it ended with exit status 1"):
            engine.generate(make_requests(), make_sampling())
    finally:
        engine.close()


@pytest.mark.real
@pytest.mark.slow
def test_a_worker_on_several_gpus_has_them_from_ray_until_its_node_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three GPUs the rank uses the first; its worker, a stand-in that never sleeps, needs the other two. Neither a
    long TMPDIR nor a variable that keeps Ray from assigning GPUs, which other trainers set, matters.
    """
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES", "1")
    tied(0).save_pretrained(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6")
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{STAND_IN}")
    engine = start_ray(tmp_path, device=torch.device("cuda"), python=sys.executable, workers=1, tensor_parallel=2)
    try:
        engine.sync(tied(1).named_parameters())
        (group,) = engine.generate(make_requests(2, [[3, 1, 4]]), make_sampling(4))
        assert len(group) == 2
        [(_, vllm)] = pids_of(engine)
        assert set(psutil.Process(vllm).environ()["CUDA_VISIBLE_DEVICES"].split(",")) == {"5", "6"}
        assert json.loads(psutil.Process(vllm).cmdline()[-1])["sleeps"] is False
        os.kill(vllm, signal.SIGKILL)  # it is replaced
        assert tokens_of(engine.generate(make_requests(2, [[3, 1, 4]]), make_sampling(4))) == tokens_of([group])
        from rlvr.rollout import ray_cluster  # not before the engine has imported Ray

        monkeypatch.setattr(ray_cluster, "_alive", dict)  # no node is
        os.kill(pids_of(engine)[0][1], signal.SIGKILL)
        with pytest.raises(EngineLost, match="the node of worker 0 is lost"):
            engine.generate(make_requests(2, [[3, 1, 4]]), make_sampling(4))
    finally:
        engine.close()
