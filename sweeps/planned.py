"""A planned run of a sweep, and how it is written to the ledger."""

import functools
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig
from omegaconf.errors import MissingMandatoryValue

from rlvr.config import own_code, targets
from rlvr.ledger.runs import Unreadable, check_owner, flatten, read_info, read_verified_config, to_yaml
from rlvr.ledger.sweeps import Ledger
from rlvr.metrics import VALIDATION


@dataclass(frozen=True)
class PlannedRun:
    """One run of a sweep."""

    run_id: str
    group_id: str
    name: str
    overrides: tuple[str, ...]
    config: Mapping[str, Any]  # resolved
    arm: str = ""  # the name without the seed
    control: str = ""  # "seeds": the run repeats an arm to measure the noise floor, and is not one of the arm's seeds
    import_paths: tuple[str, ...] = ()  # directories from which its components are imported, beside sys.path

    @property
    def about(self) -> dict[str, Any]:
        """What identifies it, in every file and to programs."""
        return {"run_id": self.run_id, "name": self.name, "arm": self.arm, "group_id": self.group_id}

    def line(self, index: int, overrides: Sequence[str]) -> dict[str, Any]:
        """Its line in the manifest of a sweep."""
        control = {"control": self.control} if self.control else {}
        return {**self.about, **control, "seed": self.config["seed"], "overrides": list(overrides), "index": index}


def seed_by_seed(run_ids: Iterable[str], configs: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Runs in the order in which they start: every arm with the first seed, then with the next.

    So a sweep that is stopped, or still under way, has all arms over the same seeds, and what a machine does meanwhile
    meets all arms alike (the blocks of an experimental design). configs: runs that cannot be read have none.
    """
    seed_of = {run_id: configs.get(run_id, {}).get("seed") for run_id in run_ids}
    place = {seed: i for i, seed in enumerate(dict.fromkeys(seed_of.values()))}
    return sorted(seed_of, key=lambda run_id: place[seed_of[run_id]])


def base_policies(runs: Iterable[PlannedRun]) -> list[list[dict[str, Any]]]:
    """For each setting apart from it, the base policies that its runs start from, as flat keys of `model`."""
    models: dict[str, dict[str, dict[str, Any]]] = {}
    for run in runs:
        setting = repr([run.config.get(key) for key in ("task", "evaluation", "steps")])
        model = flatten({"model": run.config.get("model") or {}})
        models.setdefault(setting, {})[repr(model)] = model
    return [list(of_setting.values()) for of_setting in models.values()]


def evaluation_metric_names(config: Mapping[str, Any] | DictConfig) -> list[str]:
    """Metric names of a run's evaluations; those of the validation split begin with VALIDATION."""
    from rlvr.rollout.evaluation import held_out_problems, metric_names

    evaluation, task = config["evaluation"], instantiate(config["task"])
    names_of = functools.partial(metric_names, task, samples=evaluation["samples"], k=list(evaluation["k"]))
    names = names_of(held_out_problems(task, evaluation["problems"]))
    if evaluation["validation"] is not None:
        names += names_of(held_out_problems(task, evaluation["validation"], "validation"), prefix=VALIDATION)
    task.close()
    return names


def evaluations(runs: Iterable[PlannedRun]) -> list[tuple[list[str], int] | None]:
    """For each kind of run: the metric names of its evaluations, and its samples per problem; None in a dry run without
    the data of its task, which is reported elsewhere.
    """
    kinds = {repr((run.config["task"], run.config["evaluation"])): run.config for run in runs}
    of_kinds = list[tuple[list[str], int] | None]()
    for config in kinds.values():
        try:
            of_kinds.append((evaluation_metric_names(config), config["evaluation"]["samples"]))
        except (InstantiationException, MissingMandatoryValue):
            of_kinds.append(None)
    return of_kinds


def write_runs(runs: Sequence[PlannedRun], ledger: Ledger, about: Mapping[str, Any]) -> None:
    """Put runs on the ledger, in no sweep yet. Harmless when repeated. about: the content of sweep.json."""
    is_dirty = bool(own_code.git("status", "--porcelain", "--untracked-files=no"))
    of_launch = {"git_sha": own_code.git("rev-parse", "HEAD"), "git_dirty": is_dirty, "host": socket.gethostname()}
    of_launch |= {key: about[key] for key in ("study", "command", "config_dirs")}
    for run in runs:
        info = {**run.about, **of_launch, "created": time.time(), "import_paths": list(run.import_paths)}
        ledger.create_run(run.run_id, to_yaml(run.config), info)


def read_launchable(ledger: Ledger, run_ids: Iterable[str]) -> tuple[dict[str, Mapping[str, Any]], list[Unreadable]]:
    """(the frozen config of each run, whose components are importable from now on; why the other runs have none)."""
    configs: dict[str, Mapping[str, Any]] = {}
    errors: list[Unreadable] = []
    for run_id in run_ids:
        run_dir = ledger.run_dir(run_id)
        try:
            check_owner(run_dir)
            config = read_verified_config(run_dir)
        except Unreadable as error:
            errors.append(error)
        else:
            targets.make_importable(read_info(run_dir).import_paths, config)
            configs[run_id] = config
    return configs, errors
