"""A plan becomes a launch: on the ledger first, then on SLURM or on this machine; and again from the ledger alone."""

from __future__ import annotations

import contextlib
import functools
import os
import shlex
import shutil
import sys
from collections import Counter
from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hydra.core.utils import JobReturn, JobStatus
from omegaconf import DictConfig, OmegaConf

from rlvr.config import own_code, targets
from rlvr.config.engine import gpus_of_workers
from rlvr.config.explain import of_unreadable
from rlvr.config.overrides import key_of, usual
from rlvr.ledger import inputs
from rlvr.ledger.attempt import newest_attempt
from rlvr.ledger.cause import State
from rlvr.ledger.layout import home
from rlvr.ledger.runs import Unreadable, check_owner, grouped, read_info, read_proven_config
from rlvr.ledger.sweeps import Ledger, grows
from rlvr.tracker import store
from slurm.client import is_configured
from sweeps import controls, expected, session
from sweeps.growing import controller, forecast, planning
from sweeps.growing.record import Record
from sweeps.local import Outcome, check_here, run_local
from sweeps.naming import RunNames, check_free
from sweeps.plan import Plan, plan, with_unique_names, write
from sweeps.planned import Planned
from sweeps.session import Launch
from sweeps.slurm.launch import check_pending, run_slurm
from sweeps.slurm.submissions import is_submitted
from sweeps.sync import sync_in_background, tracker_of
from sweeps.worker import shipping, to_store


def launch_points(master: DictConfig, overrides: Sequence[Sequence[str]]) -> list[JobReturn]:
    """Compose every point of a sweep, check all of them, and only then start anything.

    master: the config that Hydra composed for the command. Returns what Hydra wants of a launcher, for each point.
    """
    current = session.current()
    if grows(master):
        launched = launch_growing(master, overrides)
    else:
        planning.check(master, evaluates=current.adapt is not None)
        added = controls_of(master, overrides)
        points = current.adapted(current.points(master, [*overrides, *(words for words, _ in added)]))
        planned = plan(points, command=current.command, checker=current.checker)
        if current.adapt is None:  # an evaluation has no claims
            _check_expected(planned)
        launched = launch(_marked(planned, [control for _, control in added]))
    return [_returned(launched) for _ in overrides]


def _check_expected(planned: Plan) -> None:
    """ValueError for what no run can test; a line on what these runs cannot."""
    current = session.current()
    if line := expected.check(planned, Ledger(home()), current.registry, current.typed):
        print(line, file=sys.stderr)


def controls_of(master: DictConfig, overrides: Sequence[Sequence[str]]) -> list[tuple[list[str], str]]:
    """The points that `controls=` adds, each with its control."""
    if not master.controls:
        return []
    return controls.added(overrides, str(master.controls), str(master.baseline or ""), functools.partial(usual, master))


def _marked(planned: Plan, added: Sequence[str]) -> Plan:
    """The last runs of the plan are controls; that they repeat an arm under other seeds, their config does not say."""
    first = len(planned.runs) - len(added)
    kinds = ["" if control != controls.SEEDS else control for control in added]
    runs = [replace(run, control=kind) for run, kind in zip(planned.runs[first:], kinds, strict=True)]
    return replace(planned, runs=(*planned.runs[:first], *runs))


def launch_growing(master: DictConfig, overrides: Sequence[Sequence[str]]) -> Outcome:
    """A sweep whose next runs hang on the results of the ones before (sweeps/growing)."""
    current, ledger = session.current(), Ledger(home())
    planning.check(master, evaluates=current.adapt is not None)
    added = controls_of(master, overrides)
    if controls.SEEDS in [control for _, control in added]:
        raise ValueError("controls=seeds needs seeds that nothing adds to. Drop it, or drop until and tune.")

    def compose(words: Sequence[Sequence[str]]) -> Plan:
        composed = plan(current.points(master, words), command=current.command, checker=current.checker)
        return with_unique_names(composed, RunNames(ledger))

    record, first = planning.planned(master, [*overrides, *(words for words, _ in added)], ledger, compose)
    on_slurm = is_for_slurm(master.cluster.backend)
    everything = replace(first, runs=tuple(each.run for each in record.candidates))
    check_launch(everything, ledger, master.tracker, on_slurm=on_slurm)
    _check_expected(everything)
    outcome, told = Outcome(), tuple[str, ...]()
    if current.dry_run:
        told = tuple(forecast.lines(record))
    else:
        configs = {run.run_id: run.config for run in everything.runs}
        if on_slurm:
            check_pending(ledger, configs)
        with _forgotten_if_refused(ledger, record.sweep_id, configs):
            with controller.owned(ledger, record.sweep_id, controller.LOCK_S if on_slurm else 0.0):
                record.write()
            outcome = _go_on(ledger, record.sweep_id)
    current.launches.append(Launch(first, outcome, on_slurm=on_slurm, dry_run=current.dry_run, forecast=told))
    return outcome


def _go_on(ledger: Ledger, sweep_id: str, *, unless_cancelled: bool = False) -> Outcome:
    """Wave after wave here; on SLURM the wave that is due: the last of its jobs calls this again."""
    candidate = Record.read(ledger, sweep_id).candidates[0].run
    targets.restore(candidate.import_paths, candidate.config)
    first = OmegaConf.create(dict(candidate.config))

    def start() -> Outcome:
        configs = Record.read(ledger, sweep_id).configs
        begun = ledger.states(configs)
        rest = [state.run_id for state in begun if state.state is not State.DIVERGED]  # that is a result
        cluster = first.cluster
        return _start(
            ledger, sweep_id, configs, cluster, on_slurm=on_slurm, run_ids=rest, unless_cancelled=unless_cancelled
        )

    on_slurm = is_for_slurm(first.cluster.backend)
    if not on_slurm:
        return controller.grow(ledger, sweep_id, start)
    with controller.owned(ledger, sweep_id, controller.LOCK_S):
        wanted = controller.advance(ledger, sweep_id)
    return start() if wanted else Outcome(skipped=ledger.sweep(sweep_id).run_ids)


def launch(planned: Plan) -> Outcome:
    """Write the plan to the ledger and run what is not finished. In a dry run the session only remembers it."""
    current, ledger = session.current(), Ledger(home())
    planned = with_unique_names(planned, RunNames(ledger))
    first = OmegaConf.create(dict(planned.runs[0].config))
    cluster, tracker = first.cluster, first.tracker
    on_slurm = is_for_slurm(cluster.backend)
    check_launch(planned, ledger, tracker, on_slurm=on_slurm)
    outcome = Outcome()
    if not current.dry_run:
        configs = {run.run_id: run.config for run in planned.runs}
        if on_slurm:
            check_pending(ledger, configs)
        with _forgotten_if_refused(ledger, planned.sweep_id, configs):
            write(planned, ledger)
            outcome = _start(ledger, planned.sweep_id, configs, cluster, on_slurm=on_slurm)
    current.launches.append(Launch(planned, outcome, on_slurm=on_slurm, dry_run=current.dry_run))
    return outcome


@contextlib.contextmanager
def _forgotten_if_refused(ledger: Ledger, sweep_id: str, run_ids: Collection[str]) -> Generator[None, None, None]:
    """A new sweep of which nothing could be started is taken from the ledger, but for what others have put there."""
    is_new = not ledger.sweep_dir(sweep_id).exists()
    try:
        yield
    except controller.Taken:
        raise
    except ValueError:
        begun = is_submitted(ledger, run_ids) or any(newest_attempt(ledger.run_dir(run_id)) for run_id in ledger.made)
        if is_new and not begun:
            ledger.forget(sweep_id)
        raise


def check_launch(planned: Plan, ledger: Ledger, tracker: Any, *, on_slurm: bool) -> None:
    """What a launch of any kind is refused for, before anything is written. Raises ValueError."""
    _check_shared(planned, on_slurm=on_slurm)
    _check_machine(planned, on_slurm=on_slurm, dry_run=session.current().dry_run)
    _check_store(tracker)
    _check_name(planned, ledger)
    for line in of_unreadable(session.current().registry):
        print(line, file=sys.stderr)


def _check_name(planned: Plan, ledger: Ledger) -> None:
    """ValueError for a name of the sweep that stands for something else."""
    if planned.name:
        studies = session.current().registry.options("study")
        check_free(planned.name, planned.sweep_id, [run.run_id for run in planned.runs], ledger, studies)


def _check_store(tracker: Any) -> None:
    """ValueError for a `tracker.uri`, or $MLFLOW_TRACKING_URI, that is none of a store."""
    if tracker.enabled:
        store.resolve(home(), tracker.uri)


def _check_shared(planned: Plan, *, on_slurm: bool) -> None:
    """Runs of one array may ask for other resources than those of the next; a launch itself is of one kind."""
    here = () if on_slurm else ("workers", "threads", "ranks", "retries", "hung_min")
    for key in ("backend", "wait", "report", *here):
        values = list(dict.fromkeys(run.config["cluster"][key] for run in planned.runs))
        if len(values) > 1:
            given = " and ".join(f"cluster.{key}={value}" for value in values)
            where = "on this machine " if key in here else ""
            raise ValueError(f"{given}: all runs of a launch {where}share it. Launch them apart.")


def _check_machine(planned: Plan, *, on_slurm: bool, dry_run: bool) -> None:
    """Is the SLURM here that the launch asks for, or the GPUs? A dry run may look at a recipe for other machines: what
    is typed counts, and not what the recipe says.
    """
    if on_slurm:
        if not is_configured():
            raise ValueError(
                "cluster=slurm, and there is no SLURM here: sbatch is not on PATH, or knows no cluster. Pass "
                "cluster=local, or log in where it is."
            )
        return
    most = {
        key: max((run.config["cluster"][key] for run in planned.runs if not dry_run or _types(run, key)), default=0)
        for key in ("nodes", "gpus")
    }
    check_here(**most)


def _types(run: Planned, key: str) -> bool:
    """Whether a knob of the cluster was typed for a run."""
    return f"cluster.{key}" in map(key_of, run.overrides)


def again(ledger: Ledger, sweep_id: str, run_id: str | None = None, *, unless_cancelled: bool = False) -> Outcome:
    """Launch what is not finished of a sweep, from the configs on the ledger: the command need not be known.

    run_id: this run of it alone.
    unless_cancelled: a sweep whose jobs on SLURM were cancelled raises ValueError, as its user has stopped it.
    """
    check_owner(ledger.sweep_dir(sweep_id))
    if run_id is None and grows(ledger.sweep(sweep_id).info):
        return _go_on(ledger, sweep_id, unless_cancelled=unless_cancelled)
    wanted = ledger.sweep(sweep_id).run_ids if run_id is None else [run_id]
    configs: dict[str, dict[str, Any]] = {}
    errors: list[Unreadable] = []
    for each in wanted:
        try:
            check_owner(ledger.run_dir(each))
            configs[each] = read_proven_config(ledger.run_dir(each))
        except Unreadable as error:
            errors.append(error)
        else:
            targets.restore(read_info(ledger.run_dir(each)).import_paths, configs[each])
    if errors and len(wanted) == 1:
        raise errors[0]
    for line in grouped(errors):
        print(line, file=sys.stderr)
    if not configs:
        raise ValueError(f"nothing of sweep {sweep_id} can be started again.")
    first = OmegaConf.create(next(iter(configs.values())))
    on_slurm = is_for_slurm(first.cluster.backend)
    cluster = first.cluster
    return _start(
        ledger, sweep_id, configs, cluster, on_slurm=on_slurm, run_ids=wanted, unless_cancelled=unless_cancelled
    )


def _start(
    ledger: Ledger,
    sweep_id: str,
    configs: Mapping[str, Mapping[str, Any]],
    cluster: Any,
    *,
    on_slurm: bool,
    run_ids: Collection[str] | None = None,
    unless_cancelled: bool = False,
) -> Outcome:
    """`configs`: the frozen ones of the runs; `cluster`: that of the launch.

    run_ids: runs of the sweep to start; None: all.
    """
    shipper = shipper_of(ledger, sweep_id, OmegaConf.create(dict(tracker_of(ledger, ledger.sweep(sweep_id)))))
    _tell_of_timing(configs)
    _tell_of_other_versions(ledger, configs)
    if on_slurm:
        return run_slurm(
            ledger,
            sweep_id,
            configs,
            run_ids=run_ids,
            shipper=shipper,
            wait=cluster.wait,
            unless_cancelled=unless_cancelled,
        )
    return run_local(
        ledger,
        sweep_id,
        run_ids=run_ids,
        workers=cluster.workers,
        threads=cluster.threads,
        ranks=cluster.ranks,
        engine_gpus=max((gpus_of_workers(config["rollout"]["engine"]) for config in configs.values()), default=0),
        retries=cluster.retries,
        hung_min=cluster.hung_min,
        shipper=shipper,
    )


def _tell_of_timing(configs: Mapping[str, Mapping[str, Any]]) -> None:
    """Runs that no seed repeats bit for bit."""
    ahead = max((config["rollout"].get("ahead", 0) for config in configs.values()), default=0)
    if ahead > 1:
        print(
            f"rollout.ahead={ahead}: what is sampled depends on timing. Run again or resumed, such a run is not the "
            "same bit for bit (docs/engines.md).",
            file=sys.stderr,
        )


def _tell_of_other_versions(ledger: Ledger, configs: Mapping[str, Mapping[str, Any]]) -> None:
    """Finished runs whose files, model or own code were replaced since: they are not run again."""
    finished = [state.run_id for state in ledger.states(configs) if state.state is State.FINISHED]
    changed = Counter(inputs.changed(ledger.run_dir(run_id), configs[run_id]) for run_id in finished)
    for which, count in changed.items():
        if which:
            print(
                f"{which}: {count} finished runs read other content than is there now, and are not run again. Give the "
                "new one another path, which makes other runs.",
                file=sys.stderr,
            )
    made: dict[str, list[str]] = {}
    for run_id in finished:
        made.setdefault(", ".join(own_code.changed(ledger.run_dir(run_id))), []).append(run_id)
    for files, run_ids in made.items():
        if files:
            several = len(run_ids) > 1
            which = f"{{{','.join(run_ids)}}}" if several else run_ids[0]
            print(
                f"{files}: {len(run_ids)} finished run{'s were' if several else ' was'} made with another version, and "
                f"{'are' if several else 'is'} not run again. To train anew: rm -r {shlex.quote(str(ledger.root))}/"
                f"{which}, and the same command. To have both: a module of another name for the new one, in its "
                "`_target_`, which makes other runs.",
                file=sys.stderr,
            )


def shipper_of(ledger: Ledger, sweep_id: str, tracker: Any) -> list[str] | None:
    """Command that ships a sweep's metrics while it runs; None: tracker=none."""
    if not tracker.enabled:
        return None
    _warn_of_silence(ledger, tracker.uri)
    sync_in_background(ledger)  # what launches before this one could not ship, each to the store that it named
    return shipping(ledger.home, "--sweep", sweep_id, "--follow", *to_store(tracker.uri))


def _warn_of_silence(ledger: Ledger, uri: str | None) -> None:
    """Of a tracking server that was asked for and does not answer: no obstacle, but better known now."""
    uri = uri or os.environ.get("MLFLOW_TRACKING_URI")
    if uri and (silent := store.fault(store.resolve(ledger.home, uri))):
        print(
            f"MLflow: {silent}. Metrics are kept in runs/; `python -m sweeps sync` ships them later.", file=sys.stderr
        )


def is_for_slurm(backend: str) -> bool:
    """auto: SLURM where it is set up, else this machine. ValueError: a SLURM that does not answer."""
    if backend not in ("auto", "local", "slurm"):
        raise ValueError(f"cluster.backend={backend} is unknown: use auto, local or slurm.")
    if backend != "auto":
        return backend == "slurm"
    found = is_configured()
    if not found:
        _warn_of_idle_clients()
    return found


@functools.cache  # a sweep that grows asks for each wave
def _warn_of_idle_clients() -> None:
    if shutil.which("sbatch"):
        print("sbatch is on PATH but knows no cluster (no slurm.conf): running on this machine.", file=sys.stderr)


def _returned(outcome: Outcome) -> JobReturn:
    result = JobReturn()
    result.return_value = outcome
    result.status = JobStatus.COMPLETED
    return result
