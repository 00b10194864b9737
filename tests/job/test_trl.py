"""TRL's trainer beside ours: the same gradients, the same base policy and problems, and runs that go on when killed."""

import copy
import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
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
from rlvr.job.trl import leaving_out, trainer_class, weights_of
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
    "rloo": ["loss=rloo", "trainer.aggregation=seq-mean-token-sum"],
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


def trl_trainer(plain: Mapping[str, Any], model: Any, folder: Path, name: str, reward: Any, **given: Any) -> Any:
    """TRL's trainer of a run of 3 prompts. given: `rollout`, in place of what it samples; `kept`, of its responses."""
    from datasets import Dataset

    kind, settings = trainer_class(plain)

    class Given(kind):
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            return given["rollout"]

    typed = {**arguments(plain), "beta": 0.0, "use_cpu": True, "report_to": "none", "output_dir": str(folder)}
    typed |= {"loss_type": "bnpo"} if name == "bnpo" else {}
    trainer = leaving_out(Given if "rollout" in given else kind, given["kept"])(
        model=model,
        args=settings(**typed, max_completion_length=LONGEST),
        processing_class=word_tokenizer([f"w{i}" for i in range(14)] + ["end"], "end"),
        reward_funcs=reward,
        train_dataset=Dataset.from_dict({"prompt": ["w1"] * 3}),
    )
    trainer.beta, trainer.current_gradient_accumulation_steps = plain["program"]["kl"], 1
    trainer.model.train()
    return trainer


def of_trl(
    plain: Mapping[str, Any], model: Any, data: Batch, folder: Path, name: str, failed: int = -1
) -> dict[str, Tensor]:
    """Gradient of the loss of TRL's trainer on the batch. failed: a group in which the verifier failed."""
    rollout = {"prompt_ids": data.prompt[data.group], "prompt_mask": data.prompt_mask[data.group].long()}
    rollout |= {"completion_ids": data.tokens, "completion_mask": data.mask.long(), "advantages": data.advantage}
    rollout |= {"old_logps": (data.logp_old * data.mask).sum(1), "old_per_token_logps": data.logp_old}
    rollout |= {"ref_per_token_logps": data.logp_ref, "num_items_in_batch": data.mask.sum()}
    kept = (data.group != failed).tolist()
    trainer = trl_trainer(plain, model, folder, name, lambda **_: [], rollout=rollout, kept=lambda: kept)
    trainer.compute_loss(trainer.model, trainer._generate_and_score_completions([])).backward()
    return {name: p.grad for name, p in trainer.model.named_parameters()}


def composed(name: str) -> tuple[Any, dict[str, Any]]:
    words = ["program=trl", *EQUAL[name], "rollout.prompts=3", "rollout.samples=3", "trainer.updates=1"]
    config, choices = Registry().compose(words)
    return config, frozen_config(config, choices)


def of_ours(config: Any, model: Any, data: Batch) -> dict[str, Tensor]:
    knobs = config.trainer
    of_trainer = {"aggregation": knobs.aggregation, "kl": knobs.kl, "kl_estimator": knobs.kl_estimator}
    ours = make_trainer(copy.deepcopy(model), instantiate(config.loss), max_tokens=LONGEST, **of_trainer)
    ours.learn(data)
    return gradients(ours)


def sampled(model: Any, name: str) -> Batch:
    """A batch for a loss; TRL's RLOO and ours agree on what the policy itself has sampled."""
    data = off_policy(model)
    logp = torch.nn.utils.rnn.pad_sequence([row.detach() for row in plain_logp(model, data)], batch_first=True)
    return replace(data, logp_old=logp) if name == "rloo" else data


@pytest.mark.parametrize("name", EQUAL)
def test_the_gradient_is_that_of_trls_trainer(name: str, tmp_path: Path) -> None:
    (config, plain), model = composed(name), qwen2()
    data = sampled(model, name)
    assert worst(of_ours(config, model, data), of_trl(plain, model, data, tmp_path, name)) < CLOSE


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "dapo", "k3", "rloo"])
def test_a_group_whose_verifier_failed_is_in_no_average(name: str, tmp_path: Path) -> None:
    """The gradient is ours of the other groups alone. The second of three groups failed, rows 3 to 5 of nine."""
    (config, plain), model = composed(name), qwen2()
    data = sampled(model, name)
    rest = [0, 1, 2, 6, 7, 8]
    rows = {key: value[rest] for key, value in vars(data).items() if value is not None and len(value) == 9}
    rows |= {"group": data.group[rest] // 2, "prompt": data.prompt[::2], "prompt_mask": data.prompt_mask[::2]}
    ours = of_ours(config, model, Batch(**{**vars(data), **rows}))
    assert worst(ours, of_trl(plain, model, data, tmp_path, name, failed=1)) < CLOSE


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo"])
def test_advantages_are_trls(name: str, tmp_path: Path) -> None:
    config, plain = composed(name)
    reward, group = torch.tensor([0.0, 1, 1, 0.5, 0.25, 0, 1, 1, 1]), torch.arange(3).repeat_interleave(3)
    trainer = trl_trainer(plain, qwen2(), tmp_path, name, lambda **_: reward.tolist(), kept=lambda: [True] * 9)
    found = trainer._generate_and_score_completions([{"prompt": "w1"}] * 9)["advantages"]
    ours = functools.partial(instantiate(config.advantage), **({"epsilon": 1e-4} if name == "grpo" else {}))
    torch.testing.assert_close(found, ours(reward, group))


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
