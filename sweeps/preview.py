"""`--dry-run`: a description of what a launch would do. Reads the ledger and writes nothing."""

import contextlib
import functools
import json
import re
import shutil
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rlvr.config import cost, memory, program
from rlvr.config.checks import Checker
from rlvr.config.look import FirstLook
from rlvr.config.registry import Registry
from rlvr.config.schema import as_dict
from rlvr.ledger.cause import State
from rlvr.ledger.identity import ADDED_ARMS, EXPECTED, GRID_KEYS, GROWTH
from rlvr.ledger.runs import flatten
from rlvr.ledger.state import RunState
from rlvr.ledger.sweeps import Ledger
from sweeps.machine import at_once, available_gpus, check_here, gpus_of
from sweeps.past import Past, alike, estimate
from sweeps.plan import Plan
from sweeps.planned import PlannedRun, base_policies
from sweeps.progress import duration
from sweeps.slurm.jobs import cluster_of

Flat = dict[str, Any]  # dotted key -> value


def preview(plan: Plan, ledger: Ledger, *, slurm: bool, checker: Checker | None = None) -> str:
    """The text of a dry run: runs, their states, differences to the default, resources, data, memory, time and disk.

    checker: that of the launch, which has its search path and its data; None: conf/ alone, without sizes of data.
    """
    checker = checker or Checker()
    states = {run.run_id: ledger.state(run.run_id) for run in plan.runs}
    todo = [run for run in plan.runs if states[run.run_id].state is not State.FINISHED]
    head = f"{plan.study} {plan.sweep_id}: {_count(len(plan.runs), 'run')}, {len(plan.runs) - len(todo)} finished"
    own, common = _own_and_common([differences(run, checker.registry) for run in plan.runs])
    lines = [f"{head}, {len(todo)} to do. Dry run: nothing was written or started.", ""]
    lines += [f"All differ from the default in: {_shown(common)}"] if common else []
    width = max(len(run.name) for run in plan.runs)
    for run, of_run in zip(plan.runs, own, strict=True):
        state = _state_text(states[run.run_id])
        of_run = of_run | ({"control": run.control} if run.control else {})
        lines.append(f"  {run.run_id}  {run.name:{width}}  {state:18}  {_shown(of_run)}".rstrip())
    lines += ["", *_scales(todo or plan.runs), *_bases(plan.runs), *_resources(todo or plan.runs, slurm=slurm)]
    if not todo:
        return "\n".join([*lines, "Nothing to do."])
    past = alike(todo, ledger)
    lines += dict.fromkeys(line for run in todo for line in checker.look(run.config).floors)
    lines += [*_data(todo, checker), *_memory(todo), _time(todo, states, past, slurm=slurm)]
    lines += _disk(todo, past, ledger)
    return "\n".join(lines)


def look_lines(look: FirstLook) -> Iterator[str]:
    """The text of --show: prompts as the model reads them, their right answers, and a summary."""
    for shown in look.prompts:
        yield f"\nproblem {shown.problem}, {_count(shown.num_tokens, 'token')}:"
        yield from (f"  | {line}" for line in shown.prompt.split("\n"))
        reading = "of which only the same text is right" if shown.read is None else f"read as {shown.read}"
        yield f"right answer: {shown.typed}{shown.place and f' ({shown.place})'}, {reading}"
    yield f"\nA response ends with {' or '.join(look.ends) or 'tokens that the model names: it is not here'}."
    if not look.ends:
        yield "Before it is here, prompts are shown without its chat template, and words are counted for tokens."
    if look.marks:
        yield f"Its answer is read {' or '.join(look.marks)}."
    least, median, most = look.lengths
    yield f"The first {look.num_rows} prompts have {least} to {most} tokens, the median is {median:g}."
    yield f"Of their right answers {look.text_only} are right only as the same text."
    yield from look.notable


def _state_text(state: RunState) -> str:
    step = f" at {state.step}/{state.steps}" if state.step and state.state is not State.FINISHED else ""
    return ("new" if not state.attempt else state.state) + step


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


# --- differences


def differences(run: PlannedRun, registry: Registry) -> Flat:
    """The options that differ from the default run, and the knobs that differ from the values of these options."""
    chosen = {k: v for k, v in run.config["choices"].items() if k != "study"}
    usual = _composed(registry, ())[0]["choices"]
    plain, copies = _composed(registry, tuple(f"{k}={v}" for k, v in chosen.items()))
    options = {k: v for k, v in chosen.items() if usual.get(k) != v}
    ignored = {"choices", *GRID_KEYS, *GROWTH, *ADDED_ARMS, *EXPECTED}
    changed = {k: v for k, v in run.config.items() if k not in ignored and plain.get(k) != v}
    of_run, of_options = flatten(changed), flatten({k: v for k, v in plain.items() if k in changed})
    knobs = {k: v for k, v in of_run.items() if of_options.get(k) != v and k not in _NAMED_BY_RUN}
    # A knob that others read is listed once: `steps=9` is also the value of trainer.steps.
    return options | {k: v for k, v in knobs.items() if k not in copies or knobs.get(copies[k]) != v}


# Knobs of an evaluation's policy, which the name of the run contains already.
_NAMED_BY_RUN = {f"policy.{knob}" for knob in ("path", "name", "digest", "group", "step")}


@functools.lru_cache(maxsize=1024)
def _composed(registry: Registry, options: tuple[str, ...]) -> tuple[dict[str, Any], dict[str, str]]:
    """The config of these options with no knob touched, with its choices; and the knobs whose value is another's."""
    config, options_of_groups = registry.compose(options)
    plain, choices = program.trimmed(as_dict(config, resolve=True), options_of_groups)
    texts = flatten(as_dict(config, resolve=False)).items()
    sources = {key: re.search(r"\$\{(?:oc\.select:)?([\w.]+)[},]", str(text)) for key, text in texts}
    copies = {key: source[1] for key, source in sources.items() if source}
    return {**plain, "choices": choices}, copies


def _own_and_common(differences: Sequence[Flat]) -> tuple[list[Flat], Flat]:
    """(for each run the differences that not all have, the differences of all). A single run keeps all as its own."""
    if len(differences) < 2:
        return list(differences), {}
    common = {k: v for k, v in differences[0].items() if all(k in other and other[k] == v for other in differences)}
    return [{k: v for k, v in of_run.items() if k not in common} for of_run in differences], common


def _shown(differences: Mapping[str, Any]) -> str:
    texts = {k: v if isinstance(v, str) and v.isprintable() else json.dumps(v) for k, v in differences.items()}
    return " ".join(f"{key}={text}" for key, text in texts.items())


# --- resources, memory, time and disk


def _scales(runs: Sequence[PlannedRun]) -> list[str]:
    """A line for each recipe: what it, and what was typed beside it, make of model, task, steps and lengths."""
    lines: dict[str, None] = {}
    for run in runs:
        flat, choices = flatten(run.config), run.config["choices"]
        if not choices.get("paper") or run.config.get("program"):
            continue
        sizes = [f"{key}={flat[key]}" for key in ("task.size", "task.level") if flat.get(key) is not None]
        length = flat.get("rollout.max_tokens") or flat.get("task.max_tokens")
        words = [f"model={flat.get('model.path') or choices.get('model')}", f"task={choices.get('task')}", *sizes]
        prompts, samples = flat["rollout.prompts"], flat["rollout.samples"]
        shape = f"{flat['steps']:,} steps of {prompts:,} problems with {samples:,} answers"
        shape += f" of up to {length:,} tokens" if length else ""
        lines[f"paper={choices['paper']}: {' '.join(words)}, {shape}"] = None
    return list(lines)


def _bases(runs: Sequence[PlannedRun]) -> list[str]:
    """A line on the base policies of one task, if there are several."""
    most = max(base_policies(runs), key=len)
    if len(most) < 2:
        return []
    own, _ = _own_and_common(most)
    claims = "claims over all" if len(most) > 2 else "claims over all need a third"
    named = "; ".join(map(_shown, own[:4])) + "; ..." * (len(own) > 4)
    return [f"{len(most)} base policies ({named}): arms are compared within each, {claims}."]


def _resources(runs: Sequence[PlannedRun], *, slurm: bool) -> list[str]:
    """A line for each distinct setting, with how many runs have it."""
    describe = _slurm_resources if slurm else _local_resources
    return [f"{_count(n, 'run')}: {text}" for text, n in Counter(describe(run.config) for run in runs).items()]


def _local_resources(config: Mapping[str, Any]) -> str:
    cluster = config["cluster"]
    ranks = f"{_count(cluster['ranks'], 'rank')} with {_count(cluster['threads'], 'thread')} each"
    try:
        return f"{ranks}, {_workers(config)} at a time on this machine"
    except ValueError as error:
        return f"{ranks}; not here: {error}"


def _workers(config: Mapping[str, Any]) -> int:
    """Runs at a time on this machine. ValueError if it would refuse the launch, or has GPUs but too few for one run."""
    cluster = config["cluster"]
    check_here(cluster["nodes"], cluster["gpus"])
    return at_once(cluster["workers"], cluster["threads"], cluster["ranks"], gpus_of(config))


def _slurm_resources(config: Mapping[str, Any]) -> str:
    cluster = cluster_of(config)
    parts = [_count(cluster["ranks"], "rank"), _count(cluster["cpus"], "CPU"), _count(cluster["gpus"], "GPU")]
    parts[0] += f" on {cluster['nodes']} nodes, on each" if cluster["nodes"] > 1 else ""
    parts += [f"{cluster['memory_gb']:g} GB", f"at most {cluster['time_min']} min a job"]
    parts += [f"{k} {cluster[k]}" for k in ("partition", "account", "qos") if cluster[k]]
    parts += [f"{cluster['pack']} runs a job, which shares its GPUs among them"] if cluster["pack"] > 1 else []
    parts += [f"at most {cluster['max_parallel']} at a time"] if cluster["max_parallel"] else []
    return "SLURM, " + ", ".join(parts)


def _data(todo: Sequence[PlannedRun], checker: Checker) -> list[str]:
    """A line for each distinct use of training data of known size, with how many runs have it."""
    uses = Counter[str]()
    for run in todo:
        size = None if run.config.get("policy") else checker.train_problems(run.config)
        if size:
            uses[_use_of_data(run.config, size)] += 1
    return [f"{_count(n, 'run')}: {text}" for text, n in uses.items()]


def _use_of_data(config: Mapping[str, Any], size: int) -> str:
    """The number of training problems, and the number of epochs that a run trains on them."""
    problems = f"{size:,} training problems"
    if config.get("presample"):  # the base policy's answers will decide which of the problems are trained on
        return problems
    steps, prompts = config["steps"], config["rollout"]["prompts"]
    epochs = _rounded(steps * prompts / size)
    more = " or more" if config["rollout"]["dynamic_sampling"] == "refill" else ""
    return f"{problems}, {epochs} epoch{'s' * (epochs != '1')}{more} in {steps:,} steps of {prompts:,}"


def _time(todo: Sequence[PlannedRun], states: Mapping[str, RunState], past: Past, *, slurm: bool) -> str:
    """Hours of the steps that are left."""
    estimates = {run.run_id: found for run in todo if (found := estimate(run, past))}
    if not estimates:
        return "Time: no finished run of the ledger is like these, no estimate."
    hours, of_devices = list[float](), dict[str, float]()
    for run in (run for run in todo if run.run_id in estimates):
        hours.append(estimates[run.run_id][0] * max(0.0, 1 - states[run.run_id].step / run.config["steps"]))
        device, num_devices = _devices(run.config, slurm=slurm)
        of_devices[device] = of_devices.get(device, 0.0) + num_devices * hours[-1]
    text = "Time: about " + ", ".join(f"{_rounded(h)} {device}-hours" for device, h in of_devices.items() if h)
    if not slurm:
        with contextlib.suppress(ValueError):  # they cannot run on this machine
            text += f", {duration(3600 * sum(hours) / min(_workers(todo[0].config), len(hours)))} here"
    num_past = len({id(of_run) for costs in past.values() for of_run in costs})
    modelled = [run for run in todo if estimates.get(run.run_id, ("", ""))[1] == "cost model"]
    notes = [f"from {_count(num_past, 'finished run')} alike"] if num_past else []
    if modelled:
        device = cost.device_of(modelled[0].config["cluster"])
        notes.append(f"{_count(len(modelled), 'run')} by the cost model of {device}, an order of size")
    if num_unknown := len(todo) - len(estimates):
        notes.append(f"{_count(num_unknown, 'run')} without an estimate")
    return f"{text} ({'; '.join(notes)})."


def _devices(config: Mapping[str, Any], *, slurm: bool) -> tuple[str, float]:
    """("GPU", number of GPUs of a run) or, without GPUs, ("CPU", number of its threads)."""
    cluster = config["cluster"]
    if slurm and cluster["gpus"]:
        return "GPU", cluster["gpus"] * cluster["nodes"] / cluster["pack"]
    if not slurm and (cluster["gpus"] or available_gpus()):
        return "GPU", gpus_of(config)
    return "CPU", cluster["ranks"] * cluster["threads"]


def _memory(todo: Sequence[PlannedRun]) -> list[str]:
    """A line on the run that needs most memory of a GPU, if any run has GPUs and a model of known size."""
    most: dict[str, float] = {}
    for run in todo:
        model = memory.trained_architecture(run.config) if run.config["cluster"]["gpus"] else None
        if model is not None:
            most = max(most, memory.per_gpu(model, memory.setting_of(run.config)), key=lambda p: sum(p.values()))
    if not most:
        return []
    available = todo[0].config["cluster"]["gpu_memory_gb"]
    of = f" of {available:g} GB" if available else ""
    return [f"GPU memory: about {sum(most.values()) / memory.GB:,.1f} GB{of} ({memory.parts_in_one_line(most)})"]


def _disk(todo: Sequence[PlannedRun], past: Past, ledger: Ledger) -> list[str]:
    """Disk space of the runs: that of finished runs like them, else of the checkpoints of a model of known size."""
    sizes: list[float] = []
    for run in todo:
        model, costs = memory.trained_architecture(run.config), past.get(run.run_id)
        num_kept = run.config["checkpoint"]["keep"] + run.config["checkpoint"]["keep_best"]
        if costs:
            checkpoint = statistics.median(run_cost.checkpoint for run_cost in costs)
            sizes.append(statistics.median(run_cost.other for run_cost in costs) + num_kept * checkpoint)
        elif model is not None:
            sizes.append(num_kept * memory.checkpoint_bytes(model, run.config["trainer"]))
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
