"""An actor takes only models whose logits are the output of their head."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import CohereConfig, CohereForCausalLM, Gemma2Config, Gemma2ForCausalLM

from rlvr.trainer.actor import Actor, check_head
from tests.trainer.tiny import make_trainer

TINY: dict[str, Any] = {
    "vocab_size": 16,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def test_soft_capped_logits_are_refused() -> None:
    torch.manual_seed(0)
    model = Gemma2ForCausalLM(Gemma2Config(**TINY, head_dim=4, final_logit_softcapping=30.0))
    with pytest.raises(ValueError, match="changes its logits after the output embeddings"):
        make_trainer(model)


def test_scaled_logits_are_refused() -> None:
    torch.manual_seed(0)
    with pytest.raises(ValueError, match="soft-capping or scaling is not supported"):
        check_head(Actor(CohereForCausalLM(CohereConfig(**TINY, logit_scale=0.25)).eval(), 1.0))


def test_the_same_architecture_without_a_cap_is_accepted() -> None:
    torch.manual_seed(0)
    model = Gemma2ForCausalLM(Gemma2Config(**TINY, head_dim=4, final_logit_softcapping=None)).eval()
    check_head(Actor(model, 1.0))
