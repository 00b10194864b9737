"""Native engine beside vLLM on the CPU, as runs use them: one model, the same prompts, with log-probabilities."""

import contextlib
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

from rlvr.records import Request, Sampling
from rlvr.rollout.vllm import VllmEngine
from tests.bench import rollout
from tests.bench.row import Row, in_turn, row, timed

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-vllm" / "bin" / "python"


def rows(*, quick: bool) -> Iterator[Row]:
    """New tokens per second; `quick`: without vLLM, whose environment is made on first use."""
    if not quick and not PYTHON.exists():
        subprocess.run(["make", "vllm-env"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    new_tokens = 8 if quick else rollout.NEW_TOKENS
    for dtype in rollout.DTYPES:
        with contextlib.ExitStack() as stack:
            engines = {"ours": rollout.native(dtype)}
            if not quick:
                engines |= {"peer": stack.enter_context(contextlib.closing(_vllm(dtype)))}
            sides = {name: timed(rollout.sampling(engine, new_tokens)) for name, engine in engines.items()}
            seconds = in_turn(sides, 1 if quick else rollout.ROUNDS)
        speed = {name: rollout.num_tokens(new_tokens) / of_side for name, of_side in seconds.items()}
        peer = None if quick else "vLLM on the CPU, eager"
        yield row(f"rollout beside vLLM, {dtype}", speed["ours"], "tokens/s", peer, speed.get("peer"), target=1.0)


def _vllm(dtype: str) -> VllmEngine:
    """An engine that has loaded the model, whose directory is temporary."""
    with tempfile.TemporaryDirectory() as directory:
        rollout.make_model(dtype).save_pretrained(directory)
        engine = VllmEngine(
            Path(directory),
            device=torch.device("cpu"),
            eos_token_ids=[-1],
            dtype=dtype,
            python=str(PYTHON),
            eager=True,
            max_batch_sequences=512,
            max_cache_gb=1.0,
            canary=None,
            timeout_s=600,
        )
        engine.generate([Request(rollout.make_prompts()[0], 1, 0)], Sampling(max_tokens=1, seed=0, step=0))
    return engine
