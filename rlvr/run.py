"""`python -m rlvr.run`, and the same from Python: compose, check, plan, launch. No torch here.

`rlvr.run` is this module and what a notebook calls, `rlvr.run(["loss=lad", "eta=0.5"])`: docs/python.md.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from hydra._internal.utils import _run_hydra, get_args_parser
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.singleton import Singleton
from omegaconf import DictConfig, OmegaConf

from rlvr import __version__
from rlvr.config import imports, schema
from rlvr.config.explain import BAD_INPUT, explain
from rlvr.config.registry import Registry
from rlvr.ledger.files import home
from rlvr.ledger.identity import LINES
from rlvr.ledger.sweeps import Ledger

if TYPE_CHECKING:
    from sweeps.session import Session

MULTIRUN = frozenset({"-m", "--multirun"})
OWN_FLAGS = frozenset({"--debug", "--dry-run"})


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit codes: 0 all finished, 1 a run failed, 2 bad input, nothing launched, 130 interrupted."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if "--version" in given:
        print(f"rlvr {__version__}")
        return 0
    if problem := imports.foreign():
        print(f"rlvr: {problem}", file=sys.stderr)
        return 2
    words = [word for word in given if word not in OWN_FLAGS]
    registry = Registry()
    try:
        registry = Registry.of(quoted(words))
        session = carried_out(words, registry, dry_run="--dry-run" in given)
    except BAD_INPUT as error:
        if "--debug" in given or os.environ.get("HYDRA_FULL_ERROR") == "1":
            raise
        print(f"rlvr: {explain(error, words, registry)}", file=sys.stderr)
        return 2
    return max((launch.outcome.exit_code for launch in session.launches), default=0)


def carried_out(words: Sequence[str], registry: Registry, *, dry_run: bool = False) -> Session:
    """What a command line means, done. words: as typed, without the flags that are ours. Raises what is wrong."""
    from sweeps import launcher
    from sweeps.plan import plan
    from sweeps.preview import preview
    from sweeps.session import Session

    session = Session(words, registry, dry_run)
    with session.current(), _hydra_of_its_own():
        parser = get_args_parser()
        # Hydra, told to take this for its own command, composes and calls our sweeper, or `_single_point_of`.
        _run_hydra(
            args=parser.parse_intermixed_args(deferred(quoted(words), registry)),
            args_parser=parser,
            task_function=_single_point_of(session),
            config_path=str(schema.CONF),
            config_name="run",
        )
        if session.single is not None:
            overrides, _, choices = session.single
            _refuse_sweeping(overrides, choices)
            launcher.launch(plan([session.single], command=session.command, checker=session.checker))
        for launch in session.launches if dry_run else []:
            print(preview(launch.plan, Ledger(home()), slurm=launch.on_slurm, registry=registry))
    return session


def _single_point_of(session: Session) -> Callable[[DictConfig], None]:
    """What Hydra calls without -m. The point is taken out of it: it announces errors of a job in words of its own."""

    def take(config: DictConfig) -> None:
        hydra_config = HydraConfig.get()
        choices = OmegaConf.to_container(hydra_config.runtime.choices)
        assert isinstance(choices, dict)
        overrides = [str(override) for override in hydra_config.overrides.task]
        session.single = overrides, config, {str(key): value for key, value in choices.items()}

    return take


def _refuse_sweeping(overrides: Sequence[str], choices: dict[str, Any]) -> None:
    """ValueError for what has an effect on a sweep alone."""
    if (sweeper := choices.get("hydra/sweeper")) != "grid":
        raise ValueError(f"hydra/sweeper={sweeper} has no effect on a single run. Search with -m, or drop it.")
    for key in (override.partition("=")[0] for override in overrides):
        if key in LINES:
            raise ValueError(f"{key} has no effect on a single run. Sweep with -m, or drop it.")


@contextlib.contextmanager
def _hydra_of_its_own() -> Iterator[None]:
    """Hydra composes in globals: a notebook's own are put back. In here it raises errors, which else it prints."""
    kept = {kind: Singleton._instances.pop(kind) for kind in (GlobalHydra, HydraConfig) if kind in Singleton._instances}
    os.environ["HYDRA_FULL_ERROR"] = "1"  # the session puts it back
    try:
        yield
    finally:
        for kind in (GlobalHydra, HydraConfig):
            Singleton._instances.pop(kind, None)
        Singleton._instances.update(kept)


# --- words


def quoted(words: Sequence[str]) -> list[str]:
    """`exclude="loss=grpo eta=2"` as Hydra wants a list of lines: `exclude=['loss=grpo eta=2']`. A `;` parts lines."""
    return [_quoted(word) for word in words]


def _quoted(word: str) -> str:
    key, _, value = word.partition("=")
    if key not in LINES or value in ("", "null") or value.startswith("["):
        return word
    lines = [line.strip().replace("\\", "\\\\").replace("'", "\\'") for line in value.split(";") if line.strip()]
    return f"{key}=[" + ",".join(f"'{line}'" for line in lines) + "]"


def deferred(words: Sequence[str], registry: Registry) -> list[str]:
    """In `-m loss=a,b loss.coef=0.1` the knob belongs to the points, as a sweep of one value.

    Hydra would first compose it with the default loss, which may not have it, nor bring its group (`presample.*`).
    """
    if not MULTIRUN & set(words):
        return list(words)
    values = dict(word.split("=", 1) for word in words if "=" in word)
    late = {key for key, value in values.items() if "," in value}
    if "loss" in late:
        groups = {key.split(".")[0] for key in values if "." in key}
        late |= {group for group in groups if registry.losses_with(group)}
    return [_of_the_points(word) if word.split(".")[0] in late else word for word in words]


def _of_the_points(word: str) -> str:
    key, is_given, value = word.partition("=")
    return f"{key}=choice({value})" if is_given and "." in key and "(" not in word else word


if __name__ == "__main__":
    sys.exit(main())
