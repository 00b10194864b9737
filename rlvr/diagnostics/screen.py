"""Measures objectives on stored rollouts and writes what was found: terminal, CSV, figure."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from omegaconf import OmegaConf
from rich.console import Console
from rich.table import Table

from rlvr.diagnostics.gradient import Effect, cosines, effect, norms, start
from rlvr.diagnostics.measurement import Arm, write
from rlvr.ledger import layout
from rlvr.ledger.rollouts import read_rollouts, write_rollouts
from rlvr.ledger.runs import write_run
from rlvr.objective.batch import EXPLORE
from rlvr.records import Rollout


def screen(arms: Sequence[Arm], source: Path | None, policy: Path | None, out: Path | None) -> None:
    """Measure every arm on the same groups and report. Without `source` the first arm's config says what to draw."""
    console = Console(highlight=False, width=None if Console().is_terminal else 160)
    store = layout.replay_stages(layout.home())
    folder = out or layout.reports(layout.home()) / "replay" / _label(source)
    if source is None:
        source = _draw_rollouts(arms[0], policy, store, folder)
        console.print(f"Drew rollouts: {source}", soft_wrap=True, markup=False)
    groups = read_rollouts(source)
    effects: list[Effect] = []
    alone: list[list[float]] = []
    for arm in arms:
        began = time.perf_counter()
        all_groups, each_group = _measure(arm, groups, policy, store)
        effects.append(all_groups)
        alone.append(each_group)
        if Console(stderr=True).is_terminal:
            print(f"{arm.name}: {time.perf_counter() - began:.1f} s", flush=True)
    names = [a.name for a in arms]
    frames = tables(names, effects, groups)
    _show(console, groups, *frames)
    for file in _write(folder, *frames, prompts(names, alone, groups)):
        console.print(f"  {file}", soft_wrap=True, markup=False)


def _label(source: Path | None) -> str:
    if source is None:
        return "base-policy"
    whose, step = layout.run_of_rollouts(source).name, layout.step_of(source)
    return source.stem if step is None else f"{whose}-step-{step}"


def _draw_rollouts(arm: Arm, policy: Path | None, store: Path, folder: Path) -> Path:
    """One step of rollouts, kept as a run keeps them: with its config."""
    with contextlib.closing(start(arm.config, policy, store)) as run:
        groups = run.step_sampler.take(1).groups
    folder.mkdir(parents=True, exist_ok=True)
    write_run(folder, OmegaConf.to_yaml(OmegaConf.merge(arm.config, {"choices": {}}), resolve=True), {})
    write_rollouts(groups, layout.rollouts(folder, 1))
    return layout.rollouts(folder, 1)


def _measure(arm: Arm, groups: Sequence[Rollout], policy: Path | None, store: Path) -> tuple[Effect, list[float]]:
    """What the objective does with all groups; the norm of its gradient on each by itself, with the advantages that it
    has among all of them. What a loss rehearses beside the groups is left out of these norms.
    """
    try:
        with contextlib.closing(start(arm.config, policy, store)) as run:
            if "solution" in run.trainer.objective.needs:
                raise ValueError("it learns known answers, not responses: there is nothing to replay. Drop it.")
            batch = run.batch(groups, step=1)
            own = batch.group if batch.kind is None else batch.group[batch.kind == EXPLORE]
            alone = norms(run.trainer, [batch.select(number) for number in own.unique().split(1)])
            return effect(run.trainer, batch), alone
    except ValueError as error:
        raise ValueError(f"{arm.name}: {error}") from None


def prompts(names: Sequence[str], alone: Sequence[Sequence[float]], groups: Sequence[Rollout]) -> pd.DataFrame:
    """One row per objective and prompt. alone: gradient norms, of each objective by group."""
    shown = pd.DataFrame(
        [{"problem_id": g.problem.id, "pass_rate": float(np.mean([r.correct for r in g.rewards]))} for g in groups]
    )
    parts = [shown.assign(objective=name, gradient_norm=own) for name, own in zip(names, alone, strict=True)]
    return pd.concat(parts, ignore_index=True)


def tables(
    names: Sequence[str], effects: Sequence[Effect], groups: Sequence[Rollout]
) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """(one row per objective; cosines, square; one row per objective and response)."""
    responses = pd.DataFrame(
        [
            {
                "group": g,
                "problem_id": group.problem.id,
                "sample": s,
                "outcome": r.outcome,
                "pass_rate": float(np.mean([x.correct for x in group.rewards])),
                "num_tokens": len(c.tokens),
            }
            for g, group in enumerate(groups)
            for s, (c, r) in enumerate(zip(group.completions, group.rewards, strict=True))
        ]
    )
    rows, parts = [], []
    for name, found in zip(names, effects, strict=True):
        right = (responses["outcome"] == "correct").to_numpy()
        rows.append(
            {
                "objective": name,
                "loss": found.metrics.get("loss/total", np.nan),
                "gradient_norm": found.norm,
                "clip_fraction": found.metrics.get("policy/clip_fraction", np.nan),
                "abs_log_ratio": found.metrics.get("policy/abs_log_ratio", np.nan),
                "weight_correct": _mean(found.weight[right]),
                "weight_wrong": _mean(found.weight[~right]),
                "weight_abs": _mean(np.abs(found.weight)),
            }
        )
        own = {"reward": found.reward, "advantage": found.advantage, "weight": found.weight}
        parts.append(responses.assign(objective=name, **own))
    matrix = pd.DataFrame(cosines(effects), index=list(names), columns=list(names))
    return pd.DataFrame(rows), matrix, pd.concat(parts, ignore_index=True)


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if values.size else np.nan


def _show(
    console: Console, groups: Sequence[Rollout], rows: pd.DataFrame, matrix: pd.DataFrame, weights: pd.DataFrame
) -> None:
    number = sum(len(g.completions) for g in groups)
    right = (weights["outcome"] == "correct").mean()
    console.print(f"{number} responses to {len(groups)} prompts, {100 * right:.1f} % correct", style="bold")
    table = Table()
    heads = ("loss", "gradient norm", "clipped, %", "|log ratio|", "weight, correct", "weight, wrong")
    table.add_column("objective", no_wrap=True)
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    for row in rows.to_dict("records"):
        table.add_row(
            row["objective"],
            _number(row["loss"]),
            _number(row["gradient_norm"]),
            _number(100 * row["clip_fraction"], ".2f"),
            _number(row["abs_log_ratio"]),
            _number(row["weight_correct"], "+.3g"),
            _number(row["weight_wrong"], "+.3g"),
        )
    console.print(table)
    # Numbers stand for names: a grid of twenty fits a terminal.
    square = Table(title="cosine between gradients", title_justify="left")
    square.add_column("", no_wrap=True)
    for i in range(len(matrix)):
        square.add_column(str(i + 1), justify="right", no_wrap=True)
    for i, (name, values) in enumerate(matrix.iterrows()):
        square.add_row(f"{i + 1} {name}", *(_number(v, ".2f") for v in values))
    console.print(square)


def _number(value: float, form: str = ".4g") -> str:
    return format(value, form) if np.isfinite(value) else "–"


def _write(
    folder: Path, rows: pd.DataFrame, matrix: pd.DataFrame, weights: pd.DataFrame, alone: pd.DataFrame
) -> list[Path]:
    angles = matrix.rename_axis("objective").reset_index()
    return write(folder, {"objectives": rows, "cosines": angles, "weights": weights, "prompts": alone}, "replay")
