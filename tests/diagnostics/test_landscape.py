import math
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from rlvr.diagnostics import landscape as bandit_landscape
from rlvr.diagnostics.landscape import descend, expected, penalty_slope, slope, triangle
from rlvr.loss.grpo import grpo
from rlvr.loss.lad import lad
from rlvr.loss.lad_theoretical import lad_theoretical
from rlvr.objective import divergence
from tests.support.composed import REGISTRY

ETA = 0.7
A = torch.tensor([0.8, 0.1, -0.9], dtype=torch.float64)
WEIGHTS = [math.exp(a / ETA) for a in A.tolist()]
TARGET = np.array(WEIGHTS) / sum(WEIGHTS)  # P_A ∝ e^{A/η} for a uniform π_old

POLICIES = torch.tensor([[0.2, 0.5, 0.3], [0.9, 0.04, 0.06], [0.01, 0.01, 0.98]], dtype=torch.float64)
UNIFORM = torch.full_like(POLICIES, 1 / 3).log()

CLIPPED = partial(grpo, clip_low=0.2, clip_high=0.2, dual_clip=None)


def practical(name: str):
    return partial(lad, divergence=getattr(divergence, name), eta=ETA, ratio="token")


def theoretical(name: str):
    return partial(lad_theoretical, divergence=getattr(divergence, name), eta=ETA)


def test_the_landscape_of_hd_is_half_the_squared_distance_of_roots() -> None:
    # π_old·w·½(√(r/w) − 1)² = ½(√π − √(π_old·w))²
    plain = [
        sum((math.sqrt(p) - math.sqrt(w / 3)) ** 2 / 2 for p, w in zip(row, WEIGHTS, strict=True))
        for row in POLICIES.tolist()
    ]
    assert expected(practical("hd"), POLICIES.log(), A, UNIFORM).tolist() == pytest.approx(plain, rel=1e-12)


def test_the_landscape_of_js_is_that_of_two_mixtures() -> None:
    # π_old·w·f(r/w) = ½[π log 2π/(π + q) + q log 2q/(π + q)] with q = π_old·w
    def term(p: float, q: float) -> float:
        return (p * math.log(2 * p / (p + q)) + q * math.log(2 * q / (p + q))) / 2

    plain = [sum(term(p, w / 3) for p, w in zip(row, WEIGHTS, strict=True)) for row in POLICIES.tolist()]
    assert expected(practical("js"), POLICIES.log(), A, UNIFORM).tolist() == pytest.approx(plain, rel=1e-12)


def test_expectations_are_under_the_old_policy() -> None:
    # On-policy, E[−A·r] = −Σ π_old·A; by hand −(0.2·0.8 + 0.5·0.1 − 0.3·0.9) = 0.06
    value = expected(CLIPPED, POLICIES[:1].log(), A, POLICIES[:1].log())
    assert value.item() == pytest.approx(0.06, rel=1e-12)


@pytest.mark.parametrize("form", [practical, theoretical])
@pytest.mark.parametrize("name", ["hd", "js", "kl", "rkl", "jf"])
def test_slopes_are_those_of_the_landscape(form, name: str) -> None:
    """Central differences in float64."""
    loss, logits, h = form(name), POLICIES.log(), 1e-6
    actual = slope(loss, logits, A, UNIFORM)
    for k in range(3):
        step = h * torch.eye(3, dtype=torch.float64)[k]
        up, down = (expected(loss, logits + s * step, A, UNIFORM) for s in (1, -1))
        assert torch.allclose(actual[:, k], (up - down) / (2 * h), rtol=1e-6, atol=1e-9)


def test_the_slope_of_grpo_is_the_policy_gradient() -> None:
    # d/dθ_k of −Σ π·A = −π_k (A_k − Σ π·A); at a ratio of 1 nothing is clipped
    mean = (POLICIES * A).sum(-1, keepdim=True)
    actual = slope(CLIPPED, POLICIES.log(), A, POLICIES.log())
    assert torch.allclose(actual, -POLICIES * (A - mean), rtol=1e-12)


@pytest.mark.parametrize("form", [practical, theoretical])
@pytest.mark.parametrize("name", ["hd", "js"])
def test_lad_ends_at_the_target(form, name: str) -> None:
    _, path = descend(form(name), POLICIES[:2], A, steps=90, renew=False)
    assert torch.equal(path[0], POLICIES[:2].log().softmax(-1))
    assert np.abs(path[-1].numpy() - TARGET).sum(-1) / 2 == pytest.approx(0.0, abs=0.01)


def test_grpo_ends_at_the_best_arm() -> None:
    _, path = descend(CLIPPED, POLICIES[:2], A, steps=120, renew=True)
    assert path[-1, :, 0].min() > 0.95
    assert TARGET[0] < 0.7


def test_with_a_penalty_to_the_old_policy_grpo_ends_where_lad_does() -> None:
    """max E[A] − η KL(π‖π_old) is at π ∝ π_old e^{A/η}: "under this setting" the optima coincide (LAD, section 4.1)."""
    _, path = descend(CLIPPED, POLICIES[:2], A, steps=300, renew=True, penalty=ETA)
    assert np.abs(path[-1].numpy() - TARGET).sum(-1) / 2 == pytest.approx(0.0, abs=1e-6)


def test_the_slope_of_the_penalty_is_that_of_the_divergence() -> None:
    logits, h = POLICIES.log(), 1e-6

    def plain(row: list[float]) -> float:
        total = sum(map(math.exp, row))
        return sum(math.exp(x) / total * math.log(3 * math.exp(x) / total) for x in row)

    for row, actual in zip(logits.tolist(), penalty_slope(logits).tolist(), strict=True):
        for k in range(3):
            up, down = ([x + sign * h * (j == k) for j, x in enumerate(row)] for sign in (1, -1))
            assert actual[k] == pytest.approx((plain(up) - plain(down)) / (2 * h), abs=1e-8)


def test_under_hd_both_forms_of_lad_go_the_same_way() -> None:
    """½(1 + Z) − √Z·Σ√(π P_A) and 1 − Σ√(π P_A), with Z = E[w]: at every policy the slopes differ by √Z alone."""
    slopes = [slope(form("hd"), POLICIES.log(), A, UNIFORM) for form in (practical, theoretical)]
    assert torch.allclose(slopes[0], math.sqrt(sum(WEIGHTS) / 3) * slopes[1], rtol=1e-9)


def test_the_landscape_is_lowest_at_the_target() -> None:
    policies = triangle(40)
    assert torch.allclose(policies.sum(-1), torch.ones(len(policies), dtype=torch.float64))
    assert len(policies) == 40 * 41 / 2
    assert policies.min() > 0
    for name in ("hd", "js", "kl", "rkl", "jf"):
        old = torch.full_like(policies, 1 / 3).log()
        lowest = policies[expected(practical(name), policies.log(), A, old).argmin()]
        assert np.abs(lowest.numpy() - TARGET).max() < 1.5 / 40, name


@pytest.mark.slow
def test_the_command_draws_what_it_writes(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("RLVR_HOME", str(tmp_path))
    monkeypatch.setattr(bandit_landscape, "STEPS", 12)
    bandit_landscape.main(["divergence=tv", "eta=0.5"], REGISTRY)
    folder = tmp_path / "reports" / "bandit_landscape"
    arms, paths, ends = (pd.read_csv(folder / f"{name}.csv") for name in ("arms", "paths", "ends"))
    # Rewards 1, 0.9, 0.2: mean 0.7, unbiased deviation √(0.38/2)
    assert arms["advantage"].tolist() == pytest.approx([0.3 / 0.19**0.5, 0.2 / 0.19**0.5, -0.5 / 0.19**0.5], rel=1e-4)
    weights = np.exp(arms["advantage"] / 0.5)
    assert arms["target"].tolist() == pytest.approx((weights / weights.sum()).tolist(), rel=1e-9)
    assert set(paths["method"]) == {"lad", "lad_theoretical", "grpo", "grpo_kl"}
    assert set(paths["divergence"]) == {"tv"}
    assert paths[["arm_0", "arm_1", "arm_2"]].sum(axis=1).to_numpy() == pytest.approx(1.0)
    first = paths[paths["step"] == 0].groupby("start")["arm_0"].nunique()
    assert (first == 1).all()  # all methods start alike
    assert len(ends) == 4 * 6
    assert (ends["step"] == 12).all()
    assert (folder / "bandit_landscape.png").read_bytes().startswith(b"\x89PNG")
    assert "after 12 steps" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["task.arms=4", "task.centres=[0]", "task.widths=[1]", "task.heights=[1]"], "task.arms=3"),
        (["advantage=differential_smoothing"], "depend on rewards only"),
        (["eta=1,2"], "only divergence takes several values"),
        (["lr=1"], "lr=1 is not understood"),
    ],
)
def test_bad_input_says_what_to_type(arguments: list[str], message: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("RLVR_HOME", str(tmp_path))
    with pytest.raises(ValueError, match=message):
        bandit_landscape.main(arguments, REGISTRY)
    assert not (tmp_path / "reports").exists()
