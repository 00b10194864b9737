"""What is checked before a launch, and what its user is warned of."""

from __future__ import annotations

import functools
import os
import shlex
import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlvr.config import own_code
from rlvr.config.base_model import has_template, response_ends
from rlvr.config.engine import samples_beside_training
from rlvr.config.explain import unreadable_option_lines
from rlvr.config.overrides import key_of
from rlvr.config.registry import Registry
from rlvr.config.schema import is_pretrained
from rlvr.ledger import inputs, layout
from rlvr.ledger.cause import State
from rlvr.ledger.files import mount
from rlvr.ledger.identity import ADDED_ARMS, EXPECTED, GROWTH
from rlvr.ledger.layout import home
from rlvr.ledger.sweeps import Ledger
from rlvr.tracker import store
from slurm.client import is_configured
from sweeps import controls
from sweeps.growing import tuning
from sweeps.machine import available_cores, available_gpus, check_here, computes_bfloat16, gpus_of
from sweeps.naming import check_free
from sweeps.plan import Plan
from sweeps.planned import PlannedRun

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from sweeps.session import Session

SHOWN = 8  # at most so many runs are named in a line
# Knobs of `cluster` that only launches on SLURM read.
OF_JOBS = (
    *("partition", "account", "qos", "time_min", "cpus", "memory_gb", "pack", "max_parallel", "requeues"),
    *("setup", "environment", "container", "scratch", "sbatch", "report", "wait"),
)
ONE_HOST = "locks hold on one host alone. Launch, cancel and retry from one host (docs/slurm.md)."
LOCAL_LOCKS = {"nolock", "localflock", "local_lock=all", "local_lock=flock"}  # mount options of NFS and Lustre
UNREAD = {"local": OF_JOBS, "slurm": ("workers",)}  # by backend


def is_for_slurm(backend: str) -> bool:
    """Whether `cluster.backend` means SLURM; auto: SLURM where it is set up, else this machine.

    ValueError for an unknown backend, and for a SLURM that does not answer.
    """
    if backend not in ("auto", "local", "slurm"):
        raise ValueError(f"cluster.backend={backend} is unknown: use auto, local or slurm.")
    if backend != "auto":
        return backend == "slurm"
    configured = is_configured()
    if not configured:
        _warn_of_unconfigured_slurm()
    return configured


@functools.cache  # once: a growing sweep calls it for each wave
def _warn_of_unconfigured_slurm() -> None:
    if shutil.which("sbatch"):
        _warn("sbatch is on PATH but knows no cluster (no slurm.conf): running on this machine.")


def check_launch(planned: Plan, ledger: Ledger, command: Session, *, n_jobs: int | None = None) -> bool:
    """The checks of every launch, before anything is written. Raises ValueError, prints what has no effect. Returns
    whether the launch is for SLURM.

    n_jobs: of a search; on this machine it stands for `cluster.workers`.
    """
    first = planned.runs[0].config
    on_slurm = is_for_slurm(first["cluster"]["backend"])
    _check_shared(planned, on_slurm=on_slurm)
    _check_machine(planned, on_slurm=on_slurm, dry_run=command.dry_run, n_jobs=n_jobs)
    if first["tracker"]["enabled"]:  # ValueError for a `tracker.uri`, or $MLFLOW_TRACKING_URI, that is no address
        store.resolve(home(), first["tracker"]["uri"])
    if planned.name:
        run_ids = [run.run_id for run in planned.runs]
        check_free(planned.name, planned.sweep_id, run_ids, ledger, command.registry.options("study"))
    unread = _unread_lines(planned, command.registry, command.typed)
    notable = dict.fromkeys(line for run in planned.runs for line in command.checker.look(run.config).notable)
    of_plan = [*_default_lr_lines(planned), *_turn_lines(planned), *notable]
    for line in (*unreadable_option_lines(command.registry), *unread, *of_plan):
        _warn(line)
    return on_slurm


def check_sweep_keys(config: DictConfig, *, evaluates: bool) -> None:
    """ValueError for an empty value, a key without effect, and a control that tuning would undo.

    evaluates: whether the launch is an evaluation, which trains nothing.
    """
    if empty := [key for key in (*GROWTH, *ADDED_ARMS) if config[key] == ""]:
        raise ValueError(f"{empty[0]}= has no value. Give it one, or drop it.")
    keys = [key for key in (*GROWTH, *ADDED_ARMS) if config[key]]
    if keys and evaluates:
        raise ValueError(f"{keys[0]} has no effect on an evaluation, which trains nothing. Drop it.")
    if config.budget and not config.until:
        raise ValueError(
            f"budget={config.budget} has no effect without until=decided or until=best. Add one, or drop budget."
        )
    tuned = tuning.read(str(config.tune), []).keys if config.tune else []
    if "lr" in tuned and controls.STILL in controls.read(str(config.controls or "")):
        raise ValueError("controls=still has lr=0, which tune=lr would replace. Drop still, or lr from tune.")


def check_expected(planned: Plan, ledger: Ledger, command: Session) -> None:
    """ValueError for a baseline or a claim that no run can test; a printed line for one that only these runs cannot."""
    if any(planned.runs[0].config.get(key) for key in EXPECTED):
        from sweeps import expected  # imports pandas

        for line in expected.check(planned, ledger, command.registry, command.typed):
            _warn(line)


def _check_shared(planned: Plan, *, on_slurm: bool) -> None:
    """ValueError where runs differ in a setting of the whole launch. On SLURM the resources may differ between job
    arrays, so that fewer settings are of the whole launch there.
    """
    local_keys = () if on_slurm else ("workers", "threads", "ranks", "retries", "hung_min")
    for key in ("backend", "wait", "report", *local_keys):
        values = list(dict.fromkeys(run.config["cluster"][key] for run in planned.runs))
        if len(values) > 1:
            settings = " and ".join(f"cluster.{key}={value}" for value in values)
            where = "on this machine " if key in local_keys else ""
            raise ValueError(f"{settings}: all runs of a launch {where}share it. Launch them separately.")


def _turn_lines(planned: Plan) -> Iterable[str]:
    """A line for each model: which tokens end its responses to turns, or that its chat template is not used."""
    sections = [(run, "policy" if run.config.get("policy") else "model") for run in planned.runs]
    sections = [(run, name) for run, name in sections if run.config[name]]  # a program may read no model
    uses = {(run.config[name].get("path"), run.config[name].get("chat"), name): run for run, name in sections}
    for (path, chat, name), run in uses.items():
        if path and chat and (tokens := response_ends(str(path), chat=True)):
            yield f"{path}: a response ends with {' or '.join(tokens)}."
        elif path and not chat and not _is_typed(run, f"{name}.chat") and has_template(str(path)):
            yield (
                f"{path}: prompts are not turns of its chat template, as is right for a base model. An instruct model "
                f"needs {name}.chat=true."
            )


def _unread_lines(planned: Plan, registry: Registry, typed: Sequence[str]) -> list[str]:
    """A line for the typed knobs of `cluster` that the chosen backend does not read: the same command may be meant for
    SLURM, too. Those of a study are not named, nor those beside cluster=auto: they are meant for any machine.
    """
    knobs = {word: ".".join(key_of(word).split(".")[:2]) for word in typed if key_of(word).startswith("cluster.")}
    unread_words: dict[str, dict[str, None]] = {}  # by the option of `cluster`; a dict as an ordered set
    for run in planned.runs if knobs else ():
        cluster, choices = run.config["cluster"], run.config["choices"]
        unread = UNREAD.get(cluster["backend"], ())
        for word, key in knobs.items():
            knob = key.removeprefix("cluster.")
            if knob in unread and cluster[knob] != registry.as_written(choices, key):
                unread_words.setdefault(choices["cluster"], {})[word] = None
    return [f"No effect with cluster={option}: {', '.join(of_option)}." for option, of_option in unread_words.items()]


def _default_lr_lines(planned: Plan) -> Iterable[str]:
    """A line for each learning rate that neither the user nor a recipe chose for a pretrained model."""
    defaults = dict[float, str]()
    for run in (run for run in planned.runs if run.config["trainer"]):
        config, choices = run.config, run.config["choices"]
        if not (_is_typed(run, "lr") or choices.get("paper") or choices.get("study")) and is_pretrained(
            config["model"]
        ):
            defaults[config["lr"]] = "adapters" if config["trainer"]["lora_rank"] else "all weights"
    for lr, of in defaults.items():
        yield f"lr={lr:g}: the default for {of} of a pretrained model."


def _check_machine(planned: Plan, *, on_slurm: bool, dry_run: bool, n_jobs: int | None) -> None:
    """ValueError if this machine lacks the SLURM, or the nodes and GPUs, that the launch needs. A dry run may show a
    recipe for other machines: there only what was typed is checked, not what the recipe has.
    """
    _check_offload(
        [run.config for run in planned.runs if not dry_run or _is_typed(run, "trainer.reference_offload")],
        has_gpus=bool(available_gpus()) and not on_slurm,
    )
    if on_slurm:
        if not is_configured():
            raise ValueError(
                "cluster=slurm, and there is no SLURM here: sbatch is not on PATH, or knows no cluster. Pass "
                "cluster=local, or log in where it is."
            )
        return
    clusters = [(run, run.config["cluster"]) for run in planned.runs]
    largest = {
        key: max((c[key] for run, c in clusters if not dry_run or _is_typed(run, f"cluster.{key}")), default=0)
        for key in ("nodes", "gpus")
    }
    check_here(**largest)
    threads = max(cluster["threads"] * cluster["ranks"] for _, cluster in clusters)
    if threads > (cores := available_cores()):
        _warn(f"A run takes {threads} threads (cluster.threads x cluster.ranks), and this machine has {cores} cores.")
    _check_turns([run.config for run in planned.runs], n_jobs)


def _check_turns(configs: Iterable[Mapping[str, Any]], n_jobs: int | None) -> None:
    """ValueError for a vLLM that would share its GPU with other runs here, or not take turns with training."""
    num_gpus = len(available_gpus())
    if not num_gpus:
        return
    for config in configs:
        rollout, workers = config["rollout"], n_jobs or config["cluster"]["workers"]
        if "python" not in rollout["engine"] or "workers" in rollout["engine"]:
            continue
        if rollout.get("ahead"):
            raise samples_beside_training(rollout["ahead"], "vllm")
        most = max(1, num_gpus // gpus_of(config))
        if (workers or 0) > most:
            knob = "hydra.sweeper.n_jobs" if n_jobs else "cluster.workers"
            raise ValueError(
                f"{knob}={workers} runs would share this machine's {num_gpus} GPUs, and each vLLM sizes its cache for "
                f"a GPU of its own. Pass {knob}={most} or less, or rollout=native."
            )


def _check_offload(configs: Iterable[Mapping[str, Any]], *, has_gpus: bool) -> None:
    """ValueError for a run that would keep weights out of the memory of a GPU and has none. has_gpus: this machine."""
    for config in configs:
        trainer = config["trainer"]
        if trainer and trainer.get("reference_offload") and not (has_gpus or config["cluster"]["gpus"]):
            raise ValueError(
                "trainer.reference_offload=true keeps frozen weights out of GPU memory, and these runs have no GPU. "
                "Drop it, or pass cluster.gpus=1 or more where there are some."
            )


def with_all_cores(planned: Plan) -> Plan:
    """The plan of a launch on this machine; a pretrained model that trains alone on its CPU has all cores, if no number
    of threads is typed. The models made here are too small to gain.
    """
    run, *others = planned.runs
    cluster = run.config["cluster"]
    is_alone = not others and not available_gpus() and is_pretrained(run.config["model"])
    if not is_alone or _is_typed(run, "cluster.threads"):
        return planned
    threads = max(1, available_cores() // cluster["ranks"])
    return replace(planned, runs=(replace(run, config={**run.config, "cluster": {**cluster, "threads": threads}}),))


def _is_typed(run: PlannedRun, key: str) -> bool:
    """Whether a knob was typed for a run."""
    return key in map(key_of, run.overrides)


def _warn(line: str) -> None:
    print(line, file=sys.stderr)


def warn_of_timing(configs: Mapping[str, Mapping[str, Any]]) -> None:
    """Print a line if runs sample several steps ahead, and so are not reproducible bit for bit."""
    ahead = max((config["rollout"].get("ahead") or 0 for config in configs.values()), default=0)
    if ahead > 1:
        _warn(
            f"rollout.ahead={ahead}: what is sampled depends on timing. Run again or resumed, such a run is not the "
            "same bit for bit (docs/engines.md)."
        )


def warn_of_weak_locks(home: Path) -> None:
    """Print a line if locks do not hold between hosts, as the mount of a home says, or as a run has seen."""
    (kind, options), seen = mount(home), layout.weak_locks(home)
    if weak := LOCAL_LOCKS.intersection(options):
        seen.touch()
        _warn(f"{home} is on {kind} with {min(weak)}: {ONE_HOST}")
    elif seen.exists():
        _warn(f"{home}: a run was at work on another host while its lock was free here ({seen}): {ONE_HOST}")


def warn_of_slow_numbers(configs: Mapping[str, Mapping[str, Any]]) -> None:
    """Print a line if runs train in bfloat16 on a CPU of this machine that has no instructions for it."""
    dtypes = {config["trainer"]["dtype"] for config in configs.values() if config["trainer"]}
    if "bfloat16" in dtypes and not available_gpus() and not computes_bfloat16():
        advice = "trainer.dtype=float32 is faster here, up to twenty times."
        _warn(f"trainer.dtype=bfloat16: this CPU has no instructions for it. {advice}")


def warn_of_changed_inputs(ledger: Ledger, configs: Mapping[str, Mapping[str, Any]]) -> None:
    """Print a line for finished runs whose files, model or own code have changed since: they are not run again."""
    finished = [state.run_id for state in ledger.states(configs) if state.state is State.FINISHED]
    changed = Counter(inputs.changed(ledger.run_dir(run_id), configs[run_id]) for run_id in finished)
    for paths, count in changed.items():
        if paths:
            _warn(
                f"{paths}: {count} finished runs read other content than is there now, and are not run again. Give the "
                "new one another path, which makes other runs."
            )
    by_code: dict[tuple[tuple[str, tuple[str, ...]], ...], list[str]] = {}  # most runs used the same
    for run_id in finished:
        by_code.setdefault(tuple(inputs.recorded_code(ledger.run_dir(run_id)).items()), []).append(run_id)
    by_files: dict[str, list[str]] = {}  # changed files of their code -> runs
    for code, run_ids in by_code.items():
        by_files.setdefault(", ".join(own_code.changed(dict(code))), []).extend(run_ids)
    for files, run_ids in by_files.items():
        if files:
            runs, be, folders = "run was", "is", run_ids[0]
            if len(run_ids) > 1:
                shown = [*run_ids[:SHOWN], *["..."] * (len(run_ids) > SHOWN)]
                runs, be, folders = "runs were", "are", f"{{{','.join(shown)}}}"
            _warn(
                f"{files}: {len(run_ids)} finished {runs} made with another version, and {be} not run again. To train "
                f"anew: rm -r {shlex.quote(str(ledger.root))}/{folders}, and the same command. To have both: a module "
                "of another name for the new one, in its `_target_`, which makes other runs."
            )


def warn_of_unreachable_store(ledger: Ledger, uri: str | None) -> None:
    """Print a line if the tracking server does not answer. The launch does not need it, but its user should know."""
    uri = uri or os.environ.get("MLFLOW_TRACKING_URI")
    if uri and (fault := store.fault(store.resolve(ledger.home, uri))):
        _warn(f"MLflow: {fault}. Metrics are kept in runs/; `python -m sweeps sync` ships them later.")
