"""The program that tests/rollout/test_ipc_transfer.py runs on the fake CUDA, with the stand-in for vLLM: `cuda_weights
FILE`.

Engines are given weights that lie on the fake GPU; their samples are then compared with these weights.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from rlvr.rollout import ipc_transfer
from rlvr.rollout.cuda_ipc import NotShared, SharedMemory
from rlvr.rollout.vllm import VllmEngine
from rlvr.trainer import distributed
from tests.rollout.test_native import full_forward, make_model, make_requests, make_sampling, tokens_of

LOGGED = list[str]()
FEW_BYTES = 2**21  # of a bucket: the driver gives no less
# Embeddings larger than that, 2.5 MB in float32, and other matrices of which some are not in one bucket with them.
WIDE: dict[str, Any] = {"vocab_size": 10_000, "hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 4096}


def off_by(engine: VllmEngine, model: PreTrainedModel) -> float:
    """The largest difference of log-probabilities from those of the model, in nats."""
    difference = 0.0
    for request, group in zip(make_requests(1), engine.generate(make_requests(1), make_sampling(4)), strict=True):
        for completion in group:
            logp = full_forward(model, request.prompt, completion).log_softmax(-1)
            expected = logp.gather(1, torch.from_numpy(completion.tokens)[:, None])[:, 0].numpy()
            difference = max(difference, float(np.abs(expected - completion.logp).max()))
    return difference


def weights(model: PreTrainedModel) -> Iterator[tuple[str, torch.Tensor]]:
    for name, parameter in model.named_parameters():
        yield name, parameter.detach().to("cuda")


class KilledAtSecondPiece:
    """A child process that is killed when it is to receive its second piece of weights."""

    def __init__(self, child: Any) -> None:
        self.child, self.pieces = child, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.child, name)

    def send(self, header: dict[str, Any], *rest: Any) -> None:
        self.pieces += bool(header.get("tensors"))
        if self.pieces == 2:
            os.kill(self.child.pid, signal.SIGKILL)
        self.child.send(header, *rest)


def route() -> str:
    """The last line about transfers that was logged since the last call; "" if there is none."""
    lines = [line for line in LOGGED if line.startswith("weights go")]
    LOGGED.clear()
    return lines[-1] if lines else ""


def start(directory: str) -> VllmEngine:
    return VllmEngine(
        Path(directory),
        device=torch.device("cuda", 0),
        eos_token_ids=[7],
        dtype="float32",
        python=None,
        eager=True,
        max_batch_sequences=64,
        max_cache_gb=0.05,
        canary=None,
        timeout_s=120,
    )


def within_the_gpu(directory: str) -> dict[str, Any]:
    """A sync of an engine that is awake and of one that sleeps, one killed before it sleeps, one killed amid a sync;
    and a sync of its successor.
    """
    engine = start(directory)
    first, second, third = (make_model(seed, **WIDE) for seed in (1, 2, 3))
    engine.sync(weights(first))
    results: dict[str, Any] = {"route": route(), "awake": off_by(engine, first)}
    engine.sleep()
    engine.sync(weights(second))
    results |= {
        "asleep": off_by(engine, second),
        "again": route(),
        "sent": engine.client.sent_version == engine.version == 2,
    }
    expected = tokens_of(engine.generate(make_requests(1), make_sampling(4)))
    assert engine.client.process is not None
    os.kill(engine.client.process.pid, signal.SIGKILL)
    engine.sleep()
    results["left"] = engine.client.process is not None
    results["replaced"] = tokens_of(engine.generate(make_requests(1), make_sampling(4))) == expected
    LOGGED.clear()
    engine.client.process = KilledAtSecondPiece(engine.client.process)
    engine.sync(weights(third))
    results |= {"struck": off_by(engine, third), "then": route()}
    engine.sync(weights(first))
    results |= {"given up": off_by(engine, first), "afterwards": route()}
    engine.close()
    return results


def without_a_driver(directory: str) -> dict[str, Any]:
    """Without a driver in vLLM's process alone: the trainer's process has loaded its own."""
    kept = os.environ.pop("LD_LIBRARY_PATH")
    engine = start(directory)
    os.environ["LD_LIBRARY_PATH"] = kept
    model = make_model(4, **WIDE)
    engine.sync(weights(model))
    results = {"route": route(), "off": off_by(engine, model)}
    engine.close()
    return results


def refused() -> dict[str, str]:
    """The driver's error messages for two invalid handles."""
    results: dict[str, str] = {}
    memory = SharedMemory.allocate(1)
    for name, handle in {"of its own": memory.handle(), "of nobody": bytes(64)}.items():
        try:
            SharedMemory.open(handle, 1)
        except NotShared as error:
            results[name] = str(error)
    memory.close()
    return results


def main(file: Path) -> None:
    distributed.join_group()
    os.environ["CUDA_VISIBLE_DEVICES"] = "0"
    ipc_transfer.BUCKET_BYTES = FEW_BYTES
    log = logging.getLogger("rlvr.rollout.vllm")
    log.setLevel(logging.INFO)
    handler = logging.StreamHandler()
    handler.emit = lambda record: LOGGED.append(record.getMessage())  # type: ignore[method-assign]
    log.addHandler(handler)
    with tempfile.TemporaryDirectory() as directory:
        make_model(0, **WIDE).save_pretrained(directory)
        result = {"within": within_the_gpu(directory), "without": without_a_driver(directory), "refused": refused()}
    file.write_text(json.dumps(result))
    distributed.end_process(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
