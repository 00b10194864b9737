"""Native engine beside vLLM on the CPU, as runs use them: one model, the same prompts, with log-probabilities."""

import contextlib
import itertools
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
    for work, dtype in itertools.product(rollout.works(quick=quick), rollout.DTYPES):
        with contextlib.ExitStack() as stack:
            engines = {"ours": rollout.native(work, dtype)}
            if not quick:
                engines |= {"peer": stack.enter_context(contextlib.closing(_vllm(work, dtype)))}
            sides = {name: timed(rollout.sampling(engine, work)) for name, engine in engines.items()}
            seconds = in_turn(sides, work.rounds)
        speed = {name: work.num_tokens / of_side for name, of_side in seconds.items()}
        peer = None if quick else "vLLM on the CPU, eager"
        yield row(f"{work.name} beside vLLM, {dtype}", speed["ours"], "tokens/s", peer, speed.get("peer"), target=1.0)


def _vllm(work: rollout.Sampled, dtype: str) -> VllmEngine:
    """An engine that has loaded the model, whose directory is temporary."""
    with tempfile.TemporaryDirectory() as directory:
        rollout.make_model(work, dtype).save_pretrained(directory)
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
        engine.generate([Request(rollout.make_prompts(work)[0], 1, 0)], Sampling(max_tokens=1, seed=0, step=0))
    return engine
