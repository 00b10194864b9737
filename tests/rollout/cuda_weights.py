"""The program that tests/rollout/test_ipc_transfer.py runs on the fake CUDA, with the stand-in for vLLM: `cuda_weights
FILE`.

Engines are given weights that lie on the fake GPU; their samples are then compared with these weights.
"""

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
from rlvr.rollout.child import Child, EngineLost
from rlvr.rollout.cuda_ipc import NotShared, SharedMemory
from rlvr.rollout.vllm import VllmEngine
from rlvr.trainer import distributed
from tests.rollout.test_native import full_forward, make_model, make_requests, make_sampling

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


def killing(engine: VllmEngine, pairs: Iterator[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
    """The weights, after the first of which the engine's process is killed."""
    yield next(pairs)
    assert isinstance(engine.client.process, Child)
    os.kill(engine.client.process.process.pid, signal.SIGKILL)
    yield from pairs


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
    """A sync of an engine that is awake, one of an engine that sleeps, and one amid which its process is killed."""
    engine = start(directory)
    first, second, third = (make_model(seed, **WIDE) for seed in (1, 2, 3))
    engine.sync(weights(first))
    results: dict[str, Any] = {"route": route(), "awake": off_by(engine, first)}
    engine.sleep()
    engine.sync(weights(second))
    results |= {"asleep": off_by(engine, second), "again": route(), "copied": engine._node_weights._memory is not None}
    try:
        engine.sync(killing(engine, weights(third)))
    except EngineLost as lost:
        results["lost"] = str(lost)
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
