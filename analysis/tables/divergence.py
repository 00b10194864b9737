"""The divergence table: strict and weak f-divergences, averaged over η and at their best η (LAD, table 8)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pandas as pd

from analysis.frames.frames import Frames
from analysis.paper.printed import published
from analysis.report.layout import Block, Row, columns, fill
from analysis.report.table import Table, with_notes
from analysis.scores.arm import STRICT, WEAK, Arm, rank
from analysis.scores.cell import cell, validated
from analysis.scores.comparable import Comparable, lad_settings, shown
from analysis.scores.words import inverse
from analysis.tables.eta import label, reference, reference_rows

QUESTION = "Which f-divergence should match the policy to LAD's target, and do strict ones beat weak ones?"
FAMILIES = {"strict": STRICT, "weak": WEAK}


@dataclass(frozen=True)
class Group:
    """A divergence (and variant) at all of its η. `best`: the arm that was chosen, None without a result."""

    name: str
    family: str
    arms: tuple[Arm, ...]
    best: Arm | None
    scored: int  # arms with a result


@dataclass(frozen=True)
class Summary:
    """etas: shared by every group, descending; with none there is no mean over η. validated: the best η were chosen on
    the validation split, not on what is reported."""

    groups: tuple[Group, ...]
    etas: tuple[float, ...]
    validated: bool

    def over(self, group: Group) -> tuple[Arm, ...]:
        """The arms of the shared η: what a mean over η takes."""
        return tuple(a for a in group.arms if a.eta in self.etas)

    def family(self, name: str) -> list[Group]:
        return [group for group in self.groups if group.family == name]


def table(frames: Frames) -> Table | None:
    """None if no LAD run has an η."""
    found = lad_settings(frames)
    if not found:
        return None
    parts = [fill(frames, _blocks(frames, s), columns(s.metrics, s.sources)) for s in found]
    paper = published("lad", 8)
    cells = pd.concat(parts, ignore_index=True)
    ours = Table("divergence", "Divergence ablation", QUESTION, cells, shown(found), _notes(found), (paper,))
    return with_notes(ours, frames)


def summarise(frames: Frames, setting: Comparable) -> Summary:
    """Every divergence of one setting, strict family first."""
    groups: dict[tuple[str, str], list[Arm]] = {}
    for arm in sorted(setting.lad, key=lambda a: (rank(a.divergence), a.variant, -a.eta)):
        groups.setdefault((arm.divergence, arm.variant), []).append(arm)
    shared = set.intersection(*({a.eta for a in arms} for arms in groups.values()))
    metric = setting.shown[0]  # the widest avg@n
    reported = {a: cell(frames, a, metric, setting.sources).mean for a in setting.lad}
    apart = {a: validated(frames, a, metric) for a, mean in reported.items() if math.isfinite(mean)}
    is_apart = bool(apart) and all(map(math.isfinite, apart.values()))
    found = tuple(_group(arms, apart if is_apart else reported) for arms in groups.values())
    return Summary(found, tuple(sorted(shared, reverse=True)), is_apart)


def _group(arms: list[Arm], means: Mapping[Arm, float]) -> Group:
    """means: that the best is chosen by."""
    have = [a for a in arms if math.isfinite(means.get(a, math.nan))]
    best = max(have, key=lambda a: means[a]) if have else None
    divergence = arms[0].divergence
    family = next((f for f, members in FAMILIES.items() if divergence in members), "")
    return Group(label(divergence, arms[0]), family, tuple(arms), best, len(have))


def _blocks(frames: Frames, setting: Comparable) -> Iterable[Block]:
    """The mean over the shared η, which stands against GRPO, and the best η of each, which gets no verdict: even one
    that the validation split chose looks better than it is under the seeds that it was chosen by. With one η there is
    nothing to average or to choose.
    """
    summary = summarise(frames, setting)
    every = {a.eta for group in summary.groups for a in group.arms}
    first = reference_rows(setting)
    if len(every) == 1:
        title = f"1/η = {inverse(every.pop())}"
    else:
        title = f"Mean over 1/η = {', '.join(inverse(e) for e in summary.etas)}"
    if summary.etas:
        rows = _family_rows(
            summary, {g.name: Row(g.name, summary.over(g), against=reference(setting)) for g in summary.groups}
        )
        yield Block(setting.titled(title), (*first, *rows))
    if len(every) > 1:
        how = "the validation split, under these very seeds" if summary.validated else "these very samples"
        title = f"Best 1/η of each (chosen by avg@n on {how}: optimistic, no verdict)"
        best = {g.name: Row(_best_name(g), (g.best or g.arms[0],)) for g in summary.groups}
        rows = _family_rows(summary, best)
        yield Block(setting.titled(title), (*first, *rows))


def _family_rows(summary: Summary, rows: dict[str, Row]) -> list[Row]:
    """Families one after the other, each with the mean of its divergences."""
    found: list[Row] = []
    for family in (*FAMILIES, ""):
        groups = summary.family(family)
        found += [rows[g.name] for g in groups]
        if family and groups:
            name = f"{family} mean ({', '.join(g.name for g in groups)})"
            found.append(
                Row(name, groups=tuple(rows[g.name].arms for g in groups), against=rows[groups[0].name].against)
            )
    return found


def _best_name(group: Group) -> str:
    if group.best is None:
        return group.name
    some = "" if group.scored == len(group.arms) else f", best of {group.scored} of {len(group.arms)}"
    return f"{group.name} (1/η = {inverse(group.best.eta)}{some})"


def _notes(found: list[Comparable]) -> tuple[str, ...]:
    lad = [a for s in found for a in s.lad]
    notes = ["Runs count at their last evaluation; no checkpoint is selected."]
    etas = ",".join(f"{e:g}" for e in sorted({a.eta for a in lad}))
    for family, members in FAMILIES.items():
        absent = [d for d in members if d not in {a.divergence for a in lad}]
        if absent:
            command = f"python -m rlvr.run -m loss=lad divergence={','.join(absent)} eta={etas}"
            notes.append(f"Not in this study, {family} family: {', '.join(absent)}. Add them: `{command}`")
    return tuple(notes)
