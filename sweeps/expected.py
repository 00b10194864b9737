"""What a study expects of its arms (`baseline`, `claims`) against the arms that a launch plans: what no run can test is
refused before the runs, not told after them.

Refused: a metric that none of the runs measures; an option that its group does not have; a claim that compares arms
with themselves; and, of a study that is launched as its file has it, an arm that neither it nor another sweep of the
study has. A study may grow over several launches: of an arm that a part of it lacks, a line warns.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hydra.errors import InstantiationException

from rlvr.config.overrides import key_of
from rlvr.config.registry import Registry
from rlvr.ledger.identity import EXPECTED, LINES, NOT_IDENTITY
from rlvr.ledger.runs import Unreadable, read_config
from rlvr.ledger.sweeps import NO_STUDY, Ledger
from sweeps.plan import Plan
from sweeps.planned import evaluated

SHOWN = 8  # arms that a line names, at most
WHOLE = {"study", "seed", *NOT_IDENTITY} - {*LINES, *EXPECTED}  # keys that leave the arms of a study what they are
BY_ITSELF = "loss=grpo"  # reports bring GRPO runs of other studies in


def check(planned: Plan, ledger: Ledger, registry: Registry, typed: Sequence[str]) -> str:
    """A line on what these runs cannot test and others might; "" if there is nothing. typed: the words of the command.

    Raises ValueError for what none can.
    """
    config = planned.runs[0].config
    baseline, claims = str(config.get("baseline") or ""), list(config.get("claims") or ())
    if not baseline and not claims:
        return ""
    analysis = _analysis()
    _check_options(analysis.selectors(baseline, claims), registry)
    if claims and (problem := analysis.unmeasured(claims, _evaluations(planned))):
        raise ValueError(f"{problem} Correct it, or drop the claims: claims=[].")
    arms = [analysis.PlannedArm(planned.sweep_id, run.group_id, run.overrides, run.config) for run in planned.runs]
    missing = _open(analysis.untestable(arms, baseline, claims), config)
    if not missing:
        return ""
    shown = _planned(analysis.labels(arms))
    if itself := [each for each in missing if each.itself]:
        raise ValueError(f"{_told(itself)}. Name another arm in arm or against.{shown}")
    if others := [analysis.PlannedArm(*each) for each in _of_other_sweeps(planned, ledger)]:
        missing = _open(analysis.untestable([*others, *arms], baseline, claims), config)
    if _is_whole(typed) and (never := [each for each in missing if each.absent and BY_ITSELF not in each.absent]):
        raise ValueError(f"{_told(never)}, in this study or another sweep of it.{shown}")
    return f"These runs alone cannot test all that is expected of them: {_told(missing)}.{shown}" if missing else ""


def _analysis() -> Any:
    return importlib.import_module("analysis.expected")


def _open(missing: Sequence[Any], config: Mapping[str, Any]) -> list[Any]:
    """With `tune=` every arm is planned at each value, of which reports have one: which arms agree, it is too early to
    say; which there are, is not."""
    return [each for each in missing if each.absent or each.itself or not config.get("tune")]


def _check_options(selectors: Iterable[tuple[str, Mapping[str, Sequence[str]]]], registry: Registry) -> None:
    """ValueError for an option that its group does not have: no sweep has an arm with it."""
    groups = set(registry.groups())
    for where, wanted in selectors:
        for group in (key for key in wanted if key in groups):
            options = registry.options(group)
            if unknown := [option for option in wanted[group] if option not in options]:
                raise ValueError(f"{where}: {group}={unknown[0]} is no option. Options: {', '.join(options)}.")


def _evaluations(planned: Plan) -> list[tuple[list[str], int]]:
    """What each kind of run logs when it is evaluated, and its samples of a problem; [] where that cannot be known."""
    kinds = {repr((run.config["task"], run.config["evaluation"])): run.config for run in planned.runs}
    found: list[tuple[list[str], int]] = []
    for config in kinds.values():
        try:
            found.append((evaluated(config), config["evaluation"]["samples"]))
        except InstantiationException:  # a dry run without the task's data, which it says
            return []
    return found


def _of_other_sweeps(planned: Plan, ledger: Ledger) -> list[tuple[str, str, tuple[str, ...], Mapping[str, Any]]]:
    """A run of each arm that other sweeps of the study have on the ledger."""
    found: dict[str, tuple[str, str, tuple[str, ...], Mapping[str, Any]]] = {}
    for sweep in ledger.sweeps():
        if sweep.sweep_id == planned.sweep_id or (sweep.study or NO_STUDY) != planned.study:
            continue
        for line in sweep.runs:
            group = str(line.get("group_id") or line["run_id"])
            if group not in found and not line.get("control"):
                with contextlib.suppress(Unreadable, OSError):
                    config = read_config(ledger.run_dir(line["run_id"]))
                    found[group] = (sweep.sweep_id, group, tuple(line.get("overrides", ())), config)
    return list(found.values())


def _is_whole(typed: Sequence[str]) -> bool:
    """Whether a command launches all arms that the file of a study has."""
    keys = {key_of(word).split(".")[0] for word in typed if "=" in word and not word.startswith("-")}
    return "study" in keys and keys <= WHOLE


def _told(missing: Iterable[Any]) -> str:
    return "; ".join(f"{each.what}: {each.why}" for each in missing)


def _planned(labels: Sequence[str]) -> str:
    more = f" and {len(labels) - SHOWN} more" if len(labels) > SHOWN else ""
    return f" Planned here: {'; '.join(labels[:SHOWN])}{more}."
