"""Restricts what a config on disk may call: our components, and code in the launch's own directories."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from rlvr.config import imports
from rlvr.config.signature import definition
from rlvr.config.values import leaves
from rlvr.ledger.runs import TRUST, flatten, trusted

# Packages that contain only components, and the modules with components of other packages.
COMPONENTS = {
    "rlvr.job.command",
    "rlvr.job.trl",
    "rlvr.job.verl",
    "rlvr.loss",
    "rlvr.objective",
    "rlvr.task",
    "rlvr.model.hub",
    "rlvr.model.pretrain",
    "rlvr.model.table",
    "rlvr.rollout.native",
    "rlvr.rollout.presample",
    "rlvr.rollout.ray",
    "rlvr.rollout.vllm",
    "rlvr.trainer.knobs",
}


def make_importable(paths: Sequence[str], config: object) -> None:
    """Make the components of a run importable as they were at its launch.

    paths: `import_paths` of its run.json. config: its frozen config. Raises ValueError if Python would import another
    module of the same name, or if the config names something that it may not call, or refers to something.
    """
    refuse_references(cast("Mapping[str, Any]", config))
    imports.add_import_paths(paths)
    for package in sorted(packages(config)):
        imports.refuse_hidden(package, [Path(path) for path in paths])
    refuse_targets(config, paths)


def refuse_references(config: Mapping[str, Any]) -> None:
    """Raises ValueError for a value with `${` outside of `cluster`, whose lines are for the shell.

    A launch resolves all references. OmegaConf would resolve these, too: `${oc.decode:...}` makes a component that
    `targets` does not see.
    """
    for key, value in flatten(config).items():
        if "${" in str(value) and not key.startswith("cluster."):
            raise ValueError(
                f"{key}: {value} is a reference (${{), and the config of a run has none. Write it without."
            )


def refuse_targets(config: object, paths: Sequence[str]) -> None:
    """Raises ValueError for a `_target_` that is neither our component nor in one of the launch's own directories.

    Otherwise a config on disk could call any function of any library, including `os.system`. paths: `import_paths` of
    the run.
    """
    own_directories = [Path(path).resolve() for path in paths]
    if not imports.is_installed(imports.ROOT):
        own_directories.append(imports.ROOT)
    for target in sorted(targets(config)):
        package = target.split(".")[0]
        directory = imports.directory_of_package(package)
        is_allowed = _is_component(target) if package in imports.PACKAGES else directory in own_directories
        if is_allowed or trusted(package):
            continue
        gone = [path for path in paths if not Path(path).is_dir()]
        if gone and (
            imports.find_spec(package) is None or (directory is not None and not imports.is_common(directory))
        ):
            raise ValueError(
                f"_target_: {target} came from a directory that is gone, {' or '.join(gone)}. Put it back, or a link "
                f"to where it is now: ln -s NEW_PLACE {shlex.quote(gone[-1])}"
            )
        raise ValueError(
            f"_target_: {target} is neither a component of rlvr nor in a directory of your own on Python's path or "
            f"--config-dir. If you know what it does: export {TRUST}={package}, here and in jobs."
        )


def _is_component(target: str) -> bool:
    """Whether a target is a public function or class that a module of components defines itself.

    The options of conf/ are no criterion: one may have been removed since a waiting job was submitted.
    """
    module, _, name = target.rpartition(".")
    if not {module, module.rpartition(".")[0]} & COMPONENTS or name.startswith("_"):
        return False
    try:
        defined = definition(target)
    except ValueError:
        return False
    return defined is not None and defined.module.name == module


def targets(config: object) -> frozenset[str]:
    """Every `_target_` of a config."""
    return frozenset(str(value) for place, value in leaves(config) if place[-1:] == ("_target_",) and value)


def packages(config: object) -> frozenset[str]:
    """The top-level package or module of every `_target_` of a config."""
    return frozenset(target.split(".")[0] for target in targets(config))
