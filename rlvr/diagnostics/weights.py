"""How much an objective weighs a problem of pass rate p, measured on our own advantages and losses (MaxRL, Fig. 1).

    python -m rlvr.diagnostics.weights
    python -m rlvr.diagnostics.weights loss=maxrl advantage.order=1,7 rollout.samples=8
    python -m rlvr.diagnostics.weights loss=lad divergence=js,kl eta=0.25,1 rollout.samples=8

The policy is one coin: right with probability p = sigmoid(θ). A group of G responses is then described by its number c
of right ones, and the expectation over all G + 1 outcomes is a finite sum, exact up to float64 rounding; nothing is
sampled. Cross-entropy gets the known answer instead of samples: all of its responses are right. The result, in
reports/weights, is weights.csv and the figure, with the closed forms drawn over the measurements.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from hydra.utils import instantiate
from numpy.typing import NDArray
from omegaconf import DictConfig

from rlvr.config.registry import SHORTHANDS, Registry
from rlvr.diagnostics.measurement import command, points, with_progress, write
from rlvr.ledger.layout import home, reports
from rlvr.objective.batch import Advantage, Batch, Loss, Policy, declared_needs, first_pass_of
from rlvr.objective.reduce import aggregate

Floats = NDArray[np.float64]

DEFAULT = (
    ("loss=cross_entropy,reinforce,rloo,dr_grpo,grpo,pkpo,maxrl", "rollout.samples=4,16,64,256"),
    ("loss=lad", "divergence=js,hd,tv,jf,kl,rkl", "eta=1", "rollout.samples=8,64"),
)
READ = ("loss", "advantage", "divergence", *SHORTHANDS, "rollout.samples")  # knobs that change w(p)
RATES = 1 / (1 + np.exp(-np.linspace(-np.log(9999), np.log(9999), 81)))  # 1e-4 to 1 − 1e-4, symmetric about a half


@dataclass(frozen=True)
class Weight:
    """The weight of one pass rate under one objective.

    `weight`: w(p), the expected gradient divided by ∇p. `gradient_norm`: the mean of |gradient| with respect to θ.
    `order`: T of maxrl (at most G − 1, its default; G for its two other forms), k of pkpo; None for objectives that
    have neither. `divergence`, `eta`: of LAD only.
    """

    loss: str
    advantage: str
    divergence: str | None
    eta: float | None
    order: int | None
    samples: int
    pass_rate: float
    weight: float
    gradient_norm: float


def measure(loss: Loss, advantage: Advantage, samples: int, rates: Floats) -> tuple[Floats, Floats]:
    """(w(p), E|gradient|), each [R], of an objective with G = samples on-policy responses at the pass rates [R].

    The loss is averaged over the responses of a group (`token-mean` of one-token responses). A loss that needs the
    "solution" gets right answers only. Raises ValueError for a loss or an advantage that needs more than solution,
    rewards and log-probabilities, and for pass rates outside (0, 1).
    """
    if not ((rates > 0) & (rates < 1)).all():
        raise ValueError("pass rates must lie between 0 and 1: at the ends a coin has no gradient.")
    needs = declared_needs(loss) | declared_needs(advantage) | ({"first pass"} if first_pass_of(loss) else set())
    missing = sorted(needs - {"solution"})
    if missing:
        raise ValueError(
            f"a coin has no {', '.join(missing)}: w(p) is measured for objectives of rewards and log-probabilities."
        )
    G = samples
    right = torch.arange(G) < torch.arange(G + 1)[:, None]  # [G + 1, G]: outcome c has c right responses
    group = torch.arange(G + 1).repeat_interleave(G)
    A = advantage(right.flatten().double(), group)
    chance = np.eye(G + 1)[-1:] if "solution" in needs else outcomes(G, rates)
    slope = np.empty((len(rates), G + 1))
    for i, p in enumerate(rates):
        # In an array, since a plain number would become float32.
        logp_right, logp_wrong = torch.from_numpy(np.array([np.log(p), np.log1p(-p)]))
        logp = torch.where(right, logp_right, logp_wrong).view(-1, 1)
        gradient = _gradient(loss, logp, right.flatten().double(), A, group).view(G + 1, G)
        slope[i] = (gradient.numpy() * (right.numpy() - p)).sum(1)  # d log p/dθ = 1 − p and d log(1 − p)/dθ = −p
    return -(chance * slope).sum(1) / (rates * (1 - rates)), (chance * abs(slope)).sum(1)


def _gradient(
    loss: Loss, logp: torch.Tensor, reward: torch.Tensor, advantage: torch.Tensor, group: torch.Tensor
) -> torch.Tensor:
    """[B] derivative of each group's loss with respect to each response's log-probability."""
    B, P = len(logp), int(group[-1]) + 1
    mask = torch.ones(B, 1, dtype=torch.bool)
    prompt = torch.zeros(P, 1, dtype=torch.int64)
    tokens = reward.long()[:, None]
    batch = Batch(tokens, mask, logp, advantage, reward, group, prompt, torch.ones_like(prompt, dtype=torch.bool))
    leaf = logp.clone().requires_grad_()
    terms = loss(Policy(leaf), batch).loss
    size = B // P  # divided by the size of a group, not of the batch: every outcome is a mini-batch of its own
    total = aggregate(terms, mask, "token-mean", num_tokens=size, num_sequences=size, max_tokens=1)
    (gradient,) = torch.autograd.grad(total, leaf)
    return gradient[:, 0]


def outcomes(samples: int, rates: Floats) -> Floats:
    """[R, G + 1] the probability of c right responses among G at each pass rate, computed in log space."""
    c = np.arange(samples + 1)
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, samples + 1)))])
    log_choose = log_factorial[-1] - log_factorial - log_factorial[::-1]
    p = rates[:, None]
    return np.exp(log_choose + c * np.log(p) + (samples - c) * np.log1p(-p))


def measured(point: Sequence[str], rates: Floats, registry: Registry) -> list[Weight]:
    """The weights of one combination of overrides of the default run."""
    config, choices = registry.compose(point)
    loss, advantage, samples = instantiate(config.loss), instantiate(config.advantage), config.rollout.samples
    weight, norm = measure(loss, advantage, samples, rates)
    order = _order(config.advantage, str(choices["advantage"]), samples)
    chosen = (choices["loss"], choices["advantage"], choices.get("divergence"))
    columns = (*chosen, config.loss.get("eta"), order, samples)
    return [Weight(*columns, *map(float, row)) for row in zip(rates, weight, norm, strict=True)]


def _order(advantage: DictConfig, name: str, samples: int) -> int | None:
    """`Weight.order`."""
    if name in ("maxrl_conditional", "maxrl_control_variate"):
        return samples
    if "order" in advantage:
        return samples - 1 if advantage.order is None else int(advantage.order)
    return int(advantage.k) if "k" in advantage else None


def main(typed: Sequence[str], registry: Registry) -> None:
    for word in typed:
        if (key := word.partition("=")[0]) not in READ and key.partition(".")[0] not in ("loss", "advantage"):
            raise ValueError(f"{key} has no effect on w(p), which reads {', '.join(READ)}, loss.* and advantage.*.")
    grid = [point for words in ([typed] if typed else DEFAULT) for point in points(words)]
    rows = [row for point in with_progress(grid) for row in measured(point, RATES, registry)]
    table = pd.DataFrame(rows).astype({"order": "Int64"})  # an integer type with missing values
    folder = reports(home()) / "weights"
    files = write(folder, {"weights": table}, "weights")
    print(f"Written: {folder}: {', '.join(file.name for file in files)}")


if __name__ == "__main__":
    sys.exit(command(main, "rlvr.diagnostics.weights", __doc__))
