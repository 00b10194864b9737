import csv
import math
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvr import metrics
from rlvr.diagnostics import weights
from rlvr.diagnostics.measurement import command, points
from rlvr.loss.cross_entropy import cross_entropy
from rlvr.loss.grpo import grpo as clipped
from rlvr.loss.lad import lad
from rlvr.loss.reinforce import reinforce
from rlvr.objective import advantage, divergence
from rlvr.objective.batch import Batch, Policy, Terms, needs
from tests.support.composed import REGISTRY

GRPO = partial(advantage.grpo, population=False)
MAXRL = partial(advantage.maxrl, order=None)


def by_enumeration(score, G: int, p: float) -> tuple[float, float]:
    """(w, E|gradient|) by a sum over all 2^G sequences of rewards. score: rewards -> advantages."""
    expected = size = 0.0
    for rewards in product((0, 1), repeat=G):
        chance = math.prod(p if r else 1 - p for r in rewards)
        gradient = sum(a * ((1 - p) if r else -p) for a, r in zip(score(rewards), rewards, strict=True)) / G
        expected += chance * gradient
        size += chance * abs(gradient)
    return expected / (p * (1 - p)), size


def plain_grpo(rewards):
    mean = sum(rewards) / len(rewards)
    std = math.sqrt(sum((r - mean) ** 2 for r in rewards) / (len(rewards) - 1))
    return [(r - mean) / (std + 1e-6) for r in rewards]


def plain_maxrl(rewards):
    mean = sum(rewards) / len(rewards)
    return [(r - mean) / (mean + 1e-6) for r in rewards]


@pytest.mark.parametrize(("ours", "plain"), [(GRPO, plain_grpo), (MAXRL, plain_maxrl), (advantage.reinforce, list)])
@pytest.mark.parametrize("loss", [reinforce, partial(clipped, clip_low=0.2, clip_high=0.2, dual_clip=None)])
def test_the_sum_over_counts_is_the_sum_over_all_sequences(ours, plain, loss) -> None:
    rates = np.array([0.02, 0.3, 0.9])
    weight, norm = weights.measure(loss, ours, 5, rates)
    expected = [by_enumeration(plain, 5, p) for p in rates]
    assert weight == pytest.approx([w for w, _ in expected], rel=1e-12)
    assert norm == pytest.approx([n for _, n in expected], rel=1e-12)


def test_one_sample_of_reinforce_by_hand() -> None:
    # G = 1: the gradient is 1 − p with chance p, else 0: its mean is p(1 − p) = dp/dθ, so w = 1.
    weight, norm = weights.measure(reinforce, advantage.reinforce, 1, np.array([0.25]))
    assert (weight, norm) == (pytest.approx([1.0]), pytest.approx([0.1875]))


@settings(max_examples=30, deadline=None)
@given(p=st.floats(1e-4, 1 - 1e-4), G=st.integers(2, 40))
def test_weights_are_those_of_theory(p: float, G: int) -> None:
    rates = np.array([p])
    assert weights.measure(reinforce, advantage.rloo, G, rates)[0] == pytest.approx([1.0], rel=1e-9)
    assert weights.measure(reinforce, advantage.dr_grpo, G, rates)[0] == pytest.approx([1 - 1 / G], rel=1e-9)
    series = sum((1 - p) ** i for i in range(G - 1))  # order G − 1; the 1e-6 beside the mean costs at most G·1e-6
    assert weights.measure(reinforce, MAXRL, G, rates)[0] == pytest.approx([series], rel=G * 1.1e-6)


@pytest.mark.parametrize("form", ["plain", "sloo", "sloo_minus_one"])
def test_pkpo_weighs_as_the_gradient_of_pass_at_k(form: str) -> None:
    rates = np.array([0.02, 0.3, 0.9])
    for k in (2, 4):
        pkpo = partial(advantage.pkpo, k=k, form=form, over="mean")
        weight, _ = weights.measure(reinforce, pkpo, 8, rates)
        assert weight == pytest.approx(k * (1 - rates) ** (k - 1), rel=1e-9)  # d/dp of 1 − (1 − p)^k
        assert metrics.weight_pass(rates, k) == pytest.approx(weight, rel=1e-9)


def test_cross_entropy_sees_the_answer_and_weighs_by_one_over_p() -> None:
    # Every response is right: each step is d log p/dθ = 1 − p, without noise, and w = (1 − p)/(p(1 − p)).
    weight, norm = weights.measure(cross_entropy, advantage.none, 4, np.array([1e-4, 0.25, 0.9]))
    assert weight == pytest.approx([1e4, 4.0, 1 / 0.9], rel=1e-9)
    assert norm == pytest.approx([1 - 1e-4, 0.75, 0.1], rel=1e-9)


def test_grpo_tends_to_its_limit_where_groups_hold_both_outcomes() -> None:
    rates = np.array([0.1, 0.5, 0.8])
    weight, _ = weights.measure(reinforce, GRPO, 400, rates)
    assert weight == pytest.approx(1 / np.sqrt(rates * (1 - rates)), rel=0.02)


def test_outcomes_are_binomial() -> None:
    # Three tosses at 1/4: 27, 27, 9 and 1 of 64.
    assert weights.outcomes(3, np.array([0.25]))[0] == pytest.approx(np.array([27, 27, 9, 1]) / 64)
    assert weights.outcomes(256, np.array([1e-4, 0.5])).sum(1) == pytest.approx([1, 1])


def test_inputs_that_a_coin_lacks_are_named() -> None:
    @needs("reference", "entropy")
    def loss(policy: Policy, batch: Batch) -> Terms:
        raise AssertionError

    with pytest.raises(ValueError, match="no entropy, reference"):
        weights.measure(loss, advantage.rloo, 4, np.array([0.5]))
    with pytest.raises(ValueError, match="between 0 and 1"):
        weights.measure(reinforce, advantage.rloo, 4, np.array([0.0]))
    with pytest.raises(ValueError, match="is no knob"):
        points(["maxrl"])
    with pytest.raises(ValueError, match=r"trainer.entropy has no effect on w\(p\), which reads loss, advantage, "):
        weights.main(["loss=rloo", "trainer.entropy=3"], REGISTRY)


# What an on-policy response with a = A/η adds to its own log-probability under each divergence: −d value/dℓ at r = 1,
# worked from w·f(r/w) with w = e^a.
PUSH = {
    "js": lambda a: (math.log1p(math.exp(a)) - math.log(2)) / 2,
    "hd": lambda a: (math.exp(a / 2) - 1) / 2,
    "kl": lambda a: a - 1,
    "rkl": math.exp,
    "jf": lambda a: a - 1 + math.exp(a),
    "tv": lambda a: float(a > 0) - float(a < 0),
}


@pytest.mark.parametrize("name", PUSH)
@pytest.mark.parametrize("eta", [0.5, 2.0])
def test_lads_divergences_weigh_by_their_derivatives(name: str, eta: float) -> None:
    ours = partial(lad, divergence=getattr(divergence, name), eta=eta, ratio="token")
    rates = np.array([0.02, 0.3, 0.9])
    weight, _ = weights.measure(ours, GRPO, 5, rates)

    def pushes(rewards):
        return [PUSH[name](a / eta) for a in plain_grpo(rewards)]

    expected = [by_enumeration(pushes, 5, p)[0] for p in rates]
    assert weight == pytest.approx(expected, rel=1e-9)


def rows_of(*words: str) -> list[weights.Weight]:
    """What the command measures at two pass rates."""
    return [row for point in points(words) for row in weights.measured(point, weights.RATES[[0, 40]], REGISTRY)]


def test_lad_is_measured_with_its_divergence_and_eta() -> None:
    rows = rows_of("loss=lad", "divergence=js,tv", "eta=0.5,2", "rollout.samples=4")
    assert [(row.divergence, row.eta) for row in rows[::2]] == [("js", 0.5), ("js", 2), ("tv", 0.5), ("tv", 2)]
    assert len(rows) == 4 * 2


def test_other_forms_of_maxrl_are_of_order_g() -> None:
    forms = ("maxrl", "maxrl_conditional", "maxrl_control_variate")
    rows = rows_of("loss=maxrl", f"advantage={','.join(forms)}", "rollout.samples=8")
    assert {row.advantage: row.order for row in rows} == dict(zip(forms, (7, 8, 8), strict=True))


@pytest.mark.slow
def test_the_command_writes_one_row_per_objective_size_and_rate(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("RLVR_HOME", str(tmp_path))
    weights.main(["loss=rloo,maxrl,pkpo", "rollout.samples=4,8"], REGISTRY)
    rows = list(csv.DictReader((tmp_path / "reports" / "weights" / "weights.csv").open()))
    pairs = {(r["loss"], r["advantage"], r["samples"]) for r in rows}
    assert pairs == {(name, name, G) for name in ("rloo", "maxrl", "pkpo") for G in "48"}
    assert len(rows) == 6 * len(weights.RATES)
    orders = {(r["loss"], r["samples"]): r["order"] for r in rows}
    assert orders["maxrl", "8"] == "7"  # T = G − 1
    assert (orders["pkpo", "8"], orders["rloo", "8"]) == ("4", "")
    half = next(r for r in rows if (r["advantage"], r["samples"]) == ("maxrl", "8") and float(r["pass_rate"]) == 0.5)
    assert float(half["weight"]) == pytest.approx(2 * (1 - 0.5**7), rel=1e-5)  # (1 − (1 − p)^7)/p
    assert (tmp_path / "reports" / "weights" / "weights.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "beginning", "end"),
    [
        (["loss=gropo"], "loss=gropo does not exist.", "Did you mean grpo?"),
        (["loss=grpo.yaml"], "loss=grpo.yaml is the name of a file.", "Type loss=grpo."),
        (["--dry-run"], "there is no option --dry-run:", "arguments are KEY=VALUE, --config-dir DIR and --help."),
        (["--config-dir", "/nowhere", "loss=grpo"], "--config-dir=/nowhere:", "there is no such directory."),
    ],
)
def test_bad_input_is_one_line_that_says_what_to_type(
    arguments: list[str], beginning: str, end: str, tmp_path: Path, monkeypatch, capsys
) -> None:
    monkeypatch.setenv("RLVR_HOME", str(tmp_path))
    assert command(weights.main, "rlvr.diagnostics.weights", weights.__doc__, arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"rlvr.diagnostics.weights: {beginning}")
    assert line.endswith(end)
    assert not (tmp_path / "reports").exists()


def test_a_list_in_an_override_is_one_value() -> None:
    assert points(["task.heights=[1,2]", "loss=rloo,grpo"]) == [
        ["task.heights=[1,2]", "loss=rloo"],
        ["task.heights=[1,2]", "loss=grpo"],
    ]
