import re

import pytest

from tests.support.composed import check

pytestmark = pytest.mark.usefixtures("composing")

KNOWN = "loss=cross_entropy rollout.dynamic_sampling=none"
# The setting, the knob -> because of what it has no effect.
REFUSED = {
    "loss=grpo trainer.head_lr=0.001": "loss=grpo, which trains no head beside the model",
    "loss=grpo trainer.critic=own": "loss=grpo, which trains no value head, as ppo does",
    "paper=pacs_4b loss=grpo trainer.reference_every=1": "loss=grpo and trainer.kl=0, which read no reference",
    "loss=grpo trainer.reference_every=4": "loss=grpo and trainer.kl=0, which read no reference",
    "loss=flowrl trainer.reference_resets_optimiser=true": "trainer.reference_every=null",
    "loss=grpo trainer.base_kl=false trainer.reference_offload=true": "no frozen copy of the policy",
    "trainer.lora_alpha=8.0": "trainer.lora_rank=null",
    "loss=flowrl trainer.lora_rank=4 trainer.reference_every=2": "trainer.lora_rank=4: the reference is the policy",
    "trainer.lora_rank=4 trainer.reference_offload=true": "trainer.lora_rank=4: the reference is the policy",
    "trainer.packing=false trainer.shared_prompt=always": "trainer.packing=false: padded rows repeat the prompt",
    "trainer.final_lr=0.1": "trainer.schedule=constant",
    "trainer.schedule=cosine trainer.decay_steps=5": "trainer.schedule=cosine",
    "trainer.kl_estimator=k2": "trainer.kl=0",
    "loss=pacs trainer.aggregation=seq-mean-token-mean": "loss=pacs, which has one term per response",
    "loss=pacs trainer.kl=0.01 trainer.aggregation=prompt-mean": "loss=pacs, which has one term per response",
    "loss=flowrl trainer.aggregation=seq-mean-token-sum": "loss=flowrl, which has one term per response",
    "loss=lad loss.ratio=sequence trainer.aggregation=seq-mean-token-sum": "loss=lad, which has one term per response",
    "loss=pacs loss.std_floor=0.2": "loss.score=rloo",
    "trainer.base_kl=false max_kl=1.0": "trainer.base_kl=false",
    "rollout.dynamic_sampling=none rollout.max_rounds=3": "rollout.dynamic_sampling=none",
    "rollout.dynamic_sampling=drop rollout.overdraw=2.0": "rollout.dynamic_sampling=drop",
    "rollout.ahead=2 rollout.logp_old=engine rollout.overdraw=1.1": "rollout.ahead=2, where groups are drawn one after "
    "the other",
    "rollout.importance_cap=3.0": "rollout.importance=none",
    "rollout.importance_level=sequence": "rollout.importance=none",
    "rollout.truncation=ignored": "rollout.top_p=1",
    "rollout.overlong_penalty=2.0": "rollout.overlong_buffer=null",
    "loss=dapo rollout.overlong_buffer=null rollout.overlong_penalty=0.5": "rollout.overlong_buffer=null",
    **{
        f"{KNOWN} {knob}": "loss=cross_entropy, which learns known answers"
        for knob in (
            *("rollout.overlong_filter=true", "rollout.overlong_buffer=4.0", "rollout.reward=random"),
            *("rollout.ahead=1", "rollout.max_mismatch=1.0", "rollout.importance=truncate"),
        )
    },
}


@pytest.mark.slow
def test_a_knob_that_nothing_reads_is_refused() -> None:
    for typed, reason in REFUSED.items():
        with pytest.raises(ValueError, match=re.escape(f"{typed.split()[-1]} has no effect with {reason}")):
            check(*typed.split())


def test_the_refusal_says_what_to_type_where_a_recipe_sets_the_knob() -> None:
    with pytest.raises(ValueError, match=r"Drop it, or pass rollout.overlong_penalty=1.0 where a recipe"):
        check("loss=dapo", "rollout.overlong_buffer=null")
