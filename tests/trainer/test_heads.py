import copy
import logging
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rlvr.model.table_policy import TableConfig, TablePolicy
from rlvr.objective.batch import Batch
from rlvr.trainer import batch_noise
from rlvr.trainer.heads import LogZ, Value
from tests.trainer.losses import with_log_z, with_value
from tests.trainer.tiny import batch, gradients, learned, make_trainer, qwen2, sequences, weights, worst

CLOSE = 2e-6
LAYOUTS = [{}, {"token_budget": 1}, {"packing": False}, {"shared_prompt": "always"}, {"shared_prompt": "never"}]


def fill(trainer: Any, seed: int = 0) -> dict[str, Tensor]:
    """Set random weights of the heads, which start at 0, where some gradients vanish; return the weights."""
    generator = torch.Generator().manual_seed(seed)
    values = {}
    with torch.no_grad():
        for name, p in trainer.actor.heads.named_parameters():
            if "decoder" in name:  # of a critic: it has weights
                continue
            values[name] = 0.3 * torch.randn(p.shape, generator=generator)
            p.copy_(values[name])
    return values


def normal(x: Tensor) -> Tensor:
    """Mean 0 and deviation 1 in each row; 1e-5 keeps a constant row finite."""
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()


def by_hand(
    head: nn.Module, name: str, values: dict[str, Tensor], data: Batch, keep: Tensor | None, only: str = ""
) -> dict[str, Tensor]:
    """Gradient of `with_value`, or one part of it, or of `with_log_z` in float64, one sequence at a time."""
    model = copy.deepcopy(qwen2()).double()
    head = head.double()
    head.load_state_dict({k.removeprefix(f"{name}."): v.double() for k, v in values.items()})
    total = torch.zeros((), dtype=torch.float64)
    for b, (prompt, response) in enumerate(sequences(data)):
        if not len(response):
            continue
        out = model(input_ids=torch.cat([prompt, response])[None], output_hidden_states=True, use_cache=False)
        n, hidden = len(prompt), out.hidden_states[-1][0]
        logp = out.logits[0, n - 1 : -1].log_softmax(-1).gather(-1, response[:, None])[:, 0]
        if name == "value":
            ratio = (logp - data.logp_old[b][data.mask[b]].double()).exp()
            a = data.advantage[b].double()
            surrogate = -torch.minimum(ratio * a, ratio.clamp(0.8, 1.2) * a)
            v = nn.functional.linear(normal(hidden[n - 1 : -1]), head.out.weight, head.out.bias)[:, 0]
            error = (v - data.reward[b] - 1).square()
            loss = {"": surrogate + error, "surrogate": surrogate, "value": error}[only]
            total = total + loss.sum() / data.mask.sum()
        else:
            x = hidden[:n].mean(0)
            for index in range(2):
                x = head.norm[index](nn.functional.gelu(head.inner[index](x)))
                if keep is not None:
                    x = x * keep[int(data.group[b]), index] / 0.9
            z = head.out(x)[0]
            total = total + (z + logp.sum() - data.advantage[b] - 3).square() / data.mask.any(1).sum()
    total.backward()
    actual = {k: p.grad for k, p in model.named_parameters()}
    return {**actual, **{f"heads.{name}.{k}": p.grad for k, p in head.named_parameters()}}  # type: ignore[dict-item]


@pytest.mark.parametrize("knobs", LAYOUTS)
def test_value_gradient_is_that_of_a_float64_loop(knobs: dict[str, Any]) -> None:
    trainer = make_trainer(loss=with_value, **knobs)
    expected = by_hand(Value(16), "value", fill(trainer), batch(), None)
    trainer.learn(batch())
    assert worst(gradients(trainer), expected) < CLOSE


@pytest.mark.parametrize("knobs", LAYOUTS)
def test_a_critic_learns_the_value_and_the_policy_the_surrogate_alone(knobs: dict[str, Any]) -> None:
    trainer = make_trainer(loss=with_value, critic="own", **knobs)
    head_weights = {name.removeprefix("value."): value for name, value in fill(trainer).items()}
    policys, critics = (
        by_hand(Value(16), "value", head_weights, batch(), None, only=only) for only in ("surrogate", "value")
    )
    expected = {name: gradient for name, gradient in policys.items() if name.startswith("model.")}
    expected |= {f"heads.value.decoder.{n.removeprefix('model.')}": critics[n] for n in expected}
    expected |= {f"heads.value.value.out.{n}": critics[f"heads.value.out.{n}"] for n in ("weight", "bias")}
    trainer.learn(batch())
    assert worst(gradients(trainer), expected) < CLOSE


def test_a_critic_starts_as_the_policys_decoder_and_its_gradient_is_clipped_apart() -> None:
    trainer = make_trainer(loss=with_value, critic="own", clip_norm=1e-3)
    assert trainer.actor.critic is not None
    critics = dict(trainer.actor.critic.decoder.named_parameters())
    policys = dict(trainer.actor.model.get_decoder().named_parameters())
    assert critics.keys() == policys.keys()
    assert all(torch.equal(p, policys[name]) for name, p in critics.items())
    fill(trainer)
    metrics = trainer.learn(batch())
    actual = gradients(trainer)
    for name, is_critics in (("optim/grad_norm", False), ("optim/critic_grad_norm", True)):
        assert metrics[name] > 1e-3
        parts = [g for n, g in actual.items() if n.startswith("heads.") is is_critics]
        assert float(torch.cat([g.flatten() for g in parts]).norm()) == pytest.approx(1e-3, rel=1e-3)


@pytest.mark.parametrize("knobs", LAYOUTS)
def test_log_z_gradient_is_that_of_a_float64_loop_with_the_same_units_dropped(knobs: dict[str, Any]) -> None:
    trainer = make_trainer(loss=with_log_z, **knobs)
    keep = batch_noise.units_kept(batch(), 16, seed=0, update=0)
    assert not keep.all()
    expected = by_hand(LogZ(16), "log_z", fill(trainer), batch(), keep)
    trainer.learn(batch())
    assert worst(gradients(trainer), expected) < CLOSE


def test_the_outputs_for_a_batch_have_every_row_in_its_place() -> None:
    value, log_z = make_trainer(loss=with_value, token_budget=1), make_trainer(loss=with_log_z, token_budget=1)
    head_weights = fill(value)
    fill(log_z)
    data = batch()
    with_values, with_log_zs = value.policy_of(data), log_z.policy_of(data)
    assert with_values.value is not None
    assert with_log_zs.log_z is not None
    model = qwen2().eval()
    for b, (prompt, response) in enumerate(sequences(data)):
        if not len(response):
            continue
        ids = torch.cat([prompt, response])[None]
        hidden = model(input_ids=ids, output_hidden_states=True).hidden_states[-1][0, len(prompt) - 1 : -1]
        of_head = (head_weights["value.out.weight"], head_weights["value.out.bias"])
        expected = nn.functional.linear(normal(hidden), *of_head)[:, 0]
        assert torch.allclose(with_values.value[b, : len(response)], expected, atol=1e-5)
        assert not with_values.value[b, len(response) :].any()
    assert torch.equal(with_log_zs.log_z[0], with_log_zs.log_z[2])  # one prompt
    assert len(set(with_log_zs.log_z.tolist())) == 3
    assert torch.equal(with_log_zs.log_z, log_z.policy_of(data).log_z)  # no dropout outside training


def test_heads_start_at_zero_and_are_not_among_the_weights_for_the_engine() -> None:
    trainer = make_trainer(loss=with_value)
    seen, other = trainer.policy_of(batch()), make_trainer(loss=with_log_z).policy_of(batch())
    assert seen.value is not None
    assert other.log_z is not None
    assert not seen.value.any()
    assert not other.log_z.any()
    assert list(weights(trainer)) == [name for name, _ in qwen2().named_parameters()]


def test_heads_have_a_learning_rate_of_their_own() -> None:
    """AdamW's first step is the learning rate times the sign of the gradient."""
    trainer = make_trainer(loss=with_value, lr=1e-3, head_lr=0.05, eps=1e-12, schedule="linear", steps=2)
    before = weights(trainer)["model.norm.weight"]
    metrics = [trainer.learn(batch()) for _ in range(2)]
    bias = dict(trainer.actor.heads.named_parameters())["value.out.bias"].detach()
    assert [m["optim/lr"] for m in metrics] == [1e-3, 5e-4]
    # Towards reward + 1, by 0.05, then by half of it: AdamW without momentum, bias-corrected.
    assert 0.05 < float(bias) < 0.08
    assert float((weights(trainer)["model.norm.weight"] - before).abs().max()) < 2e-3


def test_a_table_policy_has_heads_too() -> None:
    for loss in (with_value, with_log_z):
        trainer = make_trainer(TablePolicy(TableConfig(vocab_size=16)), loss=loss, lr=0.05)
        with torch.no_grad():  # words that can never follow, as tasks have them
            dict(trainer.actor.named_parameters())["model.model.table.weight"][:, 11:] = -1e4
        losses = [trainer.learn(batch())["loss/total"] for _ in range(20)]
        assert losses[-1] < 0.7 * losses[0]


@pytest.mark.parametrize("loss", [with_value, with_log_z])
def test_groups_and_micro_batches_without_tokens_are_harmless(loss: Any, caplog: pytest.LogCaptureFixture) -> None:
    data = batch(lengths=[0, 0, 0, 2, 1, 3, 0, 0, 1])
    with caplog.at_level(logging.WARNING):
        cut, whole = (learned(data=data, loss=loss, token_budget=b) for b in (1, 10_000))
    assert worst(cut, whole) < CLOSE
