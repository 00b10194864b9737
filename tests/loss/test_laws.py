"""What must hold for every loss: each function that conf/loss names with its own knobs, and FORMS of them."""

import math
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
import yaml
from hydra.utils import instantiate
from torch import Tensor

from rlvr.loss import dph
from rlvr.loss.clip_cov import clip_cov
from rlvr.loss.dppo import dppo
from rlvr.loss.flowrl import flowrl
from rlvr.loss.gmpo import gmpo
from rlvr.loss.grpo import grpo
from rlvr.loss.gspo import gspo
from rlvr.loss.high_entropy import high_entropy
from rlvr.loss.kl_cov import kl_cov
from rlvr.loss.lad import Ratio, lad
from rlvr.loss.lad_theoretical import lad_theoretical
from rlvr.loss.opsm import opsm
from rlvr.loss.pacs import Score, Weight, pacs, pacs_actor
from rlvr.loss.ppo import ppo
from rlvr.objective import divergence
from rlvr.objective.batch import Batch, Loss, Policy, declared_needs, first_pass_of, marks_of
from rlvr.objective.divergence import js
from rlvr.objective.reduce import aggregate, counts
from tests.support.composed import REGISTRY, check
from tests.support.factories import make_batch, make_policy


def names_by_function() -> dict[str, str]:
    """{function: the first file of conf/loss that names it, which is the name of a loss}."""
    names: dict[str, str] = {}
    for path in sorted((Path(__file__).parents[2] / "conf/loss").glob("*.yaml")):
        content = yaml.safe_load(path.read_text())
        names.setdefault(content.get("loss", content)["_target_"], path.stem)
    return names


LOSSES = sorted(names_by_function().values())
CLIP: dict[str, Any] = {"clip_low": 0.2, "clip_high": 0.28}
PACS: dict[str, Any] = {"beta": 0.7, "score": "rloo", "weight": "balanced", "std_floor": 0.1}
PPO: dict[str, Any] = {**CLIP, "dual_clip": None, "value_coefficient": 1.0, "value_clip": 0.2}
DPPO: dict[str, Any] = {"delta_low": 0.2, "delta_high": 0.2, "cap": None, "quadratic": 1e-3}
DIVERGENCES = ("hd", "jf", "js", "kl", "rkl", "tv")
FORMS: dict[str, Loss] = {
    "grpo, dual_clip": partial(grpo, **CLIP, dual_clip=1.2),
    "gspo, wide": partial(gspo, clip_low=0.1, clip_high=0.2),
    "opsm, narrow": partial(opsm, delta=0.1, **CLIP, dual_clip=None),
    "high_entropy, half": partial(high_entropy, fraction=0.5, **CLIP, dual_clip=None),
    "kl_cov, 30 %": partial(kl_cov, fraction=0.3, coefficient=1.0),
    "clip_cov, 20 %": partial(clip_cov, fraction=0.2, low=0.1, high=1.0, clip_low=1.0, clip_high=1.0),
    "pacs_actor, rloo": partial(pacs_actor, **PACS, actor=0.5),
    **{f"dppo, {region}": partial(dppo, region=region, **DPPO) for region in ("tv", "kl")},
    **{f"flowrl, {weight}": partial(flowrl, beta=2.0, weight=weight, **CLIP) for weight in ("clip", "cap", "none")},
    **{f"dph, alpha={a}": partial(dph.alpha, **CLIP, coef=0.3, alpha=a) for a in (0.2, 0.8)},
    **{
        f"lad, {name}, {ratio}": partial(lad, divergence=getattr(divergence, name), eta=0.5, ratio=ratio)
        for name in DIVERGENCES
        for ratio in get_args(Ratio)
    },
    **{
        f"lad_theoretical, {name}": partial(lad_theoretical, divergence=getattr(divergence, name), eta=0.5)
        for name in DIVERGENCES
    },
    **{
        f"pacs, {score}, {weight}": partial(pacs, **{**PACS, "score": score, "weight": weight})
        for score in get_args(Score)
        for weight in get_args(Weight)
    },
}


@cache
def loss_of(name: str, *overrides: str) -> Loss:
    """A loss by its name in conf/loss, or a form of one."""
    return FORMS[name] if name in FORMS else instantiate(REGISTRY.compose([f"loss={name}", *overrides])[0].loss)


# --- batches and policies


def usual(*, padding: float, lengths: Sequence[int] = (4, 1, 3, 2, 4, 2)) -> tuple[Batch, Policy]:
    batch = make_batch(lengths=lengths, dtype=torch.float64, padding=padding)
    return batch, make_policy(batch, padding=math.inf if padding else 0.0)


def equipped(loss: Loss, batch: Batch, policy: Policy, *, padding: float = 0.0) -> tuple[Batch, Policy]:
    """With noise, values, returns, rehearsed rows in every group, and the heads that the loss trains."""
    B, T = batch.tokens.shape
    value = torch.linspace(-2, 2, B * T).view(B, T).to(batch.logp_old.dtype)
    padded = torch.where(batch.mask, value, padding)
    kind = torch.arange(B) % 2
    batch = replace(batch, kind=kind, noise=value.sigmoid(), value_old=padded, returns=-padded)
    heads = {"value": 1.3 * padded, "log_z": torch.linspace(-2, 2, B).to(value.dtype)}
    best = torch.where(batch.mask, policy.logp.detach(), padding)
    heads["candidates"] = torch.stack([best, best - 0.3, best - 1], -1)
    heads = {head: output.requires_grad_() for head, output in heads.items() if head in declared_needs(loss)}
    return batch, replace(policy, **heads)


def lengths_for(loss: Loss, *lengths: int) -> list[int]:
    return [min(length, 1) for length in lengths] if "one_token_responses" in marks_of(loss) else list(lengths)


def prepared(loss: Loss, policy: Policy, batch: Batch, order: Tensor) -> Batch:
    """The batch with what the loss's first pass finds in all of it, where it sees the rows in this order."""
    before = first_pass_of(loss)
    if before is None:
        return batch
    with torch.no_grad():
        statistics = before(rows_of(policy, order), take(batch, order))
    result = statistics.new_zeros(len(batch.tokens), *statistics.shape[1:])
    return replace(batch, extra=result.index_copy(0, order, statistics))


def rows_of(policy: Policy, rows: Tensor) -> Policy:
    return Policy(**{f.name: pick(getattr(policy, f.name), rows) for f in fields(policy)})


def take(batch: Batch, rows: Tensor) -> Batch:
    per_row = [f.name for f in fields(batch) if not f.name.startswith("prompt")]
    prompts = {"prompt": batch.prompt, "prompt_mask": batch.prompt_mask}
    return Batch(**{name: pick(getattr(batch, name), rows) for name in per_row}, **prompts)


def pick(x: Tensor | None, rows: Tensor) -> Tensor | None:
    return None if x is None else x[rows]


# --- padding, the order of rows and micro-batches change neither value, gradient nor metrics


def reduced(loss: Loss, policy: Policy, batch: Batch, *parts: list[int]) -> dict[str, Tensor]:
    """Token means of loss and metrics and the gradient in logp, computed part by part and summed."""
    num_tokens, num_sequences = counts(batch.mask)
    total: dict[str, Tensor] = {}
    batch = prepared(loss, policy, batch, torch.tensor(parts[0] if len(parts) == 1 else range(len(batch.tokens))))
    for part in parts:
        rows = torch.tensor(part, dtype=torch.int64)
        batch_of_part = take(batch, rows)
        terms = loss(rows_of(policy, rows), batch_of_part)
        for name, x in {"loss": terms.loss, **terms.metrics}.items():
            sizes = {"num_tokens": num_tokens, "num_sequences": num_sequences, "max_tokens": 4}
            value = aggregate(x, batch_of_part.mask, "token-mean", **sizes)
            total[name] = total.get(name, torch.zeros_like(value)) + value
    (gradient,) = torch.autograd.grad(total["loss"], policy.logp)
    return {**total, "gradient": gradient}


def check_same(got: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(got[name], value, rtol=1e-12, atol=1e-15, msg=lambda m, n=name: f"{n}: {m}")


def check_invariance(loss: Loss) -> None:
    """The third response has no tokens, as one that was filtered out."""
    lengths = lengths_for(loss, 4, 1, 0, 3, 4, 2)
    batch, policy = equipped(loss, *usual(padding=0.0, lengths=lengths))
    expected = reduced(loss, policy, batch, [0, 1, 2, 3, 4, 5])
    assert expected["gradient"].abs().max() > 0
    poisoned, other = equipped(loss, *usual(padding=math.nan, lengths=lengths), padding=math.nan)
    check_same(reduced(loss, other, poisoned, [0, 1, 2, 3, 4, 5]), expected)
    check_same(reduced(loss, policy, batch, [2, 0, 1, 5, 4, 3]), expected)  # groups stay whole
    check_same(reduced(loss, policy, batch, [0, 1, 2], [3, 4, 5]), expected)
    check_same(reduced(loss, policy, batch, [3, 4, 5], [], [0, 1, 2]), expected)
    for reward in (0.0, 1.0):
        rewarded = replace(batch, reward=batch.reward.index_fill(0, torch.tensor([2]), reward))
        check_same(reduced(loss, policy, rewarded, [0, 1, 3, 4, 5]), expected)
        check_same(reduced(loss, policy, rewarded, [0, 1, 2, 3, 4, 5]), expected)


@pytest.mark.parametrize("group", sorted({name.partition(",")[0] for name in (*LOSSES, *FORMS)}))
def test_padding_order_and_micro_batches_change_nothing(group: str, subtests: pytest.Subtests) -> None:
    for name in (*LOSSES, *FORMS):
        if name.partition(",")[0] == group:
            with subtests.test(name):
                check_invariance(loss_of(name))


# --- gradients


@pytest.mark.parametrize("name", [*LOSSES, "pacs, grpo, balanced", "flowrl, cap", "kl_cov, 30 %", "clip_cov, 20 %"])
def test_no_gradient_is_infinite_at_the_extremes(name: str) -> None:
    """With 1/η = 32 where an η is read: log ratios up to ±25, no or large advantages, one token in all."""
    eta = ["eta=0.03125"] if name in REGISTRY.losses_reading("eta") else []
    loss = loss_of(name, *eta)
    for dtype in (torch.float32, torch.bfloat16):
        for lengths in ((4, 1, 3, 2, 4, 2), (0, 0, 1, 0, 0, 0)):
            for advantage in ([0.0] * 6, [2.5, -2.5, 0.0, 1e3, -1e3, 1e-6], [-1.0] * 6):
                knobs = {"lengths": lengths_for(loss, *lengths), "advantage": torch.tensor(advantage, dtype=dtype)}
                batch = make_batch(dtype=dtype, **knobs)
                for step in (0.0, 6.0, -6.0, 25.0, -25.0):
                    check_finite(loss, *equipped(loss, batch, make_policy(batch, log_ratio=step)))


def check_finite(loss: Loss, batch: Batch, policy: Policy) -> None:
    terms = loss(policy, prepared(loss, policy, batch, torch.arange(len(batch.tokens))))
    total = torch.where(batch.mask if terms.loss.dim() == 2 else batch.mask.any(1), terms.loss, 0.0).sum()
    assert terms.loss.isfinite().all()
    leaves = [x for x in (policy.logp, policy.value, policy.log_z) if x is not None and x.requires_grad]
    for gradient in torch.autograd.grad(total, leaves):
        assert gradient.isfinite().all()


# The others hold a part of the value fixed, or give an exact derivative beside a value that saturates.
DIFFERENTIABLE = [
    *("cross_entropy", "drpo", "entadv", "gmpo", "dapo", "gspo, wide", "ppo", "reinforce", "flowrl, none"),
    *("lad, js, token", "lad, js, sequence", "lad, js, sequence_geomean", "lad_theoretical, js"),
    *(f"pacs, {score}, balanced" for score in get_args(Score)),
]


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_the_gradient_agrees_with_differences(name: str) -> None:
    loss = loss_of(name)
    batch, policy = equipped(loss, *usual(padding=0.0, lengths=lengths_for(loss, 4, 1, 3, 2, 4, 2)))
    outputs = {head: getattr(policy, head) for head in ("logp", "value", "log_z")}
    outputs = {head: output for head, output in outputs.items() if output is not None}

    def value(*changed: Tensor) -> Tensor:
        return loss(replace(policy, **dict(zip(outputs, changed, strict=True))), batch).loss

    assert torch.autograd.gradcheck(value, tuple(outputs.values()))


# --- what cannot be computed is refused


REFUSED: list[tuple[Loss, str, dict[str, Tensor | None]]] = [  # loss, message, what is special about the batch
    (partial(clip_cov, **CLIP, fraction=0.2, low=2.0, high=1.0), r"loss\.low=2.0 must be less than loss\.high=1", {}),
    (partial(dph.js, **CLIP, coef=1.0), "choose one of them by its name, such as loss=dph_forward_kl", {"kind": None}),
    (partial(lad_theoretical, divergence=js, eta=1.0), r"a response of 4 tokens.*Pass loss=lad", {}),
    (partial(pacs, **PACS), r"reward 0.5.*rewards 0 and 1 only.*binary rewards", {"reward": torch.full((6,), 0.5)}),
    (partial(pacs, **PACS), "needs the log-probabilities of a reference", {"logp_ref": None}),
    (partial(ppo, **PPO), "pass advantage=gae", {"returns": None}),
]
# By their types, before anything is launched: the functions do not check them again.
IMPOSSIBLE = """
cispo loss.clip_low=1.5 | cispo loss.clip_high=-0.1 | clip_cov loss.fraction=0.0 | dph_alpha loss.alpha=1.0
dph_js loss.coef=-1.0 | dppo loss.region=js | entadv loss.alpha=-0.1 | entadv loss.kappa=1.0 | flowrl beta=0
flowrl loss.weight=all | grpo loss.dual_clip=1.0 | grpo loss.dual_clip=-3 | kl_cov loss.fraction=1.5 | lad eta=0
kl_cov loss.fraction=0 | lad eta=-1 | lad eta=nan | lad loss.ratio=word | lad_theoretical eta=0 | pacs beta=0
pacs loss.std_floor=0 | pacs loss.score=best | pacs loss.weight=heavy | ppo loss.value_clip=0
pkpo advantage.over=row | pkpo advantage.form=all | reinforce_pp_baseline advantage.over=row
grpo trainer.aggregation=all | grpo trainer.kl_estimator=k4
pacs_actor loss.actor=-1 | simko loss.share=1.5 | simko loss.num_candidates=0 | simko loss.quantile=-0.1
"""


def test_impossible_knobs_are_refused_before_launch(subtests: pytest.Subtests) -> None:
    for typed in IMPOSSIBLE.replace("|", "\n").strip().splitlines():
        name, knob = typed.split()
        with subtests.test(typed), pytest.raises(ValueError, match=knob.partition("=")[0]):
            check(f"loss={name}", knob)


def test_impossible_batches_are_refused_with_what_to_pass(subtests: pytest.Subtests) -> None:
    for loss, message, special in REFUSED:
        with subtests.test(message):
            batch, policy = equipped(loss, *usual(padding=0.0))
            batch = replace(batch, **special)
            with pytest.raises(ValueError, match=message):
                loss(policy, prepared(loss, policy, batch, torch.arange(6)))


def test_an_advantage_per_token_is_refused_where_a_response_has_one_term(subtests: pytest.Subtests) -> None:
    per_response = (
        partial(flowrl, **CLIP, beta=2.0, weight="clip"),
        partial(gmpo, **CLIP),
        partial(gspo, **CLIP),
        partial(opsm, delta=0.1, **CLIP, dual_clip=None),
        partial(lad, divergence=js, eta=1.0, ratio="sequence"),
        partial(lad_theoretical, divergence=js, eta=1.0),
    )
    for loss in per_response:
        with subtests.test(loss.func.__name__):
            batch, policy = equipped(loss, *usual(padding=0.0))
            with pytest.raises(ValueError, match="one advantage per response"):
                loss(policy, replace(batch, advantage=batch.token_advantage))
