"""Our runs in the layout of a paper's table: below each printed row the arms that correspond to it."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from analysis.frames.frames import Frames, grouped, remembered
from analysis.paper.printed import AVERAGE, MINUS, RAW, PaperTable, PrintedCell, as_published, tables
from analysis.report.cells import cells_frame, record
from analysis.report.grid import OURS
from analysis.report.table import Format, Table, interval_notes, seeds_of
from analysis.scores import labels
from analysis.scores.arm import Arm, arms
from analysis.scores.cell import Cell, base_cell, cell
from analysis.scores.metric import Kind, Metric, avg, pass_at
from analysis.scores.policy_evaluations import BASE, diversity, evaluations, is_evaluation, policy_of
from analysis.scores.selection import value_of

RUNS = (
    "Below a printed row: runs of the same objective, knobs and model, at their last evaluation. avg@k is of all "
    "samples that were drawn."
)
# How the names of these measures of papers begin in `rlvr.diagnostics.diversity`.
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
    """What corresponds to a printed row: an arm and the evaluations of its policy; for a row of a base policy, all arms
    that start from it, and its evaluations.

    label: distinguishes it from other counterparts of the row; "" for the only one.
    """

    label: str
    arms: tuple[Arm, ...]
    base: bool
    evaluations: tuple[Arm, ...]


def of_runs(frames: Frames) -> dict[str, Table]:
    """By name, the tables of papers with a row to which some run corresponds."""
    records = {name: _all_records(frames, printed) for name, printed in tables().items()}
    return {name: _table(tables()[name], table_records) for name, table_records in records.items() if table_records}


def table(frames: Frames | None, printed: PaperTable) -> Table:
    """The printed table with a row of ours, below the printed one, for every arm that corresponds to it."""
    return _table(printed, _all_records(frames, printed) if frames else [])


def _table(printed: PaperTable, records: Sequence[Mapping[str, Any]]) -> Table:
    cells = cells_frame(records)
    return Table(
        printed.name,
        f"{printed.paper}, {printed.title}",
        printed.says,
        cells,
        tuple(dict.fromkeys(place.metric for place in printed.cells)),
        (
            f"Printed: {printed.paper} ({printed.source}), {printed.title}, {printed.place}; {printed.of}.",
            *((RUNS, *(interval_notes(seeds_of(cells)))) if records else ()),
        ),
        (as_published(printed),),
        formats=_formats(printed),
        beside=True,
    )


def _formats(printed: PaperTable) -> dict[str, Format]:
    """By head of a column, the format in which the paper prints it: with the most decimals of its cells."""
    formats: dict[str, Format] = {}
    for place in printed.cells:
        before = formats[place.head].decimals or 0 if place.head in formats else 0
        decimals = max(before, len(place.text.partition(".")[2]))
        formats[place.head] = Format(1.0 if place.metric in RAW else 100.0, decimals)
    return formats


def _all_records(frames: Frames, printed: PaperTable) -> list[Mapping[str, Any]]:
    rows = grouped(printed.cells, lambda place: (place.panel, place.line))
    return [row_record for row in rows.values() for row_record in _records(frames, printed, row)]


def _records(frames: Frames, printed: PaperTable, row: Sequence[PrintedCell]) -> Iterator[Mapping[str, Any]]:
    """Our cells of one printed row, counterpart by counterpart; none for a counterpart without any number."""
    for label, cells in _counterpart_cells(frames, printed, row):
        if all(scored.empty for scored in cells.values()):
            continue
        name = f"{row[0].line}{OURS}{f' ({label})' if label else ''}"
        for place in row:
            yield record(place.panel, name, (place.metric, place.head), cells[place.head])


def _counterpart_cells(
    frames: Frames, printed: PaperTable, row: Sequence[PrintedCell]
) -> Iterator[tuple[str, dict[str, Cell]]]:
    """(label, cells by head) of every counterpart of a printed row."""
    selector = row[0].arm
    if MINUS in selector:
        yield "", _difference(frames, printed, selector)
        return
    if not selector:
        return
    for counterpart in counterparts(frames, selector):
        yield counterpart.label, _cells(frames, counterpart, printed, row)


def _cells(
    frames: Frames, counterpart: Counterpart, printed: PaperTable, row: Sequence[PrintedCell]
) -> dict[str, Cell]:
    """Our cells of a row, by head. An average is of the same benchmarks as the paper's."""
    parts = [place for place in row if place.benchmark != AVERAGE]
    cells = {
        place.head: _value(frames, counterpart, place.metric, printed.benchmarks[place.benchmark]) for place in parts
    }
    for average in (place for place in row if place.benchmark == AVERAGE):
        sources = tuple(source for place in parts for source in printed.benchmarks[place.benchmark])
        if {place.metric for place in parts} == {average.metric}:
            cells[average.head] = _value(frames, counterpart, average.metric, sources)
        else:
            cells[average.head] = _mean(list(cells.values()))
    return cells


def _difference(frames: Frames, printed: PaperTable, rows: str) -> dict[str, Cell]:
    """By head, the difference of two rows of the table, `ROW - ROW`, each by its first counterpart."""
    by_row: list[dict[str, Cell]] = []
    for name in rows.split(MINUS):
        row = [place for place in printed.cells if place.line == name]
        by_row.append(next((cells for _, cells in _counterpart_cells(frames, printed, row)), {}))
    first, second = by_row
    return {head: _plain(first[head].mean - second[head].mean if head in second else math.nan) for head in first}


def _mean(cells: Sequence[Cell]) -> Cell:
    """The mean of cells that measure different things: a number without uncertainty."""
    return _plain(float(np.mean([scored.mean for scored in cells])) if cells else math.nan)


def _plain(mean: float) -> Cell:
    """A cell without uncertainty."""
    return Cell(mean, state="ok" if math.isfinite(mean) else "not evaluated")


# --- which arms


def counterparts(frames: Frames, selector: str) -> list[Counterpart]:
    """What corresponds to a printed row.

    selector: `model=Qwen2.5-7B task=math loss=grpo`, the model first; `key!=value` excludes a value; the word `base`
    selects the policy before training. The model is the last part of a path or of a name on the hub, or the option of
    the config group.
    """
    first, *wanted = (word for word in selector.split() if word != BASE)
    evaluated = evaluations(frames)
    trained = [arm for arm in _of_model(frames, first) if all(_has(arm, word) for word in wanted)]
    evaluations_of = {arm: _newest([e for e in evaluated if _policy(e)[0] == arm.own_group], arm) for arm in trained}
    if BASE in selector.split():
        of_trained = [evaluation for arm_evaluations in evaluations_of.values() for evaluation in arm_evaluations]
        bases = _bases(of_trained, evaluated, first.removeprefix("model="))
        return [Counterpart("", tuple(trained), True, tuple(bases))] if trained or bases else []
    of_setting = labels.made_distinct({arm: arm.label for arm in trained}, [lambda a, *_: f"{a.label}, {a.setting}"])
    names = of_setting if len(trained) > 1 else dict.fromkeys(trained, "")
    return [Counterpart(names[arm], (arm,), False, tuple(evaluations_of[arm])) for arm in trained]


@remembered  # every row of every table needs them
def _of_model(frames: Frames, word: str) -> list[Arm]:
    """The arms that were trained from a model, `model=NAME`."""
    name = word.removeprefix("model=")
    trained = [(arm, arm.first) for arm in arms(frames) if not (arm.control or is_evaluation(arm.first))]
    return [a for a, run in trained if run.knob("model") == name or _names(str(run.knob("model.path") or ""), name)]


def _policy(evaluation: Arm) -> tuple[str, int]:
    """(the group of the runs that trained the evaluated policy, the step of its checkpoint).

    Checkpoints that are each the best of its run (`group@best`) have no step in common: as a group of their own they
    stand in no row, since rows are of last evaluations.
    """
    policy_group = str(evaluation.first.knob("policy.group"))
    group, _, step = policy_group.partition("@")
    return (group, int(step)) if step.isdigit() else (policy_group, 0)


def _newest(evaluated: Sequence[Arm], arm: Arm) -> list[Arm]:
    """The evaluations of the latest evaluated checkpoint, first those at the temperature that training evaluates at."""
    last = max((_policy(e)[1] for e in evaluated), default=0)
    usual = arm.first.knob("evaluation.temperature")
    of_last = [e for e in evaluated if _policy(e)[1] == last]
    return sorted(of_last, key=lambda e: e.first.knob("evaluation.temperature") != usual)


def _bases(trained: Sequence[Arm], evaluations: Sequence[Arm], model: str) -> list[Arm]:
    """Evaluations of the base policy: named after the model, or in the sweeps that evaluate policies trained from it.

    trained: the evaluations of those policies. Where their sweeps evaluate several base policies, it is not known which
    one belongs to the model, and only those named after it count.
    """
    sweeps = {run.sweep_id for arm in trained for run in arm.runs if run.sweep_id}
    beside = [e for e in evaluations if policy_of(e.first) == BASE and e.first.sweep_id in sweeps]
    named = [e for e in evaluations if _names(policy_of(e.first), model)]
    return [*named, *(beside if len({_policy(e)[0] for e in beside}) == 1 else ())]


def _has(arm: Arm, word: str) -> bool:
    """Whether an arm satisfies a word of a selector, `key=value` or `key!=value`."""
    key, _, value = word.partition("=")
    arm_value = arm.divergence if key == "divergence" else value_of(arm, key.removesuffix("!"))
    return arm_value is not None and labels.equal(arm_value, value) != key.endswith("!")


def _names(path: str, model: str) -> bool:
    """Whether a path, or a name on the hub, is that of a model."""
    parts = [part.partition("@")[0] for part in Path(path).parts]  # a hub name has its commit behind it
    return any(part == model or part.endswith(f"--{model}") for part in parts)


# --- what they measured


def _value(frames: Frames, counterpart: Counterpart, name: str, sources: tuple[str, ...]) -> Cell:
    """What a counterpart scores by a metric with its printed name, averaged over benchmarks."""
    kind, _, k = name.partition("@")
    temperature = {e: float(e.first.knob("evaluation.temperature") or 0) for e in counterpart.evaluations}
    evaluated = [e for e in counterpart.evaluations if (temperature[e] == 0) == (kind == "greedy")]
    if kind in MEASURES:
        options = [_measure(frames, e, MEASURES[kind], sources) for e in counterpart.evaluations]
    elif kind == "majority":
        metric = Metric(Kind.EVALUATION, name, f"evaluation/{sources[0]}/maj_at_{k}")
        options = [cell(frames, e, metric, sources) for e in evaluated]
    else:
        size = int(k or 1)
        metric = pass_at(size) if kind in ("pass", "score") else avg(size)
        options = [cell(frames, e, metric, sources) for e in evaluated]
        if kind != "greedy":
            # What the evaluations within training measured: the last one, or for a base policy that of step 0.
            score = base_cell(frames, counterpart.arms, metric, sources) if counterpart.base else None
            options = [score or cell(frames, counterpart.arms[0], metric, sources), *options]
    return next((scored for scored in options if not scored.empty), Cell(state="not evaluated"))


def _measure(frames: Frames, evaluation: Arm, name: str, sources: tuple[str, ...]) -> Cell:
    """What `rlvr.diagnostics.diversity` measured of the samples of an evaluation."""
    measured = diversity(frames, evaluation)
    by_source = [next((c for key, c in measured.get(s, {}).items() if key.startswith(name)), Cell()) for s in sources]
    return by_source[0] if len(by_source) == 1 else _mean(by_source)
