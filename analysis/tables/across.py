"""The difference of each arm to its reference over several settings or laboratories, which are draws from many."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from analysis.frames.frames import Frames
from analysis.report.cells import cells_frame, record
from analysis.report.table import Table, format_of
from analysis.scores import labels, student
from analysis.scores.arm import Arm
from analysis.scores.cell import Cell, cell
from analysis.scores.comparable import by_setting
from analysis.scores.comparison import DECIDED, LUCKY, PERHAPS_ABOVE, PERHAPS_BELOW, Compared, compare
from analysis.scores.crossed import LEVEL
from analysis.scores.factors import compared_effects, crossings
from analysis.scores.metric import Kind, Metric
from analysis.scores.random_effects import Pooled, pooled
from analysis.scores.selection import reference_of

QUESTION = "Does a difference hold over base policies, tasks or laboratories, not only in one?"
NEEDS = "arms of the same names in two settings, evaluated on problems"
ALL = "all (random effects)"
Key = tuple[str, str, str, bool]  # labels of an arm and of its reference, metric, whether it is an effect of a knob


@dataclass(frozen=True)
class Unit:
    """A difference in one setting of one study. name: of both; runs: of both arms."""

    name: str
    metric: Metric
    compared: Compared
    runs: frozenset[str]

    @property
    def variance(self) -> float:
        """Of its error, which a bound on unseen problems is part of; NaN without an interval."""
        summary = self.compared.difference.summary
        return (summary.interval().half / float(student.critical(LEVEL, summary.df))) ** 2


def table(frames: Frames) -> Table | None:
    """Over the settings of one study. None without NEEDS."""
    return across({"": frames})


def across(studies: Mapping[str, Frames], against: str = "") -> Table | None:
    """Over the settings of all studies, by name. against: selects the reference, as in `python -m analysis --against`;
    "": the default of each study."""
    units: dict[Key, list[Unit]] = {}
    repeated: set[str] = set()
    for name, frames in studies.items():
        for key, unit in chain(_units(name, frames, against), _effects(name, frames)):
            if any(unit.runs & other.runs for other in units.get(key, ())):
                repeated.add(unit.name)
            else:
                units.setdefault(key, []).append(unit)
    several = {key: of_key for key, of_key in units.items() if len(of_key) > 1}
    if not several:
        return None
    records, notes = list[dict[str, Any]](), list[str]()
    for key, of_key in several.items():
        family = sum(other[2:] == key[2:] for other in several)
        records += [_record(key, unit.name, _alone(unit.compared)) for unit in of_key]
        effects = [unit.compared.effect for unit in of_key]
        df = [float(unit.compared.difference.summary.df) for unit in of_key]
        whole = pooled(effects, [unit.variance for unit in of_key], df)
        unfair = LUCKY if any(unit.compared.unfair for unit in of_key) else ""
        records.append(_record(key, ALL, _whole(whole, family, unfair)))
        notes.append(_heterogeneity(key, whole, of_key))
    formats = {key[2]: format_of(of_key[0].metric) for key, of_key in several.items()}
    family_note = (
        f"{'Rows of one knob, or of two (×): its effect over the others, as in factors. ' * any(k[3] for k in several)}"
        f"{ALL}: settings are draws from all that there might be (τ² by Paule and Mandel, t interval by Hartung and "
        "Knapp), simultaneous over the arms of a metric (Bonferroni). Other rows: 95 %, each alone."
    )
    repeats = [f"Left out of {name}: differences whose runs count already." for name in sorted(repeated)]
    return Table(
        *("across", "Across settings", QUESTION, cells_frame(records), tuple(formats)),
        notes=(family_note, *repeats, *notes),
        formats=formats,
        differences=True,
        scores=False,
    )


def _units(name: str, frames: Frames, against: str) -> Iterable[tuple[Key, Unit]]:
    for setting in by_setting(frames):
        trained = [arm for arm in setting.arms if not arm.control]
        references = reference_of(trained, against, frames.baseline)
        pairs = {arm.group_id: (arm, references[arm.group_id]) for arm in trained if arm.group_id in references}
        for metric in setting.shown:
            cells = {group: cell(frames, arm, metric, setting.sources) for group, (arm, _) in pairs.items()}
            others = {group: cell(frames, of, metric, setting.sources) for group, (_, of) in pairs.items()}
            metric_name = str(metric.kind if metric.kind == Kind.AVG else metric)  # avg@8 estimates what avg@16 does
            for group, compared in compare(cells, others).items():
                arm, of = pairs[group]
                title = ": ".join(filter(None, (name, setting.name)))
                unit = Unit(title, metric, compared, frozenset((*arm.run_ids, *of.run_ids)))
                if unit.variance > 0:
                    yield (name_of(arm), name_of(of), metric_name, False), unit


def _effects(name: str, frames: Frames) -> Iterable[tuple[Key, Unit]]:
    """The effects of crossed knobs in each setting, as in the table `factors`."""
    for setting in by_setting(frames):
        for crossing in crossings(setting.arms, frames.swept, frames.baseline):
            rows, reference = crossing.named()
            runs = frozenset(run_id for arm in crossing.arms.values() for run_id in arm.run_ids)
            for metric in setting.shown:
                cells = {levels: cell(frames, arm, metric, setting.sources) for levels, arm in crossing.arms.items()}
                effects = compared_effects(crossing, cells)
                for row, compared in zip(rows, effects, strict=bool(effects)):
                    unit = Unit(": ".join(filter(None, (name, setting.name))), metric, compared, runs)
                    if unit.variance > 0:
                        yield (row, reference, str(metric.kind if metric.kind == Kind.AVG else metric), True), unit


def name_of(arm: Arm) -> str:
    """The loss and the swept knobs, without those that were tuned for each arm: alike in studies that sweep others."""
    knobs = {key: arm.knobs[key] for key in sorted(arm.knobs) if key not in arm.tuned}
    as_numbers = {key: math.nan if key == "loss" else labels.number(value) for key, value in knobs.items()}
    values = {key: value if math.isnan(as_numbers[key]) else f"{as_numbers[key]:g}" for key, value in knobs.items()}
    return labels.text(({"loss": arm.loss} if arm.loss else {}) | values)


def _record(key: Key, row: str, values: Mapping[str, Any]) -> dict[str, Any]:
    arm, reference, metric, _ = key
    return {**record(arm, row, (metric, ""), Cell(state="ok")), "reference": reference, **values}


def _alone(compared: Compared) -> dict[str, Any]:
    values = compared.record()
    return values | {"verdict": "", "difference_low": values["plain_low"], "difference_high": values["plain_high"]}


def _whole(whole: Pooled, family: int, unfair: str) -> dict[str, Any]:
    plain, simultaneous = whole.interval(LEVEL), whole.interval(1 - (1 - LEVEL) / family)
    marks = DECIDED if simultaneous.excludes(0) else (PERHAPS_ABOVE, PERHAPS_BELOW)
    mark = marks[whole.mean < 0] if plain.excludes(0) and not unfair else ""
    return {
        **{"difference": whole.mean, "verdict": mark, "family": family, "unfair": unfair},
        **{"plain_low": plain.low, "plain_high": plain.high},
        **{"difference_low": simultaneous.low, "difference_high": simultaneous.high},
    }


def _heterogeneity(key: Key, whole: Pooled, units: Sequence[Unit]) -> str:
    scale, sign = format_of(units[0].metric).scale, math.copysign(1, whole.mean)
    in_each = all(sign * unit.compared.effect > 0 and unit.compared.judged.plain.excludes(0) for unit in units)
    another = whole.of_another(LEVEL).times(scale)
    one_more = f"; another setting's effect lies in [{another.low:.1f}, {another.high:.1f}]" if whole.count > 2 else ""
    holds = f"; {'above' if sign > 0 else 'below'} in each of the {whole.count}" if in_each else ""
    return (
        f"{key[0]}, {key[2]}: τ = {scale * whole.tau2**0.5:.2g}, I² = {100 * whole.i2:.0f} %, Q({whole.count - 1}) = "
        f"{whole.q:.3g} (p = {whole.p:.2g}){one_more}{holds}."
    )
