"""The vLLM engine with real vLLM on the CPU, against plain forward passes of the same Hugging Face model.

vLLM has an environment of its own: `make vllm-env`.
"""

import os
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from scipy import stats
from torch import Tensor
from transformers import PreTrainedModel

from rlvr.ledger.cause import Cause
from rlvr.records import Completion, Request, Sampling
from rlvr.rollout.child import Child, EngineLost
from rlvr.rollout.vllm import VllmEngine
from rlvr.rollout.vllm_requests import AllRequests
from tests.rollout.test_native import (
    V,
    check_logp,
    check_until,
    full_forward,
    make_model,
    make_requests,
    make_sampling,
    tokens_of,
)

PYTHON = Path(__file__).parents[2] / ".venv-vllm" / "bin" / "python"
pytestmark = [
    pytest.mark.real,
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON.exists(), reason="no environment with vLLM: make vllm-env"),
]
END = 7


SETTINGS: dict[str, Any] = {
    **{"device": torch.device("cpu"), "dtype": "float32", "python": str(PYTHON), "eager": True, "canary": None},
    **{"eos_token_ids": [END], "max_batch_sequences": 64, "max_cache_gb": 0.05, "timeout_s": 120},
}


def tied(seed: int) -> PreTrainedModel:
    """A model with heads of 32 dimensions, the least that vLLM's attention supports on a CPU."""
    return make_model(seed, hidden_size=64, num_attention_heads=2, initializer_range=0.2)


def start(directory: Path, **knobs: object) -> VllmEngine:
    return VllmEngine(directory, **{**SETTINGS, **knobs})  # type: ignore[arg-type]


def synced(engine: VllmEngine, seed: int) -> PreTrainedModel:
    model = tied(seed)
    engine.sync(model.named_parameters())
    return model


def pid_of(engine: VllmEngine) -> int:
    assert isinstance(engine.client.process, Child)
    return engine.client.process.process.pid


@pytest.mark.smoke
def test_logp_agrees_after_each_of_twenty_syncs_of_a_tied_model(engine: VllmEngine) -> None:
    before = engine.version  # other files share the engine
    for seed in range(1, 21):
        model = synced(engine, seed)
        check_logp(model, engine, make_sampling(temperature=0.7 if seed % 2 else 1.0), 1e-4)
    assert engine.version == before + 20


def test_noise_follows_seed_step_request_and_sample(engine: VllmEngine) -> None:
    synced(engine, 3)
    (request,) = make_requests(8, [[3, 1, 4, 1, 5]])
    base = tokens_of(engine.generate([request], make_sampling(20)))[0]
    assert len({tuple(sample) for sample in base}) == 8
    for other in (
        engine.generate([request], make_sampling(20, seed=6)),
        engine.generate([request], make_sampling(20, step=3)),
        engine.generate([Request(request.prompt, 8, request.key + 1)], make_sampling(20)),
    ):
        assert tokens_of(other)[0] != base


def test_a_response_ends_with_its_end_token_or_is_cut(engine: VllmEngine) -> None:
    synced(engine, 3)
    completions = [c for group in engine.generate(make_requests(8), make_sampling(12)) for c in group]
    for completion in completions:
        tokens = completion.tokens.tolist()
        assert END not in tokens[:-1]
        assert (completion.finished, len(completion.logp)) == (tokens[-1] == END, len(tokens))
        assert completion.finished or len(tokens) == 12
    assert {c.finished for c in completions} == {True, False}


def test_first_tokens_follow_the_policy(engine: VllmEngine) -> None:
    model = synced(engine, 4)
    (group,) = engine.generate(make_requests(3000, [[3, 1, 4]]), make_sampling(1, temperature=1.3))
    counts = np.bincount([int(c.tokens[0]) for c in group], minlength=V)
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[3, 1, 4]])).logits[0, -1].double()
    expected = (logits / 1.3).softmax(-1).numpy() * 3000
    assert stats.chisquare(counts, expected).pvalue > 1e-3


def test_the_nucleus_and_the_most_likely_token(engine: VllmEngine) -> None:
    model = synced(engine, 4)
    requests = make_requests(50)
    for request, group in zip(requests, engine.generate(requests, make_sampling(3, top_p=0.6)), strict=True):
        for completion in group:
            for step, logits in enumerate(full_forward(model, request.prompt, completion)):
                probability = logits.softmax(-1)
                ordered = probability.sort(descending=True).values
                kept = ordered[(ordered.cumsum(0) - ordered) < 0.6]
                chosen = probability[completion.tokens[step]]
                assert chosen >= kept.min() - 1e-6
                assert completion.logp_sampling[step] == pytest.approx(float((chosen / kept.sum()).log()), abs=1e-4)
            assert np.isnan(completion.logp).all()  # vLLM knows only the truncated distribution
    for request, group in zip(requests, engine.generate(requests, make_sampling(3, temperature=0.0)), strict=True):
        expected = full_forward(model, request.prompt, group[0])
        assert group[0].tokens.tolist() == expected.argmax(-1).tolist()
        np.testing.assert_array_equal(group[0].logp_sampling, 0.0)


def test_a_request_that_does_not_fit_is_rejected(engine: VllmEngine) -> None:
    with pytest.raises(ValueError, match=r"A prompt of 8 tokens and 500 new ones exceed the 128"):
        engine.generate(make_requests(), make_sampling(500))


def test_two_processes_share_a_model_as_two_gpus_would(engine: VllmEngine, tmp_path: Path) -> None:
    """They sample and stop as one process does, and no process outlives the first, even if it hangs."""
    tied(0).save_pretrained(tmp_path)
    both = start(tmp_path, tensor_parallel=2)
    model = synced(engine, 6)
    both.sync(model.named_parameters())
    check_logp(model, both, make_sampling(), 1e-4)
    expected, first = tokens_of(engine.generate(make_requests(), make_sampling())), pid_of(both)
    assert tokens_of(both.generate(make_requests(), make_sampling())) == expected
    _, taken = check_until(both, [Request(np.array([3, 1, 4]), 2, 1000 + key) for key in range(100)], make_sampling(60))
    assert 0 in taken
    assert len(taken) < 100
    workers = [child for child in psutil.Process(first).children(recursive=True) if "VLLM" in child.name()]
    assert len(workers) == 2
    assert {socket.laddr.ip for worker in workers for socket in worker.net_connections()} == {"127.0.0.1"}
    os.kill(workers[1].pid, signal.SIGSTOP)
    os.kill(first, signal.SIGKILL)  # as if the trainer had been killed, which ends its vLLM
    _, alive = psutil.wait_procs(workers, timeout=60)
    both.close()
    assert not alive


def test_an_interpreter_without_vllm_is_reported(tmp_path: Path) -> None:
    engine = start(tmp_path, python="/usr/bin/false")
    with pytest.raises(EngineLost, match=r"vLLM \(/usr/bin/false\) did not start: it ended with") as end:
        engine.generate(make_requests(), make_sampling())
    assert end.value.cause is Cause.ERROR  # the next attempt would fail, too
    engine.close()


def test_vllm_stops_once_there_is_enough_and_its_samples_are_the_same(engine: VllmEngine) -> None:
    """Of 200 requests of up to 100 tokens, sixteen run at a time: the first is complete long before the last begins."""
    synced(engine, 5)
    requests = [Request(np.array([3, 1, 4]), 2, 1000 + key) for key in range(200)]
    for _ in range(2):
        _, taken = check_until(engine, requests, make_sampling(100))
        assert 0 in taken
        assert len(taken) < 200


def test_a_request_sent_during_a_broadcast_may_begin_with_the_older_weights(engine: VllmEngine) -> None:
    synced(engine, 5)
    supply = AllRequests(dict(enumerate(make_requests())), make_sampling())

    with engine.client.connected() as connection:
        connection.version += 1  # as before a broadcast, which the process then receives
        engine.generate_stream(supply)
        connection.version -= 1
    assert len(supply.sampled) == len(make_requests())


class Switch:
    """A supply of one short and one long request. The engine gets new weights as soon as the short one is complete."""

    def __init__(self, engine: VllmEngine, requests: list[Request], newer: PreTrainedModel) -> None:
        self.engine, self.newer = engine, newer
        self.requests = [(row, request, make_sampling(LONG)) for row, request in enumerate(requests)]
        self.finished: dict[int, tuple[Completion, int]] = {}

    def begin(self, most: int, version: int) -> list[tuple[int, Request, Sampling]]:
        requests, self.requests = self.requests, []
        return requests

    def deliver(self, row: int, samples: tuple[Completion, ...], version: int) -> None:
        self.finished[row] = samples[0], version
        if len(self.finished) == 1:
            updating = threading.Thread(target=self.engine.sync, args=(self.newer.named_parameters(),))
            updating.start()
            self.updating = updating

    most_running = 2

    def wait(self) -> None:
        raise AssertionError("something runs all along")

    @property
    def enough(self) -> bool:
        return len(self.finished) == 2


LONG = 120  # tokens


@torch.no_grad()
def logp_of(older: PreTrainedModel, newer: PreTrainedModel, request: Request, tokens: Tensor, switch: int) -> Tensor:
    """Log-probability of each token, in nats, if the first `switch` were drawn by the older weights and the others by
    the newer ones, which continue with the older ones' keys and values."""
    read = torch.cat([torch.from_numpy(request.prompt), tokens])[None, :-1]
    before = len(request.prompt) - 1 + switch  # tokens read by the older weights
    first = older(read[:, :before], use_cache=True)
    logits = first.logits[0]
    if before < read.shape[1]:
        second = newer(read[:, before:], past_key_values=first.past_key_values).logits[0]
        logits = torch.cat([logits, second])
    return logits[len(request.prompt) - 1 :].log_softmax(-1).gather(1, tokens[:, None])[:, 0]


def test_a_running_request_continues_with_new_weights_and_its_old_keys_and_values(engine: VllmEngine) -> None:
    """The log-probabilities are the older policy's up to one token, and the newer one's from there on. A request with
    the same prompt that begins later reads it with the newer weights. The new weights are sent when the short
    request is complete; on a busy machine the long one may have ended before: then the test tries again."""
    older, newer = tied(5), tied(6)
    engine.sync(older.named_parameters())
    candidates = [Request(np.array([3, 1, 4]), 1, 1000 + key) for key in range(200)]
    lengths = [len(group[0].tokens) for group in engine.generate(candidates, make_sampling(LONG))]
    requests = [candidates[int(np.argmin(lengths))], candidates[int(np.argmax(lengths))]]
    for _ in range(20):
        engine.sync(older.named_parameters())
        before = engine.version
        supply = Switch(engine, requests, newer)
        engine.generate_stream(supply)
        supply.updating.join()
        completion, version = supply.finished[1]
        if version == before + 1:
            break
    assert (version, supply.finished[0][1]) == (before + 1, before)
    tokens = torch.from_numpy(completion.tokens)
    fits = [
        np.allclose(logp_of(older, newer, requests[1], tokens, switch).numpy(), completion.logp, atol=1e-4)
        for switch in range(1, len(tokens) + 1)
    ]
    assert sum(fits) == 1
    assert not fits[-1]
    check_logp(newer, engine, make_sampling(), 1e-4)


def test_a_process_that_hangs_ends_the_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever uses the engine then learns why, and nothing of the process is left."""
    tied(0).save_pretrained(tmp_path)
    engine = start(tmp_path)
    engine.sync(tied(1).named_parameters())
    lost = psutil.Process(pid_of(engine))
    monkeypatch.setattr(engine.client, "timeout_s", 10.0)

    class Stopping(AllRequests):
        def deliver(self, row: int, samples: tuple[Completion, ...], version: int) -> None:
            lost.suspend()

    with pytest.raises(EngineLost, match=r"vLLM \(.*\) was lost: it has sent nothing for 10 s") as end:
        engine.generate_stream(Stopping(dict(enumerate(make_requests(200))), make_sampling(100)))
    assert end.value.cause is Cause.NODE
    for use in (lambda: engine.generate(make_requests(), make_sampling()), lambda: engine.sync([])):
        with pytest.raises(EngineLost, match="was lost: it has sent nothing for 10 s"):
            use()
    assert not lost.is_running()
    engine.close()
