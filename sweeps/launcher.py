"""Hydra's launcher for this project: all points of a grid become one plan, one ledger entry and one launch."""

from __future__ import annotations

import contextlib
import itertools
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict

from rlvr.config import CONF
from rlvr.paths import home
from slurm.client import is_configured
from sweeps.ledger import Ledger
from sweeps.local import Outcome, run_local
from sweeps.plan import Plan, plan, write
from sweeps.slurm import run_slurm
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
        jobs = [list(o) for o in job_overrides]
        jobs += also(list(self.config.also), jobs, list(self.config.hydra.sweeper.get("params") or {}))
        points = [self.compose(index, overrides) for index, overrides in enumerate(jobs, initial_job_idx)]
        launched = launch(plan(points, command=command()), points[0][1])
        return [_returned(launched) for _ in job_overrides]

    def compose(self, index: int, overrides: Sequence[str]) -> tuple[list[str], DictConfig, dict[str, Any]]:
        composed = self.context.config_loader.load_sweep_config(self.config, list(overrides))
        with open_dict(composed):
            composed.hydra.job.num = index
            choices = OmegaConf.to_container(composed.hydra.runtime.choices)
            task_overrides = OmegaConf.to_container(composed.hydra.overrides.task)
            del composed["hydra"]
        assert isinstance(choices, dict)
        assert isinstance(task_overrides, list)
        return [str(o) for o in task_overrides], composed, {str(k): v for k, v in choices.items()}


def register() -> None:
    """Make the launcher known to Hydra as `hydra/launcher=rlvr`. Harmless when repeated."""
    plugins = Plugins.instance()  # looks for installed plugins, once
    namespace = sys.modules.setdefault("hydra_plugins", ModuleType("hydra_plugins"))
    namespace.rlvr = sys.modules[PLUGIN] = sys.modules[__name__]  # type: ignore[attr-defined]
    target = {"_target_": f"{PLUGIN}.{RlvrLauncher.__qualname__}"}
    ConfigStore.instance().store(group="hydra/launcher", name="rlvr", node=target, provider="rlvr")
    plugins.register(RlvrLauncher)


@contextlib.contextmanager
def dry_run() -> Iterator[None]:
    """Launches in here do not happen: they are printed at the end. Hydra's own file of a sweep goes elsewhere."""
    global on_paper
    on_paper = []
    with tempfile.TemporaryDirectory() as passing:
        sys.argv.append(f"hydra.sweep.dir={passing}")
        yield
    from sweeps.preview import preview

    for planned, on_slurm in on_paper:
        print(preview(planned, Ledger(home()), slurm=on_slurm))


def launch(planned: Plan, config: DictConfig) -> Outcome:
    """Write the plan to the ledger and run what is not finished. `config`: its cluster and tracker settings.

    With --dry-run the plan is only remembered.
    """
    ledger = Ledger(home())
    cluster, tracker = config.cluster, config.tracker
    on_slurm = _is_for_slurm(cluster.backend)
    if on_paper is not None:
        on_paper.append((planned, on_slurm))
        return Outcome()
    write(planned, ledger)
    outcome = _start(
        ledger, planned.sweep_id, {run.run_id: run.config["cluster"] for run in planned.runs}, cluster, tracker,
        on_slurm=on_slurm,
    )  # fmt: skip
    outcomes.append(outcome)
    return outcome


def again(ledger: Ledger, sweep_id: str) -> Outcome:
    """Launch what is not finished of a sweep, from the configs on the ledger: the command need not be known."""
    import yaml

    paths = {run_id: ledger.run_dir(run_id) / "config.yaml" for run_id in ledger.sweep(sweep_id).run_ids}
    configs = {run_id: yaml.safe_load(path.read_text()) for run_id, path in paths.items()}
    # A config that was frozen by an older version lacks the settings that came since.
    since = yaml.safe_load((CONF / "cluster" / "slurm.yaml").read_text())
    settings = {run_id: {**since, **config["cluster"]} for run_id, config in configs.items()}
    first = OmegaConf.create({**next(iter(configs.values())), "cluster": settings[next(iter(configs))]})
    on_slurm = _is_for_slurm(first.cluster.backend)
    return _start(ledger, sweep_id, settings, first.cluster, first.tracker, on_slurm=on_slurm)


def _start(
    ledger: Ledger, sweep_id: str, settings: Mapping[str, Mapping[str, Any]], cluster: Any, tracker: Any, *,
    on_slurm: bool,
) -> Outcome:  # fmt: skip
    """`settings`: the cluster part of each run's config; `cluster` and `tracker`: those of the launch."""
    shipper = None
    if tracker.enabled:
        shipper = shipping(ledger.home, "--sweep", sweep_id, "--follow")
        if tracker.uri:  # not an argument: it may hold a password, and `ps` shows arguments to all
            os.environ["MLFLOW_TRACKING_URI"] = tracker.uri
    if on_slurm:
        return run_slurm(ledger, sweep_id, settings, shipper=shipper, wait=cluster.wait)
    return run_local(
        ledger, sweep_id, workers=cluster.workers, threads=cluster.threads, ranks=cluster.ranks,
        retries=cluster.retries, shipper=shipper,
    )  # fmt: skip


def _is_for_slurm(backend: str) -> bool:
    """auto: SLURM where it is set up, else this machine. ValueError: a SLURM that does not answer."""
    if backend not in ("auto", "local", "slurm"):
        raise ValueError(f"cluster.backend={backend} is unknown: use auto, local or slurm.")
    if backend != "auto":
        return backend == "slurm"
    found = is_configured()
    if not found and shutil.which("sbatch"):
        print("sbatch is on PATH but knows no cluster (no slurm.conf): running on this machine.", file=sys.stderr)
    return found


def also(arms: Sequence[str], grid: Sequence[Sequence[str]], own: Sequence[str]) -> list[list[str]]:
    """The points of a study's `also` lines: arms that its grid cannot express, such as a baseline without η.

    Each line is written as on a command line and may sweep. What the user sweeps beside the study's `own` axes (seeds,
    say) repeats these arms too, unless the line sets it itself.
    """
    repeats = {tuple(o for o in point if o.split("=", 1)[0].lstrip("+") not in own): None for point in grid}
    points: dict[tuple[str, ...], None] = {}
    for line in arms:
        parsed = OverridesParser.create().parse_overrides(shlex.split(line))
        axes = [[f"{o.get_key_element()}={v}" for v in _values(o)] for o in parsed]
        for arm, repeat in itertools.product(itertools.product(*axes), repeats):
            told = {o.split("=", 1)[0] for o in arm}
            points[(*(o for o in repeat if o.split("=", 1)[0] not in told), *arm)] = None
    return [list(point) for point in points]


def _values(override: Override) -> list[str]:
    if override.is_discrete_sweep():
        return list(override.sweep_string_iterator())
    return [override.get_value_element_as_str()]


def _returned(outcome: Outcome) -> JobReturn:
    result = JobReturn()
    result.return_value = outcome
    result.status = JobStatus.COMPLETED
    return result


def command() -> str:
    return shlex.join(["python", "-m", "rlvr.run", *(typed or sys.argv[1:])])
