"""`python -m rlvr.run`: compose, check, plan, launch. `-m` sweeps; `--help` explains the knobs. No torch here."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rlvr.config import schema
from rlvr.config.explain import explain
from rlvr.ledger.identity import LINES
from sweeps import launcher
from sweeps.plan import plan
from sweeps.search import sweeper

MULTIRUN = frozenset({"-m", "--multirun"})


@hydra.main(version_base="1.3", config_path=str(schema.CONF), config_name="run")
def _one(config: DictConfig) -> None:
    """A run without -m: its point is taken out of Hydra, which announces errors of a job in words of its own."""
    hydra_config = HydraConfig.get()
    overrides = [str(o) for o in hydra_config.overrides.task]
    choices = OmegaConf.to_container(hydra_config.runtime.choices)
    assert isinstance(choices, dict)
    _single.append((overrides, config, {str(k): v for k, v in choices.items()}))


def _check_sweeps_nothing(overrides: list[str], choices: dict[str, Any]) -> None:
    if (sweeper := choices.get("hydra/sweeper")) != "grid":
        raise ValueError(f"hydra/sweeper={sweeper} has no effect on a single run. Search with -m, or drop it.")
    for key in (o.partition("=")[0] for o in overrides):
        if key in LINES:
            raise ValueError(f"{key} has no effect on a single run. Sweep with -m, or drop it.")


_single: list[tuple[list[str], DictConfig, dict[str, Any]]] = []


def main() -> None:
    """Entry point. Exit codes: 0 all finished, 1 a run failed, 2 bad input, nothing launched, 130 interrupted."""
    debug = "--debug" in sys.argv or os.environ.get("HYDRA_FULL_ERROR") == "1"
    dry = "--dry-run" in sys.argv
    sys.argv = [a for a in sys.argv if a not in ("--debug", "--dry-run")]
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises instead of printing and exiting with 1
    launcher.typed[:] = sys.argv[1:]
    sys.argv[1:] = deferred([quoted(argument) for argument in sys.argv[1:]])
    sys.argv[1:] = sorted(sys.argv[1:], key=lambda argument: argument not in MULTIRUN)  # argparse wants it in front
    schema.register()
    launcher.register()
    sweeper.register()
    try:
        with launcher.dry_run() if dry else nullcontext():
            _one()
            for point in _single:  # a sweep of one
                _check_sweeps_nothing(point[0], point[2])
                launcher.launch(plan([point], command=launcher.command()))
    except (HydraException, OmegaConfBaseException, ValueError, OSError) as error:
        if debug:
            raise
        print(f"rlvr: {explain(error, sys.argv[1:])}", file=sys.stderr)
        sys.exit(2)
    sys.exit(max((outcome.exit_code for outcome in launcher.outcomes), default=0))


def quoted(argument: str) -> str:
    """`exclude="loss=grpo eta=2"` as Hydra wants a list of lines: `exclude=['loss=grpo eta=2']`. A `;` parts lines."""
    key, _, value = argument.partition("=")
    if key not in LINES or value in ("", "null") or value.startswith("["):
        return argument
    lines = [line.strip().replace("\\", "\\\\").replace("'", "\\'") for line in value.split(";") if line.strip()]
    return f"{key}=[" + ",".join(f"'{line}'" for line in lines) + "]"


def deferred(arguments: list[str]) -> list[str]:
    """In `-m loss=a,b loss.coef=0.1` the knob belongs to the points, as a sweep of one value.

    Hydra would first compose it with the default loss, which may not have it, nor bring its group (`presample.*`).
    """
    if not MULTIRUN & set(arguments):
        return arguments
    pairs = [(a, *a.split("=", 1)) for a in arguments if "=" in a]
    swept = {key for _, key, value in pairs if "," in value}
    if "loss" in swept:
        swept |= {root for _, key, _ in pairs if schema.losses_mentioning(f"- /{(root := key.split('.')[0])}@")}
    late = {a: f"{key}=choice({value})" for a, key, value in pairs if key.split(".")[0] in swept and "." in key}
    return [late.get(a, a) if "(" not in a else a for a in arguments]


if __name__ == "__main__":
    main()
