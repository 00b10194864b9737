"""Measures objectives on stored rollouts, and writes the results: to the terminal, as CSV, as a figure."""

import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from hydra.utils import instantiate
from numpy.typing import NDArray
from omegaconf import OmegaConf
from rich.console import Console
from rich.table import Table

from rlvr.diagnostics.gradient import Effect, cosines, effect, norms, start
from rlvr.diagnostics.measurement import ReplayArm, write
from rlvr.job.loop import TrainingRun
from rlvr.ledger import layout, terminal
from rlvr.ledger.rollouts import read_rollouts, write_rollouts
from rlvr.ledger.runs import write_run
from rlvr.model.structure import num_embeddings
from rlvr.objective.batch import EXPLORE, declared_needs
from rlvr.records import Rollout
from rlvr.trainer.heads import HEADS
from rlvr.trainer.sharded_load import stored_shapes


def screen(arms: Sequence[ReplayArm], source: Path | None, policy: Path | None, out: Path | None) -> None:
    """Measure every arm on the same groups and report.

    source: the file of rollouts; None: rollouts are sampled by the first arm's config.
    """
    console = terminal.console(highlight=False, width=None if Console().is_terminal else 160)
    store = layout.replay_stages(layout.home())
    folder = out or layout.reports(layout.home()) / "replay" / _label(source)
    if source is None:
        source = _draw_rollouts(arms[0], policy, store, folder)
        console.print(f"Drew rollouts: {source}", soft_wrap=True, markup=False)
    groups = read_rollouts(source)
    if policy is not None:
        for arm in arms:
            _check_policy(arm, policy)
    effects: list[Effect] = []
    group_norms: list[list[float]] = []
    for arm in arms:
        began = time.perf_counter()
        of_all, of_groups = _measure(arm, groups, policy, store)
        effects.append(of_all)
        group_norms.append(of_groups)
        if Console(stderr=True).is_terminal:
            print(f"{arm.name}: {time.perf_counter() - began:.1f} s", flush=True)
    names = [arm.name for arm in arms]
    frames = tables(names, effects, groups)
    _show(console, groups, *frames)
    rows, matrix, weights = frames
    angles, of_prompts = matrix.rename_axis("objective").reset_index(), prompts(names, group_norms, groups)
    content = {"objectives": rows, "cosines": angles, "weights": weights, "prompts": of_prompts}
    for file in write(folder, content, "replay"):
        console.print(f"  {file}", soft_wrap=True, markup=False)


def _check_policy(arm: ReplayArm, policy: Path) -> None:
    """Raises ValueError for a checkpoint that lacks what an objective trains or keeps beside the policy."""
    needs, trainer, stored = declared_needs(instantiate(arm.config.loss)), arm.config.trainer, stored_shapes(policy)
    heads = [head for head in HEADS if head in needs]
    missing = [head for head in heads if not any(name.startswith(f"parameter.heads.{head}.") for name in stored)]
    if trainer.reference_every is not None and (trainer.kl or "reference" in needs):
        missing += [] if any(name.startswith("reference.") for name in stored) else ["trainer.reference_every"]
    if missing:
        raise ValueError(
            f"{arm.name}: policy={policy} comes from a run without {' and '.join(missing)}: it has no weights for it. "
            "Drop this objective, or pass a checkpoint of a run that has it."
        )


def _label(source: Path | None) -> str:
    if source is None:
        return "base-policy"
    run_id, step = layout.run_of(source).name, layout.step_of(source)
    return source.stem if step is None else f"{run_id}-step-{step}"


def _draw_rollouts(arm: ReplayArm, policy: Path | None, store: Path, folder: Path) -> Path:
    """Sample one step of rollouts, and write them with their config, as a run does. Returns their file."""
    with contextlib.closing(start(arm.config, policy, store)) as run:
        groups = run.step_sampler.take(1).groups
    folder.mkdir(parents=True, exist_ok=True)
    write_run(folder, OmegaConf.to_yaml(OmegaConf.merge(arm.config, {"choices": {}}), resolve=True), {})
    write_rollouts(groups, layout.rollouts(folder, 1))
    return layout.rollouts(folder, 1)


def _measure(arm: ReplayArm, groups: Sequence[Rollout], policy: Path | None, store: Path) -> tuple[Effect, list[float]]:
    """(the objective's effect for all groups, the norm of its gradient for each group by itself).

    A group's norm uses the advantages computed over all groups, and leaves out the responses that a loss rehearses.
    """
    try:
        with contextlib.closing(start(arm.config, policy, store)) as run:
            if "solution" in run.trainer.objective.needs:
                raise ValueError("it learns known answers, not responses: there is nothing to replay. Drop it.")
            _check_vocabulary(run, groups)
            batch = run.batch(groups, step=1)
            explored = batch.group if batch.kind is None else batch.group[batch.kind == EXPLORE]
            group_norms = norms(run.trainer, [batch.select(number) for number in explored.unique().split(1)])
            return effect(run.trainer, batch), group_norms
    except ValueError as error:
        raise ValueError(f"{arm.name}: {error}") from None


def _check_vocabulary(run: TrainingRun, groups: Sequence[Rollout]) -> None:
    """Raises ValueError if the stored tokens are other words to the policy than to the one that sampled them."""
    known = num_embeddings(run.trainer.actor.model)
    for group in groups:
        tokens = [completion.tokens for completion in group.completions]
        largest = max(int(some.max(initial=0)) for some in [group.prompt, *tokens])
        if largest >= known or not _read_as(group.texts, tokens, run.parts.sampler.decode):
            raise ValueError(
                "its policy has another vocabulary than the one that sampled these rollouts: their tokens are other "
                "words to it. Pass a policy= with the same tokenizer, or drop rollouts= to sample from this policy."
            )


def _read_as(texts: Sequence[str], tokens: Sequence[NDArray[np.int64]], decode: Callable[..., list[str]]) -> bool:
    """Whether the tokens decode to the texts, but for the last ones: an end token may be known to one model alone, and
    a character may consist of several tokens.
    """
    return all(
        text == now or (len(some) > 1 and text.startswith(decode([some[:-1]])[0].rstrip("\ufffd")))
        for text, now, some in zip(texts, decode(tokens), tokens, strict=True)
    )


def prompts(names: Sequence[str], group_norms: Sequence[Sequence[float]], groups: Sequence[Rollout]) -> pd.DataFrame:
    """One row per objective and prompt. group_norms: for each objective, the gradient norms of the groups."""
    problems = pd.DataFrame([{"problem_id": group.problem.id, "pass_rate": _pass_rate(group)} for group in groups])
    parts = [
        problems.assign(objective=name, gradient_norm=of_objective)
        for name, of_objective in zip(names, group_norms, strict=True)
    ]
    return pd.concat(parts, ignore_index=True)


def _pass_rate(group: Rollout) -> float:
    return float(np.mean([reward.correct for reward in group.rewards]))


def tables(
    names: Sequence[str], effects: Sequence[Effect], groups: Sequence[Rollout]
) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """(one row per objective; square matrix of cosines; one row per objective and response)."""
    named = ["group", "problem_id", "sample", "outcome", "pass_rate", "num_tokens"]
    of_all = [
        (number, group.problem.id, sample, reward.outcome, _pass_rate(group), len(completion.tokens))
        for number, group in enumerate(groups)
        for sample, (completion, reward) in enumerate(zip(group.completions, group.rewards, strict=True))
    ]
    responses = pd.DataFrame(of_all, columns=named)
    right = (responses["outcome"] == "correct").to_numpy()
    rows, parts = [], []
    for name, measured in zip(names, effects, strict=True):
        row = {"objective": name, "loss": measured.metrics.get("loss/total", np.nan), "gradient_norm": measured.norm}
        row |= {part: measured.metrics.get(f"policy/{part}", np.nan) for part in ("clip_fraction", "abs_log_ratio")}
        row |= {"weight_correct": _mean(measured.weight[right]), "weight_wrong": _mean(measured.weight[~right])}
        rows.append({**row, "weight_abs": _mean(np.abs(measured.weight))})
        columns = {"reward": measured.reward, "advantage": measured.advantage, "weight": measured.weight}
        parts.append(responses.assign(objective=name, **columns))
    matrix = pd.DataFrame(cosines(effects), index=list(names), columns=list(names))
    return pd.DataFrame(rows), matrix, pd.concat(parts, ignore_index=True)


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if values.size else np.nan


def _show(
    console: Console, groups: Sequence[Rollout], rows: pd.DataFrame, matrix: pd.DataFrame, weights: pd.DataFrame
) -> None:
    num_responses = sum(len(group.completions) for group in groups)
    right = (weights["outcome"] == "correct").mean()
    console.print(f"{num_responses} responses to {len(groups)} prompts, {100 * right:.1f} % correct", style="bold")
    table = Table()
    headings = ("loss", "gradient norm", "clipped, %", "|log ratio|", "weight, correct", "weight, wrong")
    table.add_column("objective", no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows.to_dict("records"):
        first, ratio = map(_number, (row["loss"], row["gradient_norm"])), _number(row["abs_log_ratio"])
        weights_shown = (_number(row[name], "+.3g") for name in ("weight_correct", "weight_wrong"))
        table.add_row(row["objective"], *first, _number(100 * row["clip_fraction"], ".2f"), ratio, *weights_shown)
    console.print(table)
    # Columns have numbers instead of names, so that twenty objectives fit a terminal.
    square = Table(title="cosine between gradients", title_justify="left")
    square.add_column("", no_wrap=True)
    for i in range(len(matrix)):
        square.add_column(str(i + 1), justify="right", no_wrap=True)
    for i, (name, values) in enumerate(matrix.iterrows()):
        square.add_row(f"{i + 1} {name}", *(_number(v, ".2f") for v in values))
    console.print(square)


def _number(value: float, format_spec: str = ".4g") -> str:
    return format(value, format_spec) if np.isfinite(value) else "–"
