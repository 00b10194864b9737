"""TRL's trainer beside ours: the same gradients, the same base policy and problems, and runs that go on when killed."""

import copy
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra.utils import instantiate
from torch import Tensor

from rlvr.config.freeze import frozen_config
from rlvr.config.imports import child_environment
from rlvr.config.registry import Registry
from rlvr.config.trl import arguments
from rlvr.job import process
from rlvr.job.trl import weights_of
from rlvr.ledger import layout
from rlvr.ledger.cause import Cause
from rlvr.ledger.journal import read
from rlvr.ledger.runs import to_yaml, write_run
from rlvr.model.tokenizer import word_tokenizer
from rlvr.objective.batch import Batch
from tests.trainer.tiny import batch, gradients, make_trainer, plain_logp, qwen2, worst

pytestmark = [pytest.mark.slow, pytest.mark.real]

CLOSE = 2e-6  # float32 rounding; the largest seen is 8.5e-7 of the largest gradient
LONGEST = 8
# The command that equals each of TRL's loss types (docs/objectives.md).
EQUAL = {
    "grpo": ["loss=grpo", "trainer.aggregation=seq-mean-token-mean"],
    "dr_grpo": ["loss=dr_grpo", "trainer.aggregation=seq-mean-token-sum-norm"],
    "dapo": ["loss=dapo", "rollout.overlong_buffer=null"],
    "bnpo": ["loss=grpo"],  # of one micro-batch
    "gspo": ["loss=gspo"],
    "cispo": ["loss=cispo"],
    "sapo": ["loss=sapo"],
    "delta": ["loss=grpo", "loss.dual_clip=1.2"],
    "k3": ["loss=grpo", "trainer.kl=0.5"],
    "k3_ratio": ["loss=grpo", "trainer.kl=0.5", "trainer.kl_estimator=k3_ratio"],
}


def off_policy(model: Any) -> Batch:
    """Responses of 1 to 6 tokens whose probabilities have since moved, on both sides of every bound."""
    data = batch(lengths=[6, 1, 3, 2, 2, 5, 4, 6, 1])
    logp = torch.nn.utils.rnn.pad_sequence([row.detach() for row in plain_logp(model, data)], batch_first=True)
    old, ref = 0.3 * torch.randn((2, *logp.shape), generator=torch.Generator().manual_seed(1))
    return Batch(**{**vars(data), "logp_old": logp + old, "logp_ref": logp + ref})


def of_trl(plain: Mapping[str, Any], model: Any, data: Batch, folder: Path, name: str) -> dict[str, Tensor]:
    """Gradient of GRPOTrainer's loss on the batch."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    typed = {**arguments(plain), "beta": 0.0, "use_cpu": True, "report_to": "none", "output_dir": str(folder)}
    typed |= {"loss_type": "bnpo"} if name == "bnpo" else {}
    trainer = GRPOTrainer(
        model=model,
        args=GRPOConfig(**typed, max_completion_length=LONGEST),
        processing_class=word_tokenizer([f"w{i}" for i in range(14)] + ["end"], "end"),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        train_dataset=Dataset.from_dict({"prompt": ["w1"] * 3}),
    )
    trainer.beta, trainer.current_gradient_accumulation_steps = plain["program"]["kl"], 1
    inputs = {"prompt_ids": data.prompt[data.group], "prompt_mask": data.prompt_mask[data.group].long()}
    inputs |= {"completion_ids": data.tokens, "completion_mask": data.mask.long(), "advantages": data.advantage}
    inputs |= {
        "old_per_token_logps": data.logp_old,
        "ref_per_token_logps": data.logp_ref,
        "num_items_in_batch": data.mask.sum(),
    }
    trainer.model.train()
    trainer.compute_loss(trainer.model, inputs).backward()
    return {name: p.grad for name, p in trainer.model.named_parameters()}


@pytest.mark.parametrize("name", EQUAL)
def test_the_gradient_is_that_of_grpo_trainer(name: str, tmp_path: Path) -> None:
    words = ["program=trl", *EQUAL[name], "rollout.prompts=3", "rollout.samples=3", "trainer.updates=1"]
    config, choices = Registry().compose(words)
    plain, knobs, model = frozen_config(config, choices), config.trainer, qwen2()
    of_trainer = {"aggregation": knobs.aggregation, "kl": knobs.kl, "kl_estimator": knobs.kl_estimator}
    ours = make_trainer(copy.deepcopy(model), instantiate(config.loss), max_tokens=LONGEST, **of_trainer)
    data = off_policy(model)
    ours.learn(data)
    assert worst(gradients(ours), of_trl(plain, model, data, tmp_path, name)) < CLOSE


def test_adapters_are_part_of_the_weights_that_are_evaluated() -> None:
    """The function of a model with adapters is that of the model with these weights."""
    from peft import LoraConfig, get_peft_model

    adapted: Any = get_peft_model(qwen2(), LoraConfig(r=3, lora_alpha=7, target_modules="all-linear"))
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter)
    plain, words = qwen2(seed=1), torch.arange(12)[None]
    assert not plain.load_state_dict(dict(weights_of(adapted)), strict=False).unexpected_keys
    plain.tie_weights()
    assert not torch.allclose(plain(words).logits, qwen2()(words).logits, atol=0.1)
    torch.testing.assert_close(plain(words).logits, adapted(words).logits, rtol=1e-4, atol=1e-4)


WORDS = ["loss=grpo", "task=coins", "model=coins_tiny", "model.steps=150", "steps=4", "checkpoint.every=1"]
WORDS += ["evaluation.every=2", "evaluation.samples=2", "evaluation.k=[1,2]", "evaluation.problems=8"]
WORDS += ["rollout.prompts=4", "rollout.samples=4", "trainer.updates=2"]


def written(run_dir: Path, *words: str) -> Path:
    run_dir.mkdir(parents=True)
    plain = frozen_config(*Registry().compose([*WORDS, *words]))
    write_run(run_dir, to_yaml(plain), {"name": "x", "overrides": [], "import_paths": []})
    return run_dir


def metrics(run_dir: Path) -> dict[int, dict[str, float]]:
    """What does not depend on the machine, by step."""
    records = read(layout.journal(run_dir)).records
    assert len({record.step for record in records}) == len(records)
    timed = ("time/", "throughput/")
    return {r.step: {k: v for k, v in r.metrics.items() if not k.startswith(timed)} for r in records}


@pytest.mark.smoke
def test_a_run_that_was_killed_goes_on_as_if_it_had_not_been(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    whole, killed, ours = (written(runs / f"{n}", f"program={p}") for n, p in enumerate(("trl", "trl", "rlvr")))
    assert process.run(whole) == (Cause.OK, "")
    job = subprocess.Popen([sys.executable, "-P", "-m", "rlvr.job", killed], env=child_environment())
    deadline = time.monotonic() + 300
    while not layout.checkpoint(layout.checkpoints(killed), 2).exists():
        assert job.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.002)
    os.kill(job.pid, signal.SIGKILL)
    job.wait()
    assert process.run(killed) == (Cause.OK, "")
    assert "resuming from step-0000000" in layout.log(layout.attempt(killed, 2)).read_text()
    assert metrics(killed) == metrics(whole)
    assert list(metrics(whole)) == [0, 1, 2, 3, 4]

    assert process.run(ours) == (Cause.OK, "")
    at_start, of_ours = metrics(whole)[0], metrics(ours)[0]
    assert at_start == {name: of_ours[name] for name in at_start}
    assert metrics(whole)[1]["reward/unparsable"] < 0.5
