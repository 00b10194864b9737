"""Checks the expectations of a study (`baseline`, `claims`) against the arms that a launch plans, so that a claim which
no run can test is refused before the runs, and not reported after them.

Refused are: a metric that none of the runs measures; an option that its group does not have; a claim that compares arms
with themselves; and, where a study is launched as its file defines it, an arm that neither this launch nor another
sweep of the study has. A study may grow over several launches: an arm that is missing from a part of it is a warning.
So is a claim about time where runs share machines: its runs may be there for other claims.
"""

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from analysis import expected
from analysis.expected import PlannedArm, Untestable
from rlvr.config.overrides import key_of
from rlvr.config.registry import Registry
from rlvr.ledger.identity import EXPECTED, GRID_KEYS, NOT_IDENTITY
from rlvr.ledger.runs import Unreadable, read_config
from rlvr.ledger.sweeps import NO_STUDY, Ledger
from sweeps.plan import Plan
from sweeps.planned import evaluations

SHOWN = 8  # a message lists at most so many arms
WHOLE = {"study", "seed", *NOT_IDENTITY} - {*GRID_KEYS, *EXPECTED}  # keys that do not change the arms of a study
BY_ITSELF = "loss=grpo"  # never missing: reports also use the GRPO runs of other studies


def check(planned: Plan, ledger: Ledger, registry: Registry, typed: Sequence[str]) -> list[str]:
    """Warnings, one line each, about expectations that these runs cannot test but other runs might.

    typed: the words of the command. Raises ValueError for expectations that no run can test.
    """
    config = planned.runs[0].config
    baseline, claims = str(config.get("baseline") or ""), list(config.get("claims") or ())
    _check_options(expected.selectors(baseline, claims), registry)
    of_kinds = evaluations(planned.runs) if claims else []
    known = [of_kind for of_kind in of_kinds if of_kind is not None]
    if len(known) == len(of_kinds) and (problem := expected.unmeasured(claims, known)):
        raise ValueError(f"{problem} Correct it, or drop the claims: claims=[].")
    timed = "" if planned.own_gpus else expected.untestable_times(claims)
    absent = _absent(planned, ledger, typed, baseline, claims)
    return [line for line in (timed, absent) if line]


def _absent(planned: Plan, ledger: Ledger, typed: Sequence[str], baseline: str, claims: Sequence[Any]) -> str:
    """A warning about expectations of arms that these runs lack; "" if there are none. Raises as `check` does."""
    config = planned.runs[0].config
    arms = [PlannedArm(planned.sweep_id, run.group_id, run.overrides, run.config) for run in planned.runs]
    untestable = _certain(expected.untestable(arms, baseline, claims), config)
    if not untestable:
        return ""
    arms_here = _sentence_of_arms(expected.labels(arms))
    if with_itself := [problem for problem in untestable if problem.compares_to_itself]:
        raise ValueError(f"{_joined(with_itself)}. Name another arm in arm or against.{arms_here}")
    if others := _arms_of_other_sweeps(planned, ledger):
        untestable = _certain(expected.untestable([*others, *arms], baseline, claims), config)
    if _is_whole(typed):
        absent = [problem for problem in untestable if problem.absent and BY_ITSELF not in problem.absent]
        if absent:
            raise ValueError(f"{_joined(absent)}, in this study or another sweep of it.{arms_here}")
    if not untestable:
        return ""
    return f"These runs alone cannot test all that is expected of them: {_joined(untestable)}.{arms_here}"


def _certain(problems: Sequence[Untestable], config: Mapping[str, Any]) -> list[Untestable]:
    """The problems that are certain before the runs. With `tune=` every arm is planned at each value, and reported at
    one: that an arm is absent, or compared with itself, is known already; which arms agree in all else is not.
    """
    return [problem for problem in problems if problem.absent or problem.compares_to_itself or not config.get("tune")]


def _check_options(selectors: Iterable[tuple[str, Mapping[str, Sequence[str]]]], registry: Registry) -> None:
    """ValueError for an option that its group does not have: no sweep has an arm with it."""
    groups = set(registry.groups())
    for where, wanted in selectors:
        for group in (key for key in wanted if key in groups):
            options = registry.options(group)
            if unknown := [option for option in wanted[group] if option not in options]:
                raise ValueError(f"{where}: {group}={unknown[0]} is no option. Options: {', '.join(options)}.")


def _arms_of_other_sweeps(planned: Plan, ledger: Ledger) -> list[PlannedArm]:
    """Each arm of other sweeps of the study on the ledger, by one of its runs."""
    by_group: dict[str, PlannedArm] = {}
    for sweep in ledger.sweeps():
        if sweep.sweep_id == planned.sweep_id or (sweep.study or NO_STUDY) != planned.study:
            continue
        for line in sweep.runs:
            group = str(line.get("group_id") or line["run_id"])
            if group not in by_group and not line.get("control"):
                with contextlib.suppress(Unreadable, OSError):
                    config = read_config(ledger.run_dir(line["run_id"]))
                    by_group[group] = PlannedArm(sweep.sweep_id, group, tuple(line.get("overrides", ())), config)
    return list(by_group.values())


def _is_whole(typed: Sequence[str]) -> bool:
    """Whether a command launches all arms that the file of a study defines."""
    keys = {key_of(word).split(".")[0] for word in typed if "=" in word and not word.startswith("-")}
    return "study" in keys and keys <= WHOLE


def _joined(problems: Iterable[Untestable]) -> str:
    return "; ".join(f"{problem.what}: {problem.why}" for problem in problems)


def _sentence_of_arms(labels: Sequence[str]) -> str:
    more = f" and {len(labels) - SHOWN} more" if len(labels) > SHOWN else ""
    return f" Planned here: {'; '.join(labels[:SHOWN])}{more}."
