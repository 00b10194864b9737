import contextlib
from typing import Any

import pytest
import torch
from transformers import (
    BertGenerationConfig,
    BertGenerationDecoder,
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
)

from rlvr.trainer.actor import Actor, check_head
from rlvr.trainer.layout import Layout
from tests.trainer.tiny import make_trainer

TINY: dict[str, Any] = {
    **{"vocab_size": 16, "hidden_size": 16, "intermediate_size": 32},
    **{"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2},
}


def test_only_logits_that_are_the_output_of_the_head_are_accepted() -> None:
    def gemma(cap: float | None) -> Gemma2ForCausalLM:
        torch.manual_seed(0)
        return Gemma2ForCausalLM(Gemma2Config(**TINY, head_dim=4, final_logit_softcapping=cap)).eval()

    with pytest.raises(ValueError, match="changes its logits after the output embeddings"):
        make_trainer(gemma(30.0))
    check_head(Actor(gemma(None), 1.0))
    with pytest.raises(ValueError, match="soft-capping or scaling is not supported"):
        check_head(Actor(CohereForCausalLM(CohereConfig(**TINY, logit_scale=0.25)).eval(), 1.0))


def test_a_model_that_reads_what_follows_is_no_policy() -> None:
    for decoder, message in ((True, None), (False, "is no causal model: what it computes at a token depends on those")):
        torch.manual_seed(0)
        config = BertGenerationConfig(**{**TINY, "is_decoder": decoder, "initializer_range": 0.2})
        actor = Actor(BertGenerationDecoder(config).eval(), 1.0)
        with pytest.raises(ValueError, match=message) if message else contextlib.nullcontext():
            check_head(actor)


def operations(tensor: torch.Tensor) -> set[str]:
    """Names of the operations that lead to a tensor."""
    names, ahead = set[str](), [tensor.grad_fn]
    while ahead:
        node = ahead.pop()
        if node is not None:
            names.add(node.name())
            ahead += [before for before, _ in node.next_functions]
    return names


def test_the_gradient_of_a_last_prompt_token_that_many_responses_share_is_rounded_once() -> None:
    """It predicts 512 first tokens. bfloat16 has 8 bits, half a unit in the last place is 0.2 %: so each of the
    added gradients is rounded, and their sum. Rounded after each addition, as torch does on a GPU in `index_select`,
    though not on a CPU, sums would err by more than 1 %."""
    torch.manual_seed(0)
    actor = Actor(LlamaForCausalLM(LlamaConfig(**TINY)).bfloat16(), 1.0)
    n = 512
    target, weight = torch.randint(16, (n,)), torch.rand(n)
    none = torch.zeros(0, dtype=torch.int64)
    tokens, last = torch.tensor([[3, 1, 4, 1]]), torch.full((n,), 3)
    seen = list[torch.Tensor]()
    actor.model.get_decoder().register_forward_hook(lambda _m, _i, output: seen.append(output.last_hidden_state))
    logp = actor(Layout(tokens, None, None, last, target, torch.arange(n), 4, none, none, 0)).logp
    assert "_RowsBackward" in operations(logp)
    assert "IndexSelectBackward0" not in operations(logp)
    (gradient,) = torch.autograd.grad((logp * weight).sum(), seen)

    hidden = seen[0][0, 3].detach().double().requires_grad_()
    exact_logp = (actor.model.lm_head.weight.detach().double() @ hidden).log_softmax(0)[target]
    (exact,) = torch.autograd.grad((exact_logp * weight).sum(), hidden)
    assert float((gradient[0, 3].double() - exact).norm() / exact.norm()) < 0.004
