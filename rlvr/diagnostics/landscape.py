"""Paths of GRPO and LAD on the landscape of LAD's loss, for three arms and with exact expectations (LAD, Figure 2).

    python -m rlvr.diagnostics.landscape
    python -m rlvr.diagnostics.landscape divergence=js,kl eta=0.5 task.heights=[1,0.5,0.4]

A policy over three arms is a point of a triangle, so that the whole loss can be drawn, and expectations are sums over
the arms: nothing is sampled. From the same starts, gradient descent on the three logits follows

  lad              the loss used in training, with a uniform π_old; the landscape shows this loss
  lad_theoretical  Eq. 7, with both normalisers, with the same π_old
  grpo             with the policy of each step as π_old, as in training. Advantages are those under the uniform π_old:
                   a baseline has no effect on an exact expectation, and the scale only changes the length of steps
  grpo_kl          grpo, and η·KL(π‖π_old) to the uniform π_old of LAD (section 4.1)

Both forms of LAD have their minimum at P_A ∝ π_old·e^{A/η}, and so has grpo_kl; with tv it is one minimum of many.
Differs from the paper, which prints neither rewards nor starts: ours are below; rewards, advantage and η are knobs. The
result, in reports/bandit_landscape, is the figure and four CSV files: arms, landscape (loss at each policy), paths
(policy at each step) and ends (the last policies).
"""

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from hydra.utils import instantiate
from omegaconf import DictConfig
from torch import Tensor

from rlvr.config.registry import Registry
from rlvr.diagnostics.measurement import command, points, with_progress, write
from rlvr.ledger.layout import home, reports
from rlvr.objective.batch import Batch, Loss, Policy, declared_needs
from rlvr.records import ArmedTask

DEFAULT = (
    *("divergence=hd,js", "eta=1", "advantage=grpo", "task=bandit", "task.arms=3", "task.centres=[0,1,2]"),
    *("task.widths=[0.2,0.2,0.2]", "task.heights=[1,0.9,0.2]"),
)
ARMS = ["arm_0", "arm_1", "arm_2"]  # columns of the tables: the probability of each arm
STARTS = ((1, 1, 1), (1, 4, 15), (15, 4, 1), (1, 17, 2), (6, 1, 13), (2, 12, 6))  # not normalised; first π_old itself
RESOLUTION = 90  # points of the landscape along an edge of the triangle
STEPS, RATE = 600, 1.0  # of gradient descent


def expected(loss: Loss, logits: Tensor, advantage: Tensor, logp_old: Tensor) -> Tensor:
    """[N] a loss's expectation under π_old, for policies over K arms. logits, logp_old: [N, K]; advantage: [K].

    Each policy is a group, and each arm one of its responses, of one token, weighted by its probability under π_old.
    (`lad_theoretical` takes means over a group as means under π_old: for it π_old must be uniform.)
    """
    N, K = logits.shape
    tokens = torch.arange(K).repeat(N)[:, None]
    group, prompt = torch.arange(N).repeat_interleave(K), torch.zeros(N, 1, dtype=torch.int64)
    A = advantage.repeat(N)
    batch = Batch(tokens, tokens >= 0, logp_old.reshape(-1, 1), A, A, group, prompt, prompt == 0)
    terms = loss(Policy(logits.log_softmax(-1).view(-1, 1)), batch).loss
    return (logp_old.exp() * terms.view(N, K)).sum(-1)


def slope(loss: Loss, logits: Tensor, advantage: Tensor, logp_old: Tensor) -> Tensor:
    """[N, K] the derivative of `expected` with respect to the logits."""
    leaf = logits.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(expected(loss, leaf, advantage, logp_old).sum(), leaf)
    return gradient


def penalty_slope(logits: Tensor) -> Tensor:
    """[N, K] the derivative of KL(π‖uniform) = Σ π log π + log K with respect to the logits."""
    logp = logits.log_softmax(-1)
    return logp.exp() * (logp - (logp.exp() * logp).sum(-1, keepdim=True))


def descend(
    loss: Loss, start: Tensor, advantage: Tensor, *, steps: int, renew: bool, penalty: float = 0.0
) -> tuple[list[int], Tensor]:
    """(numbers of the S steps kept, policies [S, N, K] after them), by gradient descent from policies `start` [N, K].

    Early steps are kept more densely than late ones. renew: π_old is the policy of each step; otherwise it is uniform.
    penalty: weight of KL(π‖uniform).
    """
    kept = sorted({0, *np.geomspace(1, steps, 150).astype(int).tolist()})
    logits = start.log()
    uniform = torch.zeros_like(logits).log_softmax(-1)
    path: list[Tensor] = []
    for step in range(steps + 1):
        if step in kept:
            path.append(logits.softmax(-1))
        loss_slope = slope(loss, logits, advantage, logits.log_softmax(-1) if renew else uniform)
        logits = logits - RATE * (loss_slope + penalty * penalty_slope(logits))
    return kept, torch.stack(path)


def triangle(resolution: int) -> Tensor:
    """[M, 3] policies on a grid over the triangle, none on its edge, where a loss may be infinite."""
    n = resolution
    inside = [(i, j, n - 1 - i - j) for i in range(n) for j in range(n - i)]
    return (torch.tensor(inside, dtype=torch.float64) + 1 / 3) / n


def measured(point: Sequence[str], registry: Registry, *, steps: int) -> dict[str, pd.DataFrame]:
    """The tables arms, landscape, paths and ends of one combination of overrides."""
    composed = {loss: registry.compose([f"loss={loss}", *point]) for loss in ("lad", "lad_theoretical")}
    shared = [override for override in point if not override.startswith(("divergence=", "eta="))]
    composed["grpo"] = registry.compose(["loss=grpo", *shared])
    lad, choices = composed["lad"]
    losses = {method: instantiate(config.loss) for method, (config, _) in composed.items()}
    losses["grpo_kl"] = losses["grpo"]
    name = choices["divergence"]
    reward, advantage = _arms(lad)
    target = (advantage / lad.loss.eta).softmax(0)
    arms = pd.DataFrame({"arm": ARMS, "reward": reward, "advantage": advantage, "target": target})
    policies = triangle(RESOLUTION)
    uniform = torch.zeros_like(policies).log_softmax(-1)
    value = expected(losses["lad"], policies.log(), advantage, uniform)
    start = torch.tensor(STARTS, dtype=torch.float64)
    start /= start.sum(-1, keepdim=True)
    parts = []
    for method, loss in losses.items():
        penalty = lad.loss.eta if method == "grpo_kl" else 0.0
        kept, path = descend(loss, start, advantage, steps=steps, renew=method.startswith("grpo"), penalty=penalty)
        parts += [_table(path[:, i], divergence=name, method=method, start=i, step=kept) for i in range(len(start))]
    paths = pd.concat(parts, ignore_index=True)
    ends = paths.query(f"step == {steps}").reset_index(drop=True)
    ends["total_variation"] = 0.5 * (ends[ARMS] - target.numpy()).abs().sum(axis=1)
    landscape = _table(policies, divergence=name, loss=value.numpy())
    return {"arms": arms, "landscape": landscape, "paths": paths, "ends": ends}


def _arms(config: DictConfig) -> tuple[Tensor, Tensor]:
    """(rewards, advantages under a uniform π_old), each [3].

    Raises ValueError for another number of arms, and for an advantage that reads more than rewards.
    """
    task, advantage = instantiate(config.task), instantiate(config.advantage)
    if not isinstance(task, ArmedTask) or len(task.arms) != len(ARMS):
        raise ValueError("a policy over three arms is a point of a triangle: pass task=bandit task.arms=3.")
    if declared_needs(advantage):
        raise ValueError("the advantage must depend on rewards only: pass advantage=grpo, dr_grpo, rloo or reinforce.")
    reward = torch.from_numpy(task.rewards())
    return reward, advantage(reward, torch.zeros(len(ARMS), dtype=torch.int64))


def _table(policies: Tensor, **columns: Any) -> pd.DataFrame:
    return pd.DataFrame(policies.numpy(), columns=ARMS).assign(**columns)


def main(typed: Sequence[str], registry: Registry) -> None:
    keys = [override.split("=")[0] for override in DEFAULT]
    for override in typed:
        if "=" not in override or override.split("=")[0] not in keys:
            allowed = ", ".join(f"{key}=" for key in keys)
            raise ValueError(f"{override} is not understood. Allowed are {allowed}.")
    overrides = {override.split("=")[0]: override for override in (*DEFAULT, *typed)}
    grid = points([*overrides.values()])
    if len({tuple(o for o in point if not o.startswith("divergence=")) for point in grid}) > 1:
        raise ValueError(
            "a figure shows one bandit and one η: only divergence takes several values, as divergence=hd,js."
        )
    of_points = [measured(point, registry, steps=STEPS) for point in with_progress(grid)]
    tables = {name: pd.concat([of_point[name] for of_point in of_points], ignore_index=True) for name in of_points[0]}
    tables["arms"] = of_points[0]["arms"]  # the same for all divergences
    folder = reports(home()) / "bandit_landscape"
    write(folder, tables, "bandit_landscape")
    distance = tables["ends"].groupby(["divergence", "method"], sort=False)["total_variation"].agg(["min", "max"])
    print(f"Total variation to P_A after {STEPS} steps, over {len(STARTS)} starts\n{distance.round(4)}")
    print(f"Written: {folder}")


if __name__ == "__main__":
    sys.exit(command(main, "rlvr.diagnostics.landscape", __doc__))
