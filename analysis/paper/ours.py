"""Runs of ours in the layout of a paper's table: beside each printed row the arms that correspond to it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from analysis.frames.frames import Frames
from analysis.frames.run import Run
from analysis.paper.printed import AVERAGE, MINUS, RAW, Place, Printed, as_published, tables
from analysis.report.grid import OURS
from analysis.report.layout import frame, record
from analysis.report.table import Format, Table, interval_notes
from analysis.scores import words
from analysis.scores.arm import Arm, arms
from analysis.scores.cell import Cell, base_cell, cell
from analysis.scores.evaluated import BASE, diversity, evaluations, is_evaluation, policy_of
from analysis.scores.metric import Kind, Metric, avg, pass_at
from analysis.scores.selection import value_of

RUNS = (
    "Below a printed row: runs of the same objective, knobs and model, at their last evaluation. avg@k is of all "
    "samples that were drawn."
)
# What `rlvr.diagnostics.diversity` calls the measures of papers, from the beginning.
MEASURES = {
    "dist-3": "distinct-3 of",
    "dist-4": "distinct-4 of",
    "GPT4-Judge": "judge of",
    "S_div": "S_div, right of",
    "rating": "rating",
    "percentile": "percentile",
}


@dataclass(frozen=True)
class Counterpart:
    """What corresponds to a printed row: an arm, or all that start from a base policy; and evaluations of the policy.

    label: what tells it from other counterparts of the row.
    """

    label: str
    arms: tuple[Arm, ...]
    base: bool
    evaluations: tuple[Arm, ...]


def of_runs(frames: Frames) -> dict[str, Table]:
    """The tables that some run corresponds to, by name."""
    records = {name: _all_records(frames, printed) for name, printed in tables().items()}
    return {name: _table(tables()[name], found) for name, found in records.items() if found}


def table(frames: Frames | None, printed: Printed) -> Table:
    """The printed table with a row of ours, below the printed one, for every arm that corresponds to it."""
    return _table(printed, _all_records(frames, printed) if frames else [])


def _table(printed: Printed, records: Sequence[Mapping[str, Any]]) -> Table:
    seeds = max((int(found["seeds"]) for found in records), default=0)
    return Table(
        printed.name,
        f"{printed.paper}, {printed.title}",
        printed.says,
        frame(records),
        tuple(dict.fromkeys(each.metric for each in printed.cells)),
        (
            f"Printed: {printed.paper} ({printed.source}), {printed.title}, {printed.place}; {printed.of}.",
            *((RUNS, *(interval_notes(seeds) if seeds else ())) if records else ()),
        ),
        (as_published(printed),),
        formats=_formats(printed),
        beside=True,
    )


def _formats(printed: Printed) -> dict[str, Format]:
    """Each column as it is printed."""
    found: dict[str, Format] = {}
    for each in printed.cells:
        before = found[each.head].decimals or 0 if each.head in found else 0
        decimals = max(before, len(each.text.partition(".")[2]))
        found[each.head] = Format(1.0 if each.metric in RAW else 100.0, decimals)
    return found


def _all_records(frames: Frames, printed: Printed) -> list[Mapping[str, Any]]:
    rows: dict[tuple[str, str], list[Place]] = {}
    for each in printed.cells:
        rows.setdefault((each.panel, each.line), []).append(each)
    return [found for row in rows.values() for found in _records(frames, printed, row)]


def _records(frames: Frames, printed: Printed, row: Sequence[Place]) -> Iterator[Mapping[str, Any]]:
    """The cells of ours of one printed row, counterpart by counterpart; none of one that has no number."""
    for label, cells in _counterpart_cells(frames, printed, row):
        if all(own.empty for own in cells.values()):
            continue
        name = f"{row[0].line}{OURS}{f' ({label})' if label else ''}"
        for each in row:
            yield record(each.panel, name, (each.metric, each.head), cells[each.head])


def _counterpart_cells(frames: Frames, printed: Printed, row: Sequence[Place]) -> Iterator[tuple[str, dict[str, Cell]]]:
    """(label, cells by head) of every counterpart."""
    selector = row[0].arm
    if MINUS in selector:
        yield "", _difference(frames, printed, selector)
        return
    for found in counterparts(frames, selector) if selector else ():
        yield found.label, _cells(frames, found, printed, row)


def _cells(frames: Frames, found: Counterpart, printed: Printed, row: Sequence[Place]) -> dict[str, Cell]:
    cells = {
        each.head: _value(frames, found, each.metric, printed.benchmarks[each.benchmark])
        for each in row
        if each.benchmark != AVERAGE
    }
    for each in (each for each in row if each.benchmark == AVERAGE):
        parts = [other for other in row if other.benchmark != AVERAGE]
        sources = [source for other in parts for source in printed.benchmarks[other.benchmark]]
        alike = {other.metric for other in parts} == {each.metric}
        cells[each.head] = _value(frames, found, each.metric, sources) if alike else _mean(list(cells.values()))
    return cells


def _difference(frames: Frames, printed: Printed, rows: str) -> dict[str, Cell]:
    """Of two rows of this table, those of the first counterparts."""
    found: list[dict[str, Cell]] = []
    for name in rows.split(MINUS):
        row = [each for each in printed.cells if each.line == name]
        found.append(next((cells for _, cells in _counterpart_cells(frames, printed, row)), {}))
    first, second = found
    return {head: _plain(first[head].mean - second[head].mean if head in second else math.nan) for head in first}


def _mean(cells: Sequence[Cell]) -> Cell:
    """Of columns that measure different things: a number, whose uncertainty is not known."""
    return _plain(float(np.mean([own.mean for own in cells])) if cells else math.nan)


def _plain(mean: float) -> Cell:
    return Cell(mean, state="ok" if math.isfinite(mean) else "not evaluated")


# --- which arms


def counterparts(frames: Frames, selector: str) -> list[Counterpart]:
    """selector: `model=Qwen2.5-7B task=math loss=grpo`, the model first; `key!=value` too; `base`: before training.

    model: the last part of a path or of a name on the hub, or the option of the group.
    """
    first, *wanted = (word for word in selector.split() if word != BASE)
    evaluated = evaluations(frames)
    trained = [arm for arm in _of_model(frames, first) if all(_has(arm, word) for word in wanted)]
    own = {arm: _newest([e for e in evaluated if _policy(e)[0] == arm.own_group], arm) for arm in trained}
    if BASE in selector.split():
        bases = _bases([e for found in own.values() for e in found], evaluated, first.removeprefix("model="))
        return [Counterpart("", tuple(trained), True, tuple(bases))] if trained or bases else []
    return [Counterpart(arm.label if len(trained) > 1 else "", (arm,), False, tuple(own[arm])) for arm in trained]


def _of_model(frames: Frames, word: str) -> list[Arm]:
    """The arms that were trained from a model, `model=NAME`: of most studies none, which is to be found out at once."""
    if word not in frames.cache:
        trained = (arm for arm in arms(frames) if not (arm.control or is_evaluation(arm.first)))
        frames.cache[word] = [arm for arm in trained if _is_model(arm.first, word.removeprefix("model="))]
    return frames.cache[word]


def _policy(evaluation: Arm) -> tuple[str, int]:
    """(the group of the runs that trained it, after which step)."""
    group, _, step = str(evaluation.first.knob("policy.group")).partition("@")
    return group, int(step or 0)


def _newest(evaluated: Sequence[Arm], arm: Arm) -> list[Arm]:
    """Evaluations of the last policy that was evaluated, first those at the temperature of the arm's own."""
    last = max((_policy(e)[1] for e in evaluated), default=0)
    usual = arm.first.knob("evaluation.temperature")
    here = [e for e in evaluated if _policy(e)[1] == last]
    return sorted(here, key=lambda e: e.first.knob("evaluation.temperature") != usual)


def _bases(trained: Sequence[Arm], evaluations: Sequence[Arm], model: str) -> list[Arm]:
    """Evaluations of the base policy: under the name of the model, or beside those of policies trained from it.

    trained: those. None where several base policies stand beside them: which is whose is not known.
    """
    sweeps = {run.sweep_id for arm in trained for run in arm.runs if run.sweep_id}
    beside = [e for e in evaluations if policy_of(e.first) == BASE and e.first.sweep_id in sweeps]
    named = [e for e in evaluations if _names(policy_of(e.first), model)]
    return [*named, *(beside if len({_policy(e)[0] for e in beside}) == 1 else ())]


def _has(arm: Arm, word: str) -> bool:
    key, _, value = word.partition("=")
    own = arm.divergence if key == "divergence" else value_of(arm, key.removesuffix("!"))
    return own is not None and words.equal(own, value) != key.endswith("!")


def _is_model(run: Run, name: str) -> bool:
    return run.knob("model") == name or _names(str(run.knob("model.path") or ""), name)


def _names(path: str, model: str) -> bool:
    """Whether a path, or a name on the hub, is of this model."""
    return any(part == model or part.endswith(f"--{model}") for part in Path(path).parts)


# --- what they measured


def _value(frames: Frames, found: Counterpart, name: str, sources: Sequence[str]) -> Cell:
    """A metric by its printed name, averaged over benchmarks."""
    kind, _, k = name.partition("@")
    evaluated = [e for e in found.evaluations if _is_greedy(e) == (kind == "greedy")]
    if kind in MEASURES:
        options = [_measure(frames, e, MEASURES[kind], sources) for e in found.evaluations]
    elif kind == "majority":
        metric = Metric(Kind.EVALUATION, name, f"evaluation/{sources[0]}/maj_at_{k}")
        options = [cell(frames, e, metric, sources) for e in evaluated]
    else:
        size = int(k or 1)
        metric = pass_at(size) if kind in ("pass", "score") else avg(size)
        options = [cell(frames, e, metric, sources) for e in evaluated]
        if kind != "greedy":
            options = [_trained(frames, found, metric, sources), *options]
    return next((own for own in options if not own.empty), Cell(state="not evaluated"))


def _is_greedy(evaluation: Arm) -> bool:
    return float(evaluation.first.knob("evaluation.temperature") or 0) == 0


def _trained(frames: Frames, found: Counterpart, metric: Metric, sources: Sequence[str]) -> Cell:
    """What training's own evaluations measured: the last one, or that of step 0."""
    if found.base:
        return base_cell(frames, found.arms, metric, sources)
    return cell(frames, found.arms[0], metric, sources)


def _measure(frames: Frames, evaluation: Arm, name: str, sources: Sequence[str]) -> Cell:
    """What `rlvr.diagnostics.diversity` measured of the samples of an evaluation."""
    measured = diversity(frames, evaluation)
    own = [next((c for key, c in measured.get(s, {}).items() if key.startswith(name)), Cell()) for s in sources]
    return own[0] if len(own) == 1 else _mean(own)
