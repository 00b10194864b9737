"""What the trainer could only ignore, or fail at, is refused before launch."""

from __future__ import annotations

import pytest
from hydra import compose
from omegaconf import OmegaConf, open_dict

from rlvr.config import schema
from sweeps import launcher


def check(*overrides: str) -> None:
    with launcher.composing():
        config = compose("run", list(overrides), return_hydra_config=True)
    choices = OmegaConf.to_container(config.hydra.runtime.choices)
    assert isinstance(choices, dict)
    with open_dict(config):
        del config["hydra"]
    schema.check(config, {str(k): v for k, v in choices.items()})


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("loss=ppo advantage=grpo", "loss=ppo trains a value head on returns, which advantage=grpo does not give"),
        ("loss=grpo advantage=gae", "advantage=gae needs a value head and loss=grpo trains none"),
        ("loss=flowrl advantage=gae", "advantage=gae needs a value head and loss=flowrl trains none"),
        ("loss=grpo trainer.head_lr=1e-3", "trainer.head_lr=0.001 has no effect"),
        ("trainer.decay_steps=5", "trainer.decay_steps=5 has no effect with trainer.schedule=constant"),
        ("loss=grpo trainer.base_kl=false trainer.reference_offload=true", "nothing reads a frozen copy"),
        ("trainer.lora_alpha=8.0", "has no effect without trainer.lora_rank=RANK"),
        ("trainer.lora_rank=0", "must be 1 or more"),
        ("loss=flowrl trainer.lora_rank=4 trainer.reference_every=2", "without its adapters"),
        ("rollout.overlong_penalty=2.0", "has no effect without rollout.overlong_buffer=TOKENS"),
        ("rollout.overlong_buffer=8 rollout.max_tokens=4", "every response would be penalised"),
        ("loss=pacs rollout.overlong_buffer=4", "which loss=pacs takes alone"),
        (
            "loss=dapo advantage=maxrl",
            r"rollout.overlong_buffer=0.2 makes rewards other .* rollout.overlong_buffer=null",
        ),
        ("loss=dapo rollout.overlong_buffer=null", "Add it, or pass rollout.overlong_penalty=1.0"),
        ("loss=maxrl advantage=maxrl_control_variate", "Pass rollout.dynamic_sampling=none"),
        ("loss=cross_entropy task=digits rollout.overlong_filter=true", "which learns known answers, not samples"),
        ("rollout.overlong_buffer=0", "must be greater than 0"),
        ("trainer.schedule=wsd trainer.decay_steps=0", "must be 1 or more"),
        ("trainer.final_lr=0.1", "trainer.final_lr=0.1 has no effect with trainer.schedule=constant"),
        ("trainer.schedule=cosine trainer.final_lr=1.5", "must be a share of lr"),
        ("loss=ppo trainer.head_lr=0.0", "must be greater than 0"),
        ("loss=grpo trainer.reference_every=4", "nothing reads a reference"),
        ("loss=flowrl trainer.reference_every=0", "must be 1 or more"),
        ("loss=flowrl trainer.reference_resets_optimiser=true", "pass trainer.reference_every=STEPS"),
    ],
)
def test_impossible_combinations_are_refused(overrides: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check(*overrides.split())


@pytest.mark.parametrize(
    "overrides",
    [
        "loss=ppo trainer.head_lr=1e-3 trainer.kl=0.1 trainer.reference_every=4",
        "loss=flowrl trainer.reference_every=4 trainer.reference_resets_optimiser=true trainer.head_lr=1e-3",
        "loss=kl_cov trainer.entropy=0.01 trainer.kl=0.1",
        "loss=clip_cov cluster.ranks=2",
        "loss=entadv advantage=rloo trainer.epochs=2",
        "loss=flowrl beta=3",
    ],
)
def test_possible_combinations_are_not(overrides: str) -> None:
    check(*overrides.split())
