import copy
import functools
import logging
from dataclasses import replace
from typing import Any, get_args

import pytest
import torch
from torch import Tensor, nn
from transformers import MistralConfig, MistralForCausalLM, PreTrainedModel

from rlvr.model.table_policy import TableConfig, TablePolicy
from rlvr.objective import reduce
from rlvr.objective.batch import Batch, Policy, Terms, needs, whole_groups
from tests.trainer.test_actor import TINY
from tests.trainer.tiny import (
    batch,
    gradients,
    learned,
    make_trainer,
    plain_logp,
    qwen2,
    sequences,
    surrogate,
    weights,
    worst,
)

# Float32 rounding; the largest seen is 4e-7 of the largest gradient.
CLOSE = 2e-6


def by_hand(
    model: PreTrainedModel, data: Batch, *, temperature: float = 1.0, of_problems: bool = False
) -> dict[str, Tensor]:
    """Gradient of the mean of the clipped surrogate over tokens, or over problems of that over each problem's tokens,
    in float64, one sequence at a time, one number at a time."""
    model = copy.deepcopy(model).double()
    total = torch.zeros((), dtype=torch.float64)
    num_tokens = {int(g): int(data.mask[data.group == g].sum()) for g in data.group.unique()}
    for b, logp in enumerate(plain_logp(model, data, temperature)):
        n = num_tokens[int(data.group[b])] * len(num_tokens) if of_problems else sum(num_tokens.values())
        for t in range(len(logp)):
            ratio = (logp[t] - data.logp_old[b, t].double()).exp()
            a = data.advantage[b].double()
            total = total - torch.minimum(ratio * a, ratio.clamp(0.8, 1.2) * a) / n
    total.backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    "knobs",
    [
        *({"shared_prompt": "always"}, {"shared_prompt": "never"}, {"packing": False, "shared_prompt": "never"}),
        *({"token_budget": 1, "shared_prompt": "always"}, {"token_budget": 20, "packing": False}),
        *({"activation_checkpointing": True}, {"temperature": 0.7}, {"token_budget": 1, "aggregation": "prompt-mean"}),
    ],
)
def test_gradient_is_that_of_a_float64_loop_over_sequences(tied: bool, knobs: dict[str, Any]) -> None:
    model = qwen2(tied=tied)
    of_problems = knobs.get("aggregation") == "prompt-mean"
    expected = by_hand(model, batch(), temperature=knobs.get("temperature", 1.0), of_problems=of_problems)
    assert worst(learned(model, **knobs), expected) < CLOSE


@pytest.mark.slow
def test_compiled_layers_have_the_same_gradient() -> None:
    expected = by_hand(qwen2(), batch())
    assert worst(learned(compile=True, activation_checkpointing=True), expected) < CLOSE


@pytest.mark.slow
def test_one_compiled_graph_serves_packed_micro_batches_of_every_shape() -> None:
    """As near to float64 as without compilation, for batches of other lengths; no further graph is compiled then."""
    torch._dynamo.reset()
    compiled, eager = (make_trainer(compile=c, token_budget=20, shared_prompt="always", lr=0.0) for c in (True, False))
    graphs = list[int]()
    others = ([2, 2, 6, 5, 1, 1, 3, 3, 4], [1, 6, 6, 6, 2, 4, 5, 0, 3])
    for seed, lengths in enumerate(([6, 1, 3, 0, 2, 5, 4, 6, 1], *others)):
        data = batch(seed=seed, lengths=lengths)
        metrics, expected = compiled.learn(data), eager.learn(data)
        assert metrics == pytest.approx(expected, rel=1e-5, abs=1e-6)
        assert worst(gradients(compiled), by_hand(qwen2(), data)) < CLOSE
        graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    assert graphs[0] > 0
    assert graphs[1] == graphs[2]


def test_offloading_a_reference_needs_a_gpu() -> None:
    with pytest.raises(ValueError, match="this machine has no GPU. Drop it"):
        make_trainer(base_kl=True, reference_offload=True)


def test_layouts_and_micro_batches_are_really_different() -> None:
    shared, apart = (make_trainer(shared_prompt=s).learn(batch())["tokens/train"] for s in ("always", "never"))
    # Responses of 6 1 3 | 0 2 5 | 4 6 1 tokens, of which the last is not read, to prompts of 5, 4 and 3 tokens.
    read = (5 + 0 + 2) + (0 + 1 + 4) + (3 + 5 + 0)
    assert (shared, apart) == (read + 12, read + 3 * 12)


def tokens_per_pass(**knobs: Any) -> list[int]:
    """Tokens that the model reads in each forward pass of one update."""
    trainer, read = make_trainer(**knobs), list[int]()
    hook = trainer.actor.model.get_input_embeddings().register_forward_hook(
        lambda _m, args, _out: read.append(args[0].numel())
    )
    trainer.learn(batch())
    hook.remove()
    return read


@whole_groups
def of_groups(policy: Policy, batch: Batch) -> Terms:
    assert batch.num_groups == len(batch.group.unique())
    return surrogate(policy, batch)


def test_a_micro_batch_has_no_more_tokens_than_its_budget_unless_one_group_has() -> None:
    """Groups of 5 + 7, 4 + 5 and 3 + 8 tokens, prompts shared. A loss that wants whole groups gets them. Others are cut
    into rows of 5 0 2 | 0 1 4 | 3 5 0 tokens beside prompts of 5, 4 and 3, at most 10 at once: 5 + 5 (with the second,
    of no token) and 5 + 2; 4 + 0 + 1 + 4, as the fourth has no token to learn from, but lies with the fifth; 3 + 3, 8.
    """
    assert sorted(tokens_per_pass(token_budget=1, shared_prompt="always", loss=of_groups)) == [9, 11, 12]
    assert sorted(tokens_per_pass(token_budget=20, shared_prompt="always")) == [12, 20]
    assert tokens_per_pass(shared_prompt="always") == [32]
    assert sorted(tokens_per_pass(token_budget=10, shared_prompt="always")) == [6, 7, 8, 9, 10]


def test_a_loss_over_groups_that_does_not_say_so_is_refused_where_they_are_cut() -> None:
    def undeclared(policy: Policy, batch: Batch) -> Terms:
        return surrogate(policy, replace(batch, advantage=batch.advantage * batch.group))

    make_trainer(loss=undeclared).learn(batch())
    with pytest.raises(ValueError, match="declare the loss with @whole_groups"):
        make_trainer(loss=undeclared, token_budget=1).learn(batch())


class Shift(nn.Module):
    """Adds the previous token, as some recurrent layers do, across the boundaries of packed sequences."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x + nn.functional.pad(x, (0, 0, 1, -1)))


def shifting() -> PreTrainedModel:
    model = qwen2()
    model.model.layers[1].mlp = Shift(model.model.layers[1].mlp)  # type: ignore[assignment]
    return model


def test_model_that_mixes_neighbours_falls_back_to_padded_rows_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    expected = by_hand(shifting(), batch())
    with caplog.at_level(logging.WARNING):
        trainer = make_trainer(shifting())
    assert "padded, not packed" in caplog.text
    trainer.learn(batch())
    assert worst(gradients(trainer), expected) < CLOSE
    with pytest.raises(ValueError, match="shared_prompt=always is impossible"):
        make_trainer(shifting(), shared_prompt="always")


def test_sliding_window_attention_is_kept() -> None:
    torch.manual_seed(0)
    model = MistralForCausalLM(MistralConfig(**TINY, sliding_window=3, initializer_range=0.2))
    expected = by_hand(model, batch())
    trainer = make_trainer(model)
    assert not trainer.packer.packing
    trainer.learn(batch())
    assert worst(gradients(trainer), expected) < CLOSE


def test_table_policy_learns_with_the_exact_gradient() -> None:
    table = TablePolicy(TableConfig(vocab_size=16))
    data = batch(advantage=torch.ones(9))
    expected = by_hand(table, data)
    trainer = make_trainer(table, lr=0.1)
    before = trainer.logp(data)
    trainer.learn(data)
    assert worst(gradients(trainer), expected) < CLOSE
    assert float(trainer.logp(data).sum()) > float(before.sum())  # every response was good


def kl_and_entropy_by_hand(model: PreTrainedModel, data: Batch) -> dict[str, Tensor]:
    """Token mean of −A·logp + 0.5·k3 − 0.1·H against a reference whose log-probabilities are the batch's."""
    model = copy.deepcopy(model).double()
    total = torch.zeros((), dtype=torch.float64)
    assert data.logp_ref is not None
    for b, (prompt, response) in enumerate(sequences(data)):
        if not len(response):
            continue
        logits = model(input_ids=torch.cat([prompt, response])[None]).logits[0, len(prompt) - 1 : -1]
        for t, z in enumerate(logits):
            p = z.softmax(-1)
            logp = p[response[t]].log()
            d = data.logp_ref[b, t].double() - logp
            total = total - data.advantage[b].double() * logp + 0.5 * (d.exp() - d - 1) + 0.1 * (p * p.log()).sum()
    (total / data.mask.sum()).backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def reinforce(policy: Policy, batch: Batch) -> Terms:
    return Terms(-batch.advantage[:, None] * policy.logp)


@needs("entropy")
def reinforce_with_entropy(policy: Policy, batch: Batch, *, weight: float) -> Terms:
    assert policy.entropy is not None
    return Terms(-batch.advantage[:, None] * policy.logp - weight * policy.entropy)


def test_kl_penalty_and_entropy_bonus_have_the_gradient_of_their_formulas() -> None:
    model = qwen2()
    expected = kl_and_entropy_by_hand(model, batch())
    assert worst(learned(loss=reinforce, kl=0.5, entropy=0.1, token_budget=1), expected) < CLOSE
    inside = functools.partial(reinforce_with_entropy, weight=0.1)
    assert worst(learned(loss=inside, kl=0.5), expected) < CLOSE


def test_reference_is_the_policy_at_the_start_and_stays_so() -> None:
    seen = list[Tensor]()

    @needs("reference")
    def looks(policy: Policy, batch: Batch) -> Terms:
        assert batch.logp_ref is not None
        seen.append(batch.logp_ref.clone())
        return Terms(-batch.advantage[:, None] * policy.logp)

    data = batch(logp_ref=None)
    trainer = make_trainer(loss=looks, lr=0.1)
    start = trainer.logp(data)
    trainer.learn(data)
    trainer.learn(data)
    assert torch.equal(seen[0], start)
    assert torch.equal(seen[1], start)
    assert not torch.equal(trainer.logp(data), start)


@pytest.mark.parametrize("aggregation", sorted({*get_args(reduce.Mode)} - {"token-mean"}))
def test_micro_batches_do_not_change_any_aggregation(aggregation: str) -> None:
    whole, cut = (make_trainer(aggregation=aggregation, token_budget=b, loss=of_groups) for b in (10_000, 1))
    metrics, of_cut = whole.learn(batch()), cut.learn(batch())
    assert worst(gradients(cut), gradients(whole)) < CLOSE
    assert metrics == pytest.approx(of_cut, rel=1e-5, abs=1e-7)
    of_rows = make_trainer(aggregation=aggregation, token_budget=1)
    rows = of_rows.learn(batch())
    assert worst(gradients(of_rows), gradients(whole)) < CLOSE
    assert rows.pop("tokens/train") > metrics.pop("tokens/train")  # every row reads its prompt
    assert metrics == pytest.approx(rows, rel=1e-5, abs=1e-7)


def test_bfloat16_gradient_is_near_and_weights_stay_float32() -> None:
    exact, coarse = make_trainer(), make_trainer(dtype="bfloat16", token_budget=1)
    exact.learn(batch())
    coarse.learn(batch())
    assert worst(gradients(coarse), gradients(exact)) < 0.05  # 8 bits of mantissa; seen: 0.02
    assert {w.dtype for w in weights(coarse).values()} == {torch.float32}


def test_clipping_scales_the_gradient_to_the_norm() -> None:
    free, clipped = make_trainer(), make_trainer(clip_norm=0.01)
    norm = free.learn(batch())["optim/grad_norm"]
    assert clipped.learn(batch())["optim/grad_norm"] == norm  # the metric is from before clipping
    squares = sum(float(g.double().square().sum()) for g in gradients(free).values())
    assert norm == pytest.approx(squares**0.5, rel=1e-6)
    expected = {name: g * (0.01 / norm) for name, g in gradients(free).items()}
    assert worst(gradients(clipped), expected) < CLOSE


def test_loss_sees_zero_at_padding() -> None:
    def looks(policy: Policy, batch: Batch) -> Terms:
        assert torch.equal(policy.logp[~batch.mask], torch.zeros(int((~batch.mask).sum())))
        return surrogate(policy, batch)

    make_trainer(loss=looks).learn(batch(padding=float("nan")))
