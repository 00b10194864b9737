"""`--dry-run`: what a launch would do, on paper. Reads the ledger and writes nothing."""

from __future__ import annotations

import functools
import json
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

from rlvr.config import CONF
from rlvr.identity import NOT_IDENTITY
from sweeps.ledger import Ledger, RunState
from sweeps.local import at_once
from sweeps.plan import Plan, Planned
from sweeps.progress import duration
from sweeps.slurm import cpus

Flat = dict[str, Any]  # dotted key -> value

# What a step costs hangs on the rest; runs that differ in these alone are taken to cost the same per step.
SAME_COST = {"seed", "steps", "lr", "eta", "beta", "advantage", "divergence", "loss", *NOT_IDENTITY}


def preview(plan: Plan, ledger: Ledger, *, slurm: bool) -> str:
    """The runs by name, what is finished already, differences to the default, resources and time."""
    states = {run.run_id: ledger.state(run.run_id) for run in plan.runs}
    todo = [run for run in plan.runs if states[run.run_id].state != "finished"]
    head = f"{plan.study} {plan.sweep_id}: {_count(len(plan.runs), 'run')}, {len(plan.runs) - len(todo)} finished"
    own, common = _apart([differences(run) for run in plan.runs])
    lines = [f"{head}, {len(todo)} to do. Dry run: nothing was written or started.", ""]
    lines += [f"All differ from the default in: {_shown(common)}"] if common else []
    width = max(len(run.name) for run in plan.runs)
    for run, mine in zip(plan.runs, own, strict=True):
        shown = _standing(states[run.run_id])
        lines.append(f"  {run.run_id}  {run.name:{width}}  {shown:18}  {_shown(mine)}".rstrip())
    lines += ["", *_resources(todo or plan.runs, slurm=slurm), _time(todo, states, ledger, slurm=slurm)]
    return "\n".join(lines)


def _standing(state: RunState) -> str:
    at = f" at {state.step}/{state.steps}" if state.step and state.state != "finished" else ""
    return ("new" if not state.attempt else state.state) + at


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


# --- differences


def differences(run: Planned) -> Flat:
    """Options that are not the default's, and knobs that are not what these options come with."""
    chosen = {k: v for k, v in run.config["choices"].items() if k != "study"}
    usual, plain = _composed(())["choices"], _composed(tuple(f"{k}={v}" for k, v in chosen.items()))
    options = {k: v for k, v in chosen.items() if usual.get(k) != v}
    mine, theirs = flat(run.config), flat(plain)
    ignored = {"choices", "also"}
    knobs = {k: v for k, v in mine.items() if theirs.get(k) != v and k.split(".")[0] not in ignored}
    # One cause, one difference: `steps=9` also stands in trainer.steps, which only reads it.
    return options | {k: v for k, v in knobs.items() if "." not in k or knobs.get(k.split(".")[-1]) != v}


@functools.cache
def _composed(options: tuple[str, ...]) -> dict[str, Any]:
    """The config of these options with no knob touched, and its choices."""
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        made = compose("run", list(options), return_hydra_config=True)
    plain = OmegaConf.to_container(OmegaConf.masked_copy(made, [str(k) for k in made if k != "hydra"]), resolve=True)
    assert isinstance(plain, dict)
    return {**{str(k): v for k, v in plain.items()}, "choices": dict(made.hydra.runtime.choices)}


def flat(node: Mapping[str, Any]) -> Flat:
    """{"a": {"b": 1}} -> {"a.b": 1}. Lists are values."""

    def walk(prefix: str, node: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        for key, value in node.items():
            if isinstance(value, Mapping) and value:
                yield from walk(f"{prefix}{key}.", value)
            else:
                yield f"{prefix}{key}", value

    return dict(walk("", node))


def _apart(each: Sequence[Flat]) -> tuple[list[Flat], Flat]:
    """(what is each run's own, what all have). A single run keeps its own."""
    if len(each) < 2:
        return list(each), {}
    common = {k: v for k, v in each[0].items() if all(k in other and other[k] == v for other in each)}
    return [{k: v for k, v in one.items() if k not in common} for one in each], common


def _shown(differences: Mapping[str, Any]) -> str:
    return " ".join(f"{k}={json.dumps(v) if not isinstance(v, str) else v}" for k, v in differences.items())


# --- resources and time


def _resources(runs: Sequence[Planned], *, slurm: bool) -> list[str]:
    """A line for each distinct setting, with how many runs have it."""
    tell = _on_slurm if slurm else _here
    return [f"{_count(n, 'run')}: {text}" for text, n in Counter(tell(run.config["cluster"]) for run in runs).items()]


def _here(cluster: Mapping[str, Any]) -> str:
    each = f"{_count(cluster['ranks'], 'rank')} with {_count(cluster['threads'], 'thread')} each"
    return f"{each}, {_workers(cluster)} at a time on this machine"


def _workers(cluster: Mapping[str, Any]) -> int:
    return cluster["workers"] or at_once(cluster["threads"], cluster["ranks"])


def _on_slurm(cluster: Mapping[str, Any]) -> str:
    parts = [_count(cluster["ranks"], "rank"), _count(cpus(cluster), "CPU"), _count(cluster["gpus"], "GPU")]
    parts += [f"{cluster['memory_gb']:g} GB", f"at most {cluster['time_min']} min a job"]
    parts += [f"{k} {cluster[k]}" for k in ("partition", "account", "qos") if cluster[k]]
    parts += [f"at most {cluster['max_parallel']} at a time"] if cluster["max_parallel"] else []
    return "SLURM, " + ", ".join(parts)


def _time(todo: Sequence[Planned], states: Mapping[str, RunState], ledger: Ledger, *, slurm: bool) -> str:
    """Hours from the pace of finished runs alike in task, model, rollout, trainer and evaluation."""
    paces = _paces(ledger)
    kinds = {run.run_id: _kind(run.config) for run in todo}
    like = [run for run in todo if kinds[run.run_id] in paces]
    if not like:
        return "Nothing to do." if not todo else "Time: no finished run of the ledger is like these, no estimate."
    left: list[float] = []
    hours = {"GPU": 0.0, "CPU": 0.0}
    for run in like:
        steps = max(0, run.config["steps"] - states[run.run_id].step)
        left.append(steps * statistics.median(paces[kinds[run.run_id]]))
        kind, share = _share(run.config["cluster"], slurm=slurm)
        hours[kind] += share * left[-1] / 3600
    text = "Time: about " + ", ".join(f"{h:.2g} {kind}-hours" for kind, h in hours.items() if h)
    if not slurm:
        text += f", {duration(sum(left) / min(_workers(todo[0].config['cluster']), len(left)))} here"
    past = sum(len(paces[kind]) for kind in {kinds[run.run_id] for run in like})
    unknown = f"; {_count(len(todo) - len(like), 'run')} like none" if len(todo) > len(like) else ""
    return f"{text} (from {_count(past, 'finished run')} alike{unknown})."


def _share(cluster: Mapping[str, Any], *, slurm: bool) -> tuple[str, int]:
    """What an hour of a run counts: its GPUs where it has any, else its threads."""
    if slurm:
        return ("GPU", cluster["gpus"]) if cluster["gpus"] else ("CPU", cluster["ranks"] * cluster["threads"])
    if Path("/dev/nvidiactl").exists():
        return "GPU", cluster["ranks"]
    return "CPU", cluster["ranks"] * cluster["threads"]


def _paces(ledger: Ledger) -> dict[str, list[float]]:
    """Seconds per step of every finished run, by kind."""
    found: dict[str, list[float]] = {}
    for state in ledger.states(ledger.runs()):
        if state.state != "finished":
            continue
        config = yaml.load((ledger.run_dir(state.run_id) / "config.yaml").read_text(), _LOADER)
        if isinstance(config, dict) and state.steps and state.seconds:
            found.setdefault(_kind(config), []).append(state.seconds / state.steps)
    return found


_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C one is ten times as fast


def _kind(config: Mapping[str, Any]) -> str:
    knobs = {k: (k.split("."), v) for k, v in flat(config).items() if v is not None}
    alike = {k: v for k, (path, v) in knobs.items() if path[0] not in SAME_COST and path[-1] not in SAME_COST}
    return json.dumps({**alike, "ranks": config.get("cluster", {}).get("ranks", 1)}, sort_keys=True)
