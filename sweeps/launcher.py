"""Hydra's launcher for this project: all points of a grid become one plan, one ledger entry and one launch."""

from __future__ import annotations

import contextlib
import functools
import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

from hydra import initialize_config_dir
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

from rlvr.config import schema
from rlvr.config.compose import Composed, Points
from rlvr.ledger.identity import LINES
from rlvr.ledger.layout import home
from rlvr.ledger.runs import Unreadable, grouped, read_config
from rlvr.ledger.sweeps import Ledger
from rlvr.tracker import store
from slurm.client import is_configured
from sweeps import grid
from sweeps.local import Outcome, run_local
from sweeps.plan import Plan, plan, write
from sweeps.slurm.launch import run_slurm
from sweeps.worker import shipping

# Hydra takes plugins from the namespace package `hydra_plugins` only: this module answers to a name in it.
PLUGIN = "hydra_plugins.rlvr"

typed: list[str] = []  # the arguments as the user wrote them
on_paper: list[tuple[Plan, bool]] | None = None  # --dry-run: (plan, for SLURM?) of each launch that did not happen

# What the newest launch of this process came to: Hydra gives a launcher no way to set the exit code.
outcomes: list[Outcome] = []


class RlvrLauncher(Launcher):
    """Composes every point, checks all of them, and only then starts anything."""

    __module__ = PLUGIN

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.context = hydra_context
        self.config = config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        launched = launch(plan(self._points(job_overrides), command=command()))
        return [_returned(launched) for _ in job_overrides]

    def compose(self, overrides: Sequence[str]) -> Composed:
        return self._points([]).full(list(overrides))

    def _points(self, overrides: Sequence[Sequence[str]]) -> Points:
        loader = self.context.config_loader
        assert isinstance(loader, ConfigLoaderImpl)
        return Points(loader, self.config, overrides)


class GridSweeper(Sweeper):
    """A grid of lists and ranges, shaped by the lines also, zip, exclude and when (docs/sweeps.md): one launch."""

    __module__ = PLUGIN
    config: DictConfig
    launcher: Launcher

    def __init__(self, params: Mapping[str, str] | None = None) -> None:
        self.params = params or {}  # a study's own axes

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.context, self.config = hydra_context, config
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> Sequence[JobReturn]:
        return self.launcher.launch(self.points(arguments), initial_job_idx=0)

    def points(self, arguments: Sequence[str]) -> list[list[str]]:
        parser = OverridesParser.create(config_loader=self.context.config_loader)
        overrides = parser.parse_overrides([*(f"{k}={v}" for k, v in self.params.items()), *arguments])
        rules = grid.Rules(**{name: list(self.config[name]) for name in LINES})
        return grid.expand(overrides, set(self.params), rules, functools.partial(usual, self.config))


def usual(config: DictConfig, key: str) -> object:
    """What holds for points that do not set this key."""
    choices = config.hydra.runtime.choices
    value = choices[key] if key in choices else OmegaConf.select(config, key)
    return OmegaConf.to_container(value) if OmegaConf.is_config(value) else value


def register() -> None:
    """Make `hydra/launcher=rlvr` and `hydra/sweeper=grid` known to Hydra. Harmless when repeated."""
    plugins = Plugins.instance()  # looks for installed plugins, once
    namespace = sys.modules.setdefault("hydra_plugins", ModuleType("hydra_plugins"))
    namespace.rlvr = sys.modules[PLUGIN] = sys.modules[__name__]  # type: ignore[attr-defined]
    target = {"_target_": f"{PLUGIN}.{RlvrLauncher.__qualname__}"}
    ConfigStore.instance().store(group="hydra/launcher", name="rlvr", node=target, provider="rlvr")
    plugins.register(RlvrLauncher)
    sweeper = {"_target_": f"{PLUGIN}.{GridSweeper.__qualname__}", "params": None}
    ConfigStore.instance().store(group="hydra/sweeper", name="grid", node=sweeper, provider="rlvr")
    plugins.register(GridSweeper)


@contextlib.contextmanager
def composing() -> Iterator[None]:
    """In here, Hydra's `compose` knows conf/ and all that this project adds to it."""
    schema.register()
    register()
    with initialize_config_dir(str(schema.CONF), version_base="1.3"):
        yield


@contextlib.contextmanager
def dry_run() -> Iterator[None]:
    """Launches in here do not happen: they are printed at the end."""
    global on_paper
    on_paper = []
    yield
    from sweeps.preview import preview

    for planned, on_slurm in on_paper:
        print(preview(planned, Ledger(home()), slurm=on_slurm))


def launch(planned: Plan) -> Outcome:
    """Write the plan to the ledger and run what is not finished. With --dry-run the plan is only remembered."""
    ledger = Ledger(home())
    first = OmegaConf.create(dict(planned.runs[0].config))
    cluster, tracker = first.cluster, first.tracker
    on_slurm = is_for_slurm(cluster.backend)
    _check_shared(planned, on_slurm=on_slurm)
    if on_paper is not None:
        on_paper.append((planned, on_slurm))
        return Outcome()
    write(planned, ledger)
    outcome = _start(
        ledger, planned.sweep_id, {run.run_id: run.config for run in planned.runs}, cluster, tracker, on_slurm=on_slurm
    )
    outcomes.append(outcome)
    return outcome


def _check_shared(planned: Plan, *, on_slurm: bool) -> None:
    """Runs of one array may ask for other resources than those of the next; a launch itself is of one kind."""
    here = () if on_slurm else ("workers", "threads", "ranks", "retries")
    for key in ("backend", "wait", "report", *here):
        values = list(dict.fromkeys(run.config["cluster"][key] for run in planned.runs))
        if len(values) > 1:
            given = " and ".join(f"cluster.{key}={value}" for value in values)
            where = "on this machine " if key in here else ""
            raise ValueError(f"{given}: all runs of a launch {where}share it. Launch them apart.")
    nodes = max(run.config["cluster"]["nodes"] for run in planned.runs)
    if nodes > 1 and not on_slurm:
        raise ValueError(
            f"cluster.nodes={nodes} needs SLURM, and this launch is for this machine. Pass cluster.nodes=1."
        )


def again(ledger: Ledger, sweep_id: str) -> Outcome:
    """Launch what is not finished of a sweep, from the configs on the ledger: the command need not be known."""
    configs: dict[str, dict[str, Any]] = {}
    errors: list[Unreadable] = []
    for run_id in ledger.sweep(sweep_id).run_ids:
        try:
            configs[run_id] = read_config(ledger.run_dir(run_id))
        except Unreadable as error:
            errors.append(error)
    for line in grouped(errors):
        print(line, file=sys.stderr)
    if not configs:
        raise ValueError(f"nothing of sweep {sweep_id} can be started again.")
    first = OmegaConf.create(next(iter(configs.values())))
    on_slurm = is_for_slurm(first.cluster.backend)
    return _start(ledger, sweep_id, configs, first.cluster, first.tracker, on_slurm=on_slurm)


def _start(
    ledger: Ledger,
    sweep_id: str,
    configs: Mapping[str, Mapping[str, Any]],
    cluster: Any,
    tracker: Any,
    *,
    on_slurm: bool,
) -> Outcome:
    """`configs`: the frozen ones of the runs; `cluster` and `tracker`: those of the launch."""
    shipper = shipper_of(ledger, sweep_id, tracker)
    if on_slurm:
        return run_slurm(ledger, sweep_id, configs, shipper=shipper, wait=cluster.wait)
    return run_local(
        ledger,
        sweep_id,
        workers=cluster.workers,
        threads=cluster.threads,
        ranks=cluster.ranks,
        retries=cluster.retries,
        shipper=shipper,
    )


def shipper_of(ledger: Ledger, sweep_id: str, tracker: Any) -> list[str] | None:
    """Command that ships a sweep's metrics while it runs; None: tracker=none."""
    if not tracker.enabled:
        return None
    if tracker.uri:  # not an argument: it may hold a password, and `ps` shows arguments to all
        os.environ["MLFLOW_TRACKING_URI"] = tracker.uri
    _warn_of_silence(ledger)
    return shipping(ledger.home, "--sweep", sweep_id, "--follow")


def _warn_of_silence(ledger: Ledger) -> None:
    """Of a tracking server that was asked for and does not answer: no obstacle, but better known now."""
    if (uri := os.environ.get("MLFLOW_TRACKING_URI")) and (silent := store.fault(store.resolve(ledger.home, uri))):
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
    if not found and shutil.which("sbatch"):
        print("sbatch is on PATH but knows no cluster (no slurm.conf): running on this machine.", file=sys.stderr)
    return found


def _returned(outcome: Outcome) -> JobReturn:
    result = JobReturn()
    result.return_value = outcome
    result.status = JobStatus.COMPLETED
    return result


def command() -> str:
    return shlex.join(["python", "-m", "rlvr.run", *(typed or sys.argv[1:])])
