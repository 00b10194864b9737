"""The divergence table: strict and weak f-divergences, averaged over η and at their best η (LAD, table 8)."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.frames.frames import Frames, grouped
from analysis.paper.printed import published
from analysis.report.cells import Block, Row, columns, fill
from analysis.report.table import Table, with_notes
from analysis.scores.arm import STRICT, WEAK, Arm, rank
from analysis.scores.cell import cell, validation_scores
from analysis.scores.comparable import Comparable, lad_settings, shown
from analysis.scores.labels import inverse
from analysis.tables.eta import adding_command, reference, reference_rows

QUESTION = "Which f-divergence should match the policy to LAD's target, and do strict ones beat weak ones?"
NEEDS = "runs of LAD with an η, evaluated on problems"
FAMILIES = {"strict": STRICT, "weak": WEAK}


@dataclass(frozen=True)
class DivergenceArms:
    """A divergence (and variant) at all of its η. best: the arm with the chosen η; None where no arm has a result."""

    name: str
    family: str
    arms: tuple[Arm, ...]
    best: Arm | None
    num_scored: int  # arms with a result


@dataclass(frozen=True)
class Summary:
    """The divergences of a setting. etas: those that every group has, descending; without any there is no mean over η.
    validated: whether the best η were chosen on the validation split, not on what is reported."""

    groups: tuple[DivergenceArms, ...]
    etas: tuple[float, ...]
    validated: bool

    def over(self, group: DivergenceArms) -> tuple[Arm, ...]:
        """The arms of a group at the shared η, over which its mean is taken."""
        return tuple(a for a in group.arms if a.eta in self.etas)

    def family(self, name: str) -> list[DivergenceArms]:
        return [group for group in self.groups if group.family == name]


def table(frames: Frames) -> Table | None:
    """None without NEEDS."""
    settings = lad_settings(frames)
    if not settings:
        return None
    parts = [fill(frames, _blocks(frames, setting), columns(setting.metrics, setting.sources)) for setting in settings]
    paper = published("lad", 8)
    cells = pd.concat(parts, ignore_index=True)
    ours = Table(
        "divergence", "Divergence ablation", QUESTION, cells, shown(settings), _notes(frames, settings), (paper,)
    )
    return with_notes(ours, frames)


def summarise(frames: Frames, setting: Comparable) -> Summary:
    """Every divergence of one setting, the strict family first."""
    names = {arm: arm.named(arm.divergence, tuned=False) for arm in setting.lad}
    groups = grouped(sorted(names, key=lambda a: (rank(a.divergence), names[a], -a.eta)), names.__getitem__)
    shared = set.intersection(*({a.eta for a in arms} for arms in groups.values()))
    metric = setting.shown[0]  # the widest avg@n
    reported = {a: cell(frames, a, metric, setting.sources).mean for a in setting.lad}
    scored = [a for a, mean in reported.items() if math.isfinite(mean)]
    on_validation = {a: float(np.mean([*validation_scores(frames, a, metric).values()])) for a in scored}
    is_validated = bool(on_validation) and all(map(math.isfinite, on_validation.values()))
    means = on_validation if is_validated else reported
    return Summary(
        tuple(_group(name, arms, means) for name, arms in groups.items()),
        tuple(sorted(shared, reverse=True)),
        is_validated,
    )


def _group(name: str, arms: list[Arm], means: Mapping[Arm, float]) -> DivergenceArms:
    scored_arms = [a for a in arms if math.isfinite(means.get(a, math.nan))]
    best = max(scored_arms, key=lambda a: means[a]) if scored_arms else None
    divergence = arms[0].divergence
    family = next((f for f, members in FAMILIES.items() if divergence in members), "")
    return DivergenceArms(name, family, tuple(arms), best, len(scored_arms))


def _blocks(frames: Frames, setting: Comparable) -> Iterable[Block]:
    """Two blocks: the mean over the shared η, compared to GRPO, and the best η of each divergence, compared to nothing:
    even an η that was chosen on the validation split looks better than it is under the seeds it was chosen with. With
    one η there is a single block.
    """
    summary = summarise(frames, setting)
    all_etas = {a.eta for group in summary.groups for a in group.arms}
    references = reference_rows(frames, setting)
    if len(all_etas) == 1:
        title = f"1/η = {inverse(all_etas.pop())}"
    else:
        title = f"Mean over 1/η = {', '.join(inverse(eta) for eta in summary.etas)}"
    if summary.etas:
        rows = _family_rows(
            summary, {g.name: Row(g.name, summary.over(g), against=reference(setting)) for g in summary.groups}
        )
        yield Block(setting.titled(title), (*references, *rows))
    if len(all_etas) > 1:
        how = "the validation split, under these very seeds" if summary.validated else "these very samples"
        title = f"Best 1/η of each (chosen by avg@n on {how}: optimistic, no verdict)"
        best = {g.name: Row(_best_name(g), (g.best or g.arms[0],)) for g in summary.groups}
        rows = _family_rows(summary, best)
        yield Block(setting.titled(title), (*references, *rows))


def _family_rows(summary: Summary, rows: dict[str, Row]) -> list[Row]:
    """The rows in the order of the families, each family followed by its mean. rows: by name of group."""
    ordered_rows: list[Row] = []
    for family in (*FAMILIES, ""):
        groups = summary.family(family)
        ordered_rows += [rows[g.name] for g in groups]
        if family and groups:
            name = f"{family} mean ({', '.join(g.name for g in groups)})"
            ordered_rows.append(
                Row(name, groups=tuple(rows[g.name].arms for g in groups), against=rows[groups[0].name].against)
            )
    return ordered_rows


def _best_name(group: DivergenceArms) -> str:
    if group.best is None:
        return group.name
    remark = "" if group.num_scored == len(group.arms) else f", best of {group.num_scored} of {len(group.arms)}"
    return f"{group.name} (1/η = {inverse(group.best.eta)}{remark})"


def _notes(frames: Frames, settings: list[Comparable]) -> tuple[str, ...]:
    lad = [a for s in settings for a in s.lad]
    last = "Runs count at their last evaluation; no checkpoint is selected."
    tried = {a.divergence for a in lad}
    absent = {family: [d for d in members if d not in tried] for family, members in FAMILIES.items()}
    missing = [d for members in absent.values() for d in members]
    if not missing:
        return (last,)
    listed = "; ".join(f"{', '.join(members)} ({family} family)" for family, members in absent.items() if members)
    etas = ",".join(f"{eta:g}" for eta in sorted({a.eta for a in lad}))
    added = ("loss=lad", f"divergence={','.join(missing)}", f"eta={etas}")
    command = adding_command(frames, lad, added, without=("loss", "divergence", "eta"))
    return (last, f"Not in this study: {listed}. Add them: `{command}`")
