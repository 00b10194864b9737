"""Tasks built with the knobs of their YAML files, as in a run."""

import json
from pathlib import Path
from typing import Any

from hydra.utils import get_class
from omegaconf import OmegaConf

CONF = Path(__file__).parents[2] / "conf" / "task"
DATA = Path(__file__).parents[3] / "shared" / "data"  # real benchmarks; may be missing
MADE: list[Any] = []  # all tasks that were made and are not yet closed


def make_task(name: str, **knobs: Any) -> Any:
    read = [OmegaConf.load(CONF / f"{name}.yaml")]
    read[:0] = [OmegaConf.load(CONF / f"{base}.yaml") for base in read[0].pop("defaults", []) if base != "_self_"]
    config = OmegaConf.to_container(OmegaConf.merge(*read, knobs), resolve=True)
    assert isinstance(config, dict)
    MADE.append(get_class(config.pop("_target_"))(**config))
    return MADE[-1]


def write_jsonl(path: Path, rows: list[Any]) -> str:
    """The path as text, of a file with a line of JSON per row."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)
