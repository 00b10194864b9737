"""`step` of tests/bench/gpu.py: a training step of `paper=lad_math` scaled to one GPU, and the estimate of its time."""

import contextlib
import json
import string
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hydra import compose
from omegaconf import DictConfig, OmegaConf
from transformers import PreTrainedModel

from rlvr.config import cost, memory
from rlvr.config.freeze import frozen_config
from rlvr.job.loop import TrainingRun
from rlvr.ledger import layout
from rlvr.ledger.attempt import StopFlag
from rlvr.ledger.cause import Cause
from rlvr.ledger.journal import JournalWriter, read
from rlvr.model.tokenizer import word_tokenizer
from tests.support.composing import composing

# Instead of the paper's 256; the step still has eight updates, each with a group of 8 responses.
PROMPTS = 8
STEPS = 2  # the first warms up
BENCHMARKS = ("math500", "olympiadbench", "minerva", "aime24", "aime25", "amc")
END = "end"  # one word of a large vocabulary: random weights hardly ever sample it, so that responses have full length
TIMED = ("wait", "sync", "batch", "train")  # parts of a step


def lad_step(model: PreTrainedModel, tokens: int, gpu: str, *, python: str | None) -> dict[str, Any]:
    """Seconds of a step with 64 responses of `tokens` tokens, its parts, and the cost model's estimate for them.

    model: written to a temporary directory, where the run reads it. gpu: a name of `cluster.gpu`. python: of an
    environment with vLLM; None: this one."""
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        model.save_pretrained(directory / "model")
        word_tokenizer([*string.ascii_lowercase, END], END).save_pretrained(directory / "model")
        config = _config(directory, tokens, gpu, python)
        run_dir = directory / "runs" / "x"
        with contextlib.ExitStack() as stack:
            journal = stack.enter_context(contextlib.closing(JournalWriter(run_dir, 1)))
            run = stack.enter_context(contextlib.closing(TrainingRun(config, run_dir, None, journal)))
            if run.train(StopFlag()) is not Cause.OK:
                raise RuntimeError("the run failed: the log above has the reason")
        (last,) = (r.metrics for r in read(layout.journal(run_dir)).records if r.step == STEPS)
        plain: Any = OmegaConf.to_container(config)
        known = memory.architecture_of_model(plain["model"])
        assert known is not None
    return {
        "value": last["time/step_s"],
        "peer_value": predicted_s(plain, known, last["response/length"]),
        "parts": {name: last[f"time/{name}_s"] for name in TIMED},
    }


def setting(tokens: int, gpu: str) -> memory.MemorySetting:
    """What decides how much memory the step needs, beside the model."""
    with tempfile.TemporaryDirectory() as place:
        plain: Any = OmegaConf.to_container(_config(Path(place), tokens, gpu, None))
    return memory.setting_of(plain)


def predicted_s(config: Mapping[str, Any], model: memory.Architecture, length: float) -> float:
    """Seconds of a step by the cost model, if responses have `length` tokens on average: otherwise it would assume that
    most of them end early, and these do not."""
    return cost.step_s(config, model, mean=length)


def _config(directory: Path, tokens: int, gpu: str, python: str | None) -> DictConfig:
    problems = directory / "problems.jsonl"
    lines = [{"problem": " ".join(string.ascii_lowercase[at:]), "answer": str(at)} for at in range(PROMPTS)]
    problems.write_text("".join(json.dumps(line) + "\n" for line in lines))
    words = [  # random weights have no template, and no response is right
        *("paper=lad_math", f"model.path={directory / 'model'}", "model.chat=false", "rollout.dynamic_sampling=none"),
        *(f"~task.test.{name}" for name in BENCHMARKS[1:]),
        *(f"task.train={problems}", f"task.test.{BENCHMARKS[0]}={problems}", "task.template='{problem}'"),
        *(f"rollout.prompts={PROMPTS}", f"rollout.max_tokens={tokens}", "rollout.overdraw=null"),
        *(f"rollout.engine.python={python or 'null'}", "rollout.engine.max_cache_gb=16", f"steps={STEPS}"),
        *(f"evaluation.every={STEPS}", "evaluation.problems=1", "evaluation.samples=1", "evaluation.k=[1]"),
        *("checkpoint.every=100", "checkpoint.minutes=null", "tracker=none"),
        *("cluster.gpus=1", "cluster.ranks=1", f"cluster.gpu={gpu}"),
    ]
    with composing():
        return OmegaConf.create(frozen_config(compose("run", words), {}))
