"""Tasks built with the knobs of their YAML files, as in a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hydra.utils import get_class
from omegaconf import OmegaConf

CONF = Path(__file__).parents[2] / "conf" / "task"
DATA = Path(__file__).parents[3] / "shared" / "data"  # real benchmarks; may be missing


def make_task(name: str, **knobs: Any) -> Any:
    config = OmegaConf.to_container(OmegaConf.merge(OmegaConf.load(CONF / f"{name}.yaml"), knobs), resolve=True)
    assert isinstance(config, dict)
    return get_class(config.pop("_target_"))(**config)
