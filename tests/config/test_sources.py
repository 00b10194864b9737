"""Hydra's files, each parsed once per process: the configs are those of Hydra's own reading."""

import os
from pathlib import Path

import pytest
from hydra._internal.core_plugins import file_config_source
from hydra._internal.sources_registry import SourcesRegistry
from omegaconf import OmegaConf

from rlvr.config.registry import Registry
from rlvr.config.schema import as_dict

WORDS = ["paper=lad_math", "study=baselines", "loss=ppo"]


def test_a_config_is_that_of_hydras_own_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    first, again = (Registry().compose(WORDS) for _ in range(2))
    monkeypatch.setitem(SourcesRegistry.instance().types, "file", file_config_source.FileConfigSource)
    monkeypatch.setattr("rlvr.config.sources.register", lambda: None)
    config, choices = Registry().compose(WORDS)
    for read, chosen in (first, again):
        assert (repr(as_dict(read)), chosen) == (repr(as_dict(config)), choices)


def test_a_file_is_parsed_once_until_it_is_written_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "trainer" / "mine.yaml"
    file.parent.mkdir()
    file.write_text("# @package trainer\nlr: 1e-5\n")
    parsed, load = list[str](), OmegaConf.load
    monkeypatch.setattr(OmegaConf, "load", lambda f: (parsed.append(getattr(f, "name", "")), load(f))[1])
    registry = Registry([str(tmp_path)])

    def lr() -> object:
        read = registry.loader.repository.load_config("trainer/mine")
        assert read is not None
        found = OmegaConf.select(read.config, "lr")
        OmegaConf.update(read.config, "lr", "changed by its reader")  # as Hydra changes what it loads
        return found

    assert [lr(), lr()] == [1e-5, 1e-5]
    file.write_text("# @package trainer\nlr: 3e-5\n")
    os.utime(file, ns=(1, 1))  # written within the resolution of the clock, or restored: another time all the same
    assert ([lr(), lr()], [Path(name).name for name in parsed]) == ([3e-5, 3e-5], ["mine.yaml"] * 2)
