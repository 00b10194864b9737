"""`--dry-run`: what a launch would do, on paper. Reads the ledger and writes nothing."""

from __future__ import annotations

import contextlib
import functools
import json
import shutil
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rlvr.config import cost, memory
from rlvr.config.checks import Checker
from rlvr.config.registry import Registry
from rlvr.config.schema import as_dict
from rlvr.ledger import journal, layout
from rlvr.ledger.cause import State
from rlvr.ledger.identity import EXPECTED, LINES
from rlvr.ledger.runs import Unreadable, flatten, read_config
from rlvr.ledger.state import RunState
from rlvr.ledger.sweeps import Ledger
from sweeps.local import at_once, available_gpus, check_here, gpus_of
from sweeps.past import Past, kind_of, spent_before, waited_s
from sweeps.plan import Plan
from sweeps.planned import Planned
from sweeps.progress import duration
from sweeps.slurm.jobs import cluster_of

Flat = dict[str, Any]  # dotted key -> value

MEASURED = 20  # finished runs of a task that the cost model learns from,
LOOKED_AT = 500  # among so many newest ones: a second's reading
# Metrics that are seconds of the parts of a run.
TIMERS = {
    "sampling": ("time/rollout_s", "time/reward_s"),
    "weights": ("time/sync_s",),
    "log-probabilities": ("time/batch_s",),
    "training": ("time/train_s",),
    "evaluation": ("time/evaluation_s",),
}


def preview(plan: Plan, ledger: Ledger, *, slurm: bool, checker: Checker | None = None) -> str:
    """The runs by name, what is finished already, differences to the default, resources, data, memory, time and disk.

    checker: of the runs, which knows their search path and their data; None: conf/ alone, and nothing of data.
    """
    checker = checker or Checker()
    states = {run.run_id: ledger.state(run.run_id) for run in plan.runs}
    todo = [run for run in plan.runs if states[run.run_id].state is not State.FINISHED]
    head = f"{plan.study} {plan.sweep_id}: {_count(len(plan.runs), 'run')}, {len(plan.runs) - len(todo)} finished"
    own, common = _apart([differences(run, checker.registry) for run in plan.runs])
    lines = [f"{head}, {len(todo)} to do. Dry run: nothing was written or started.", ""]
    lines += [f"All differ from the default in: {_shown(common)}"] if common else []
    width = max(len(run.name) for run in plan.runs)
    for run, mine in zip(plan.runs, own, strict=True):
        shown = _standing(states[run.run_id])
        mine = mine | ({"control": run.control} if run.control else {})
        lines.append(f"  {run.run_id}  {run.name:{width}}  {shown:18}  {_shown(mine)}".rstrip())
    lines += ["", *_resources(todo or plan.runs, slurm=slurm)]
    if not todo:
        return "\n".join([*lines, "Nothing to do."])
    kinds = {run.run_id: kind_of(run.config) for run in todo}
    past = spent_before(ledger, set(kinds.values()))
    alike = {run_id: past[kind] for run_id, kind in kinds.items() if kind in past}
    unlike = [run for run in todo if run.run_id not in alike]
    num_past = sum(map(len, past.values()))
    lines += [*_data(todo, checker), *_memory(todo), _time(todo, states, alike, num_past, slurm=slurm)]
    lines += _modelled(unlike, states, ledger, slurm=slurm)
    lines += _disk(todo, alike, ledger)
    return "\n".join(lines)


def _standing(state: RunState) -> str:
    at = f" at {state.step}/{state.steps}" if state.step and state.state is not State.FINISHED else ""
    return ("new" if not state.attempt else state.state) + at


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


# --- differences


def differences(run: Planned, registry: Registry) -> Flat:
    """Options that are not the default's, and knobs that are not what these options come with."""
    chosen = {k: v for k, v in run.config["choices"].items() if k != "study"}
    usual = _composed(registry, ())["choices"]
    plain = _composed(registry, tuple(f"{k}={v}" for k, v in chosen.items()))
    options = {k: v for k, v in chosen.items() if usual.get(k) != v}
    ignored = {"choices", *LINES, *EXPECTED}
    changed = {k: v for k, v in run.config.items() if k not in ignored and plain.get(k) != v}
    mine, theirs = flatten(changed), flatten({k: v for k, v in plain.items() if k in changed})
    knobs = {k: v for k, v in mine.items() if theirs.get(k) != v and k not in _NAMED_BY_RUN}
    # One cause, one difference: `steps=9` also stands in trainer.steps, which only reads it.
    return options | {k: v for k, v in knobs.items() if "." not in k or knobs.get(k.split(".")[-1]) != v}


# Of an evaluation's policy: its name is the run's own.
_NAMED_BY_RUN = {f"policy.{knob}" for knob in ("path", "name", "digest", "group", "step")}


@functools.lru_cache(maxsize=1024)
def _composed(registry: Registry, options: tuple[str, ...]) -> dict[str, Any]:
    """The config of these options with no knob touched, and its choices."""
    config, choices = registry.compose(options)
    return {**as_dict(config, resolve=True), "choices": choices}


def _apart(each: Sequence[Flat]) -> tuple[list[Flat], Flat]:
    """(what is each run's own, what all have). A single run keeps its own."""
    if len(each) < 2:
        return list(each), {}
    common = {k: v for k, v in each[0].items() if all(k in other and other[k] == v for other in each)}
    return [{k: v for k, v in one.items() if k not in common} for one in each], common


def _shown(differences: Mapping[str, Any]) -> str:
    return " ".join(f"{k}={json.dumps(v) if not isinstance(v, str) else v}" for k, v in differences.items())


# --- resources, memory, time and disk


def _resources(runs: Sequence[Planned], *, slurm: bool) -> list[str]:
    """A line for each distinct setting, with how many runs have it."""
    tell = _on_slurm if slurm else _here
    return [f"{_count(n, 'run')}: {text}" for text, n in Counter(tell(run.config) for run in runs).items()]


def _here(config: Mapping[str, Any]) -> str:
    cluster = config["cluster"]
    each = f"{_count(cluster['ranks'], 'rank')} with {_count(cluster['threads'], 'thread')} each"
    try:
        return f"{each}, {_workers(config)} at a time on this machine"
    except ValueError as error:
        return f"{each}; not here: {error}"


def _workers(config: Mapping[str, Any]) -> int:
    """Runs at a time here. ValueError if a launch would be refused here, or if there are GPUs, and fewer than one run
    needs.
    """
    cluster = config["cluster"]
    check_here(cluster["nodes"], cluster["gpus"])
    return at_once(cluster["workers"], cluster["threads"], cluster["ranks"], gpus_of(config))


def _on_slurm(config: Mapping[str, Any]) -> str:
    cluster = cluster_of(config)
    parts = [_count(cluster["ranks"], "rank"), _count(cluster["cpus"], "CPU"), _count(cluster["gpus"], "GPU")]
    parts[0] += f" on {cluster['nodes']} nodes, on each" if cluster["nodes"] > 1 else ""
    parts += [f"{cluster['memory_gb']:g} GB", f"at most {cluster['time_min']} min a job"]
    parts += [f"{k} {cluster[k]}" for k in ("partition", "account", "qos") if cluster[k]]
    parts += [f"{cluster['pack']} runs a job, which shares its GPUs among them"] if cluster["pack"] > 1 else []
    parts += [f"at most {cluster['max_parallel']} at a time"] if cluster["max_parallel"] else []
    return "SLURM, " + ", ".join(parts)


def _data(todo: Sequence[Planned], checker: Checker) -> list[str]:
    """A line for each distinct reading of training data whose size is known."""
    readings = Counter[str]()
    for run in todo:
        size = None if run.config.get("policy") else checker.train_problems(run.config)
        if size:
            readings[_reading(run.config, size)] += 1
    return [f"{_count(n, 'run')}: {text}" for text, n in readings.items()]


def _reading(config: Mapping[str, Any], size: int) -> str:
    """How many training problems there are, and how often a run comes by all of them."""
    problems = f"{size:,} training problems"
    if config.get("presample"):  # which of them are explored, the base policy's answers will tell
        return problems
    steps, prompts = config["steps"], config["rollout"]["prompts"]
    epochs = _rounded(steps * prompts / size)
    more = " or more" if config["rollout"]["dynamic_sampling"] == "refill" else ""
    return f"{problems}, {epochs} epoch{'s' * (epochs != '1')}{more} in {steps:,} steps of {prompts:,}"


def _time(todo: Sequence[Planned], states: Mapping[str, RunState], alike: Past, num_past: int, *, slurm: bool) -> str:
    """Hours from the pace of finished runs alike in task, model, rollout, trainer and evaluation: of each run that has
    some, by id, and how many there are in all.
    """
    like = [run for run in todo if run.run_id in alike]
    if not like:
        return "Time: no finished run of the ledger is like these, no estimate."
    left: list[float] = []
    hours = {"GPU": 0.0, "CPU": 0.0}
    for run in like:
        steps = max(0, run.config["steps"] - states[run.run_id].step)
        left.append(steps * statistics.median(one.pace_s for one in alike[run.run_id]))
        kind, share = _share(run.config, slurm=slurm)
        hours[kind] += share * left[-1] / 3600
    text = "Time: about " + ", ".join(f"{_rounded(h)} {kind}-hours" for kind, h in hours.items() if h)
    if not slurm:
        with contextlib.suppress(ValueError):  # they cannot run here
            text += f", {duration(sum(left) / min(_workers(todo[0].config), len(left)))} here"
    unknown = f"; {_count(len(todo) - len(like), 'run')} like none" if len(todo) > len(like) else ""
    return f"{text} (from {_count(num_past, 'finished run')} alike{unknown})."


def _modelled(runs: Sequence[Planned], states: Mapping[str, RunState], ledger: Ledger, *, slurm: bool) -> list[str]:
    """Hours of runs like none that has finished, from their FLOPs and bytes, and how far such estimates were off.

    Parts are those of all these runs together, the largest first.
    """
    models = [(run, model) for run in runs if (model := memory.of_model(run.config["model"])) is not None]
    if not models:
        return []
    finished, parts, hours, stages = measured(ledger), Counter[str](), dict[str, float](), set[str]()
    guesses = [cost.estimate(run.config, model, finished) for run, model in models]
    for (run, _), guess in zip(models, guesses, strict=True):
        left = 1 - states[run.run_id].step / run.config["steps"]
        its: dict[str, Any] = {name: left * seconds for name, seconds in guess.parts.items()}
        if (stage := _presampled(run.config)) in stages:
            its["presample"] = 0.0
        stages.add(stage)
        parts.update(its)
        kind, share = _share(run.config, slurm=slurm, modelled=True)
        hours[kind] = hours.get(kind, 0.0) + share * sum(its.values()) / 3600
    device = cost.device_of(models[0][0].config["cluster"])
    shown = ", ".join(f"{name} {seconds / sum(parts.values()):.0%}" for name, seconds in parts.most_common() if seconds)
    text = ", ".join(f"{_rounded(h)} {kind}-hours" for kind, h in hours.items())
    alike = dict[Any, list[cost.Estimate]]()
    for guess in guesses:
        alike.setdefault((guess.kind, guess.known), []).append(guess)
    clauses = [(len(each), _calibration(each[0])) for each in alike.values()]
    sure = clauses[0][1] if len(clauses) == 1 else "; ".join(f"{_count(n, 'run')}: {text}" for n, text in clauses)
    total = sum(parts.values()) / 3600
    return [f"Cost model ({device}): about {_rounded(total)} hours of runs, {text} ({shown}; {sure})."]


def _calibration(guess: cost.Estimate) -> str:
    """What an estimate rests on, and how far such ones were off."""
    if not guess.finished:
        return "no finished run of its kind to compare with: never measured"
    by, of = ("the others", "") if guess.known else ("those on other tasks", ", none of its task")
    off = "" if guess.error is None else f", off by {guess.error:.0%} on them, each predicted by {by}"
    return f"calibrated by {_count(len(guess.finished), 'finished run')}{of}{off}"


def _presampled(config: Mapping[str, Any]) -> str:
    """What decides the base policy's samples: of runs that have it alike, one draws them."""
    later = ("threshold", "drop_unsolved", "ratio")
    presample: Mapping[str, Any] = config.get("presample") or {}
    knobs = {k: v for k, v in presample.items() if k not in later}
    return repr((knobs, config["model"], config["task"], config["rollout"]["engine"], config["rollout"]["max_tokens"]))


def measured(ledger: Ledger) -> list[cost.Finished]:
    """Of each task the newest finished runs of models of known size, and what they took; the newest first."""
    ended = [state for state in ledger.states(ledger.runs()) if state.state is State.FINISHED and state.seconds]
    runs, of_task = list[cost.Finished](), Counter[str]()
    for state in sorted(ended, key=lambda state: state.end_time or 0.0, reverse=True)[:LOOKED_AT]:
        run_dir = ledger.run_dir(state.run_id)
        try:
            config = read_config(run_dir)
        except Unreadable:
            continue
        model, task = memory.of_model(config["model"]), repr(config["task"])
        if model is None or of_task[task] == MEASURED:
            continue
        steps = [record.metrics for record in journal.read(layout.journal(run_dir)).records]
        lengths = [metrics["response/length"] for metrics in steps if "response/length" in metrics]
        if not lengths:
            continue
        of_task[task] += 1
        parts = {
            part: sum(metrics.get(name, 0.0) for metrics in steps for name in names) for part, names in TIMERS.items()
        }
        total_s = state.seconds - waited_s(run_dir, state)
        runs.append(cost.Finished(config, model, parts, total_s, _seen(config, steps, statistics.mean(lengths))))
    return runs


def _seen(config: Mapping[str, Any], steps: Sequence[Mapping[str, float]], length: float) -> dict[str, float]:
    """What a finished run says of runs on its task: `cost.Finished.seen`. length: mean tokens of a response."""
    groups = config["steps"] * config["rollout"]["prompts"]
    tokens = {
        name: sum(metrics.get(f"tokens/{name}", 0.0) for metrics in steps) for name in ("rollout", "used", "train")
    }
    answers = groups * config["rollout"]["samples"] * length
    seen = {"length": length, "rounds": max(1.0, tokens["rollout"] / answers)}
    if turns := [metrics["rollout/rounds"] for metrics in steps if "rollout/rounds" in metrics]:
        seen["turns"] = statistics.mean(turns)
    kept = tokens["used"] / answers / config["trainer"]["epochs"]
    if kept:
        read = groups * min(kept, 1.0) * config["trainer"]["epochs"]
        # Each prompt is read once, and of its responses all but the last token.
        prompt = (tokens["train"] - tokens["used"]) / read + config["rollout"]["samples"]
        seen |= {"kept": kept, "prompt": max(1.0, prompt)}
    return seen


def _share(config: Mapping[str, Any], *, slurm: bool, modelled: bool = False) -> tuple[str, float]:
    """What an hour of a run counts: its GPUs where it has any, else its threads. modelled: of the devices that it asks
    for, wherever this is asked.
    """
    cluster = config["cluster"]
    if slurm:
        gpus = cluster["gpus"] * cluster["nodes"] / cluster["pack"]
        return ("GPU", gpus) if gpus else ("CPU", cluster["ranks"] * cluster["threads"])
    if cluster["gpus"] if modelled else bool(available_gpus()):
        return "GPU", gpus_of(config)
    return "CPU", cluster["ranks"] * cluster["threads"]


def _memory(todo: Sequence[Planned]) -> list[str]:
    """A line where runs have GPUs and a model whose size is known: the run that needs most of one."""
    most: dict[str, float] = {}
    for run in todo:
        model = memory.of_model(run.config["model"]) if run.config["cluster"]["gpus"] else None
        if model is not None:
            most = max(most, memory.per_gpu(model, memory.setting_of(run.config)), key=lambda p: sum(p.values()))
    has = todo[0].config["cluster"]["gpu_memory_gb"]
    of = f" of {has:g} GB" if has else ""
    return [f"GPU memory: about {sum(most.values()) / memory.GB:,.1f} GB{of} ({memory.shown(most)})"] if most else []


def _disk(todo: Sequence[Planned], finished: Past, ledger: Ledger) -> list[str]:
    """Room for what runs leave: as much as finished runs alike did, else the checkpoints of a model of known size."""
    sizes: list[float] = []
    for run in todo:
        model, alike = memory.of_model(run.config["model"]), finished.get(run.run_id)
        kept = run.config["checkpoint"]["keep"] + run.config["checkpoint"]["keep_best"]
        if alike:
            one = statistics.median(each.checkpoint for each in alike)
            sizes.append(statistics.median(each.other for each in alike) + kept * one)
        elif model is not None:
            sizes.append(kept * memory.STATE * model.parameters)
    if not sizes:
        return []
    unknown = f"; {_count(len(todo) - len(sizes), 'run')} not known" if len(todo) > len(sizes) else ""
    free = shutil.disk_usage(next(p for p in (ledger.home, *ledger.home.absolute().parents) if p.exists())).free
    full = " NOT ENOUGH." if sum(sizes) > free else ""
    return [f"Disk: about {_size(sum(sizes))}{unknown}, {_size(free)} free.{full}"]


def _size(num_bytes: float) -> str:
    return f"{_rounded(num_bytes / 2**30)} GB" if num_bytes > 2**29 else f"{num_bytes / 2**20:.0f} MB"


def _rounded(amount: float) -> str:
    """`7,660`, `12`, `3.4`: whole from 10 up, else two digits."""
    return f"{amount:,.0f}" if amount >= 10 else f"{amount:.2g}"
