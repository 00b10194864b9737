"""The data that the scripts of a page draw: curves by arm, samples side by side, runs by knob; plain data, for JSON."""

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.frames.digest import DRAWN
from analysis.frames.frames import Frames
from analysis.report.looks import Look, looks_of
from analysis.scores import student
from analysis.scores.ablation import metrics
from analysis.scores.arm import Arm, arms
from analysis.scores.crossed import LEAST_SEEDS, LEVEL
from analysis.scores.excerpt import Excerpt, JudgedStep, Problem, excerpts
from analysis.scores.importance import RESULT, explored
from analysis.scores.metric import possible, training_names
from analysis.scores.selection import ordered
from analysis.scores.trajectory import Curve, curve, settings_with_curves

MOST_CURVES = 2500  # runs times metrics; of a larger study the page shows the metrics DRAWN alone
MOST_TEXT = 4000  # characters of a prompt or a response


def interactive(frames: Frames) -> dict[str, Any]:
    """The data of a page.

    arms: labels and looks, to whose positions the panels refer; panels: curves; readers: samples; search: runs by
    knob, or None (`explored`).
    """
    shown = ordered(arms(frames), frames.swept)
    return {
        "arms": [_arm(arm, look) for arm, look in zip(shown, looks_of(shown, frames.baseline), strict=True)],
        "panels": [*_evaluations(frames, shown), *_training(frames, shown)],
        "readers": [_reader(excerpt) for excerpt in excerpts(frames)],
        "search": _search(frames),
    }


def _arm(arm: Arm, look: Look) -> dict[str, Any]:
    where = f", {arm.setting}" if arm.setting else ""
    return {"short": arm.short + where, "label": arm.label + where, "colour": look.colour, "dash": look.dash}


def script(data: Any) -> str:
    """JSON that is safe in a page: nothing in it ends a script or opens a comment. ValueError for NaN and infinity."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text


# --- curves


def _evaluations(frames: Frames, shown: Sequence[Arm]) -> list[dict[str, Any]]:
    """A panel per setting and metric, in per cent: those that tables show first, then all other k."""
    settings = settings_with_curves(frames, least=2)  # before and after training
    pairs = [(setting, metric) for setting in settings for metric in setting.shown]
    others = [(setting, m) for setting in settings for m in metrics(setting).values() if m not in setting.shown]
    pairs += others if len(frames.rows) * len(others) <= MOST_CURVES else []
    position = {arm.group_id: number for number, arm in enumerate(shown)}
    panels: list[dict[str, Any]] = []
    for setting, metric in pairs:
        curves = {position[arm.group_id]: curve(frames, arm, metric, setting.sources) for arm in setting.arms}
        lines = [_of_curve(number, trajectory) for number, trajectory in curves.items() if trajectory.steps]
        title = setting.titled(f"{metric}, {setting.overall}, %")
        panels += [{"title": title, "lines": lines, "evaluation": True}] if lines else []
    return panels


def _of_curve(number: int, trajectory: Curve) -> dict[str, Any]:
    """The mean of arm `number` with its interval, in per cent."""
    mean, *ends = (np.array(part, float) for part in (trajectory.mean, trajectory.low, trajectory.high))
    # Without a band at some step, as where all seeds agree, its ends meet there.
    known = [np.where(np.isfinite(end), end, mean) for end in ends] if np.isfinite(ends).any() else []
    return _line(number, list(trajectory.steps), *(_rounded(100 * part) for part in (mean, *known)))


def _training(frames: Frames, shown: Sequence[Arm]) -> list[dict[str, Any]]:
    names = training_names(frames, [run.run_id for run in frames.rows])
    too_many = len(frames.rows) * len(names) > MOST_CURVES
    chosen = [name for name in DRAWN if name in names]
    if not too_many:
        chosen += [name for name in names if name not in DRAWN]
    logged = frames.thinned_history(DRAWN if too_many else None)
    if not chosen or logged.empty:
        return []
    arm_of = {run.run_id: number for number, arm in enumerate(shown) for run in arm.drawn}
    logged = logged[logged["run_id"].isin(list(arm_of))]
    numbers = logged["run_id"].map(arm_of).astype(int)
    groups = logged.assign(arm=numbers, name=logged["name"].astype(str)).groupby(["name", "arm", "step"], sort=True)
    stats = groups["value"].agg(["mean", "std", "count"]).reset_index()
    by_name = dict(iter(stats.groupby("name")))
    return [{"title": name, "lines": _lines(by_name[name], *possible(name))} for name in chosen if name in by_name]


def _lines(stats: pd.DataFrame, least: float, most: float) -> list[dict[str, Any]]:
    """A line per arm. stats: columns arm, step, mean, std and count over seeds, of one metric, which
    lies between `least` and `most`."""
    lines: list[dict[str, Any]] = []
    for number, arm_stats in stats.groupby("arm"):
        mean, count = arm_stats["mean"].to_numpy(float), arm_stats["count"].to_numpy(int)
        ends: list[list[float]] = [[], []]
        if count.min() >= LEAST_SEEDS:
            quantile = student.critical(LEVEL, (count - 1).astype(float))
            half = quantile * arm_stats["std"].to_numpy(float) / np.sqrt(count)
            ends = [_rounded(end.clip(least, most)) for end in (mean - half, mean + half)]
        lines.append(_line(int(str(number)), arm_stats["step"].tolist(), _rounded(mean), *ends))
    return lines


def _line(arm: int, steps: list[int], mean: list[float], low: Sequence[float] = (), high: Sequence[float] = ()) -> Any:
    return {"arm": arm, "x": steps, "y": mean, **({"low": list(low), "high": list(high)} if len(low) else {})}


def _rounded(values: NDArray[np.float64]) -> list[float]:
    """Rounded to four significant digits of the largest value; NaN becomes 0."""
    largest = float(np.abs(values).max(initial=0))
    if not math.isfinite(largest) or largest == 0:
        return [float(v) for v in np.nan_to_num(values)]
    return np.round(values, 3 - math.floor(math.log10(largest))).tolist()


# --- samples


def _reader(excerpt: Excerpt) -> dict[str, Any]:
    """Of each arm and evaluation, by problem in order: [samples right, samples judged, [[outcome, tokens, text], ...]].

    prompts, answers: of each problem, from the first run that stored them.
    """
    prompts: dict[Problem, str] = {}
    answers: dict[Problem, str] = {}
    columns: list[dict[str, Any]] = []
    for shown in excerpt.shown:
        for problem, responses in shown.last.responses.items():
            prompts[problem] = prompts.get(problem) or _cut(responses[0].prompt)
            answers[problem] = answers.get(problem) or _cut(responses[0].right_answer)
        evaluations = [{"step": e.step, "cells": _cells(e, excerpt.problems)} for e in shown.evaluations]
        columns.append(
            {"short": shown.arm.short, "label": shown.arm.label, "run": shown.name, "evaluations": evaluations}
        )
    several = len({source for source, _ in excerpt.problems}) > 1
    names = [f"{source}: {name}" if several else name for source, name in excerpt.problems]
    texts = [[by.get(problem, "") for problem in excerpt.problems] for by in (prompts, answers)]
    return {"setting": excerpt.setting, "problems": names, "prompts": texts[0], "answers": texts[1], "arms": columns}


def _cells(evaluation: JudgedStep, problems: Sequence[Problem]) -> list[Any]:
    return [
        [
            *evaluation.right.get(problem, (0, 0)),
            [
                [r.outcome, r.num_tokens, _cut(r.response), r.turns, *([r.extras] if r.extras else [])]
                for r in evaluation.responses.get(problem, ())
            ],
        ]
        for problem in problems
    ]


def _cut(text: str) -> str:
    return text if len(text) <= MOST_TEXT else f"{text[:MOST_TEXT]} … ({len(text) - MOST_TEXT:,} more characters)"


# --- search


def _search(frames: Frames) -> dict[str, Any] | None:
    search = explored(frames)
    if search is None:
        return None
    scale, unit = (1, "") if search.metrics == (RESULT,) else (100, ", %")
    return {
        "knobs": list(search.knobs),
        "metrics": list(search.metrics),
        "unit": unit,
        "importance": [
            [knob, [round(share, 4) if math.isfinite(share) else None for share in shares]]
            for knob, shares in search.importance.items()
        ],
        "rows": [
            {"name": run.name, "values": list(values), "results": [round(scale * v, 3) for v in results]}
            for run, values, results in zip(search.runs, search.values, search.results, strict=True)
        ],
    }
