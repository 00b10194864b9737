import importlib
import inspect
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from rlvr.objective.batch import declared_needs

CONF = Path(__file__).parents[2] / "conf"
FILES = sorted(path for group in ("loss", "divergence", "advantage") for path in (CONF / group).glob("*.yaml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_yaml_gives_every_knob_of_its_function_and_no_other(path: Path) -> None:
    assert path.read_text().startswith("# ")
    content = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    assert isinstance(content, dict)
    content = content.get("loss", content)  # one that sets other groups' knobs too
    module, name = content["_target_"].rsplit(".", 1)
    function = getattr(importlib.import_module(module), name)
    parameters = inspect.signature(function).parameters.values()
    knobs = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY} - declared_needs(function)
    # None is the value of a knob that came later, in configs of runs that lack it.
    assert all(p.default in (p.empty, None) for p in parameters), "defaults live in YAML alone"
    assert set(content) - {"_target_", "_partial_", "defaults"} == knobs
    assert content["_partial_"] is True


def test_the_page_of_objectives_names_every_loss() -> None:
    page = (CONF.parent / "docs/objectives.md").read_text()
    assert [path.stem for path in FILES if path.parent.name == "loss" and f"`{path.stem}`" not in page] == []
