"""Studies' files beside their evidence: a changed default, setting or claim cannot pass for the one that was run."""

from __future__ import annotations

from pathlib import Path

import pytest
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode

from analysis import findings, study_files
from analysis.frames import bundle
from analysis.frames.load import load
from rlvr.config.compose import Points
from sweeps.grid_sweep import GridSweep
from sweeps.growing import tuning
from sweeps.plan import plan
from sweeps.session import Session
from tests.analysis.ledger_factory import config, write_run, write_sweep
from tests.support.composed import REGISTRY

EVIDENCE = sorted((Path(__file__).parents[2] / "docs" / "evidence").glob("*.rlvr"))


@pytest.mark.usefixtures("composing")
@pytest.mark.parametrize("file", EVIDENCE, ids=lambda file: file.stem)
def test_the_runs_of_every_bundle_are_those_of_its_study_today_or_the_page_says_that_they_are_not(file: Path) -> None:
    frames = bundle.read(file)
    words = [f"study={frames.study}"]
    loader = GlobalHydra.instance().config_loader()
    assert isinstance(loader, ConfigLoaderImpl)
    master = loader.load_configuration("run", words, RunMode.MULTIRUN)
    tried = tuning.read(master.tune, []).values if master.tune else [()]  # of which each arm has its best
    grid = GridSweep(master, master.hydra.sweeper.params)
    with Session(registry=REGISTRY).entered():
        points = [grid.points([*words, *value]) for value in tried]
    every = [plan(Points(loader, master, of_value), command="").runs for of_value in points]
    planned = {run.group_id for runs in every for run in runs}
    strangers = set(frames.runs["group_id"]) - planned  # whatever their seeds, to which some were added
    assert not strangers or findings.ANOTHER_SETTING in findings.findings([file])


def test_changed_lists_settings_of_the_study_and_its_paper_that_no_run_has(tmp_path: Path) -> None:
    home, folder = tmp_path / "home", tmp_path / "sweeps"
    plan = [
        (write_run(home, config(loss, steps=40, lr=1e-4), {}, study="one"), loss, [f"loss={loss}"])
        for loss in ("grpo", "pacs")
    ]
    write_sweep(home, "s", plan, study="one")
    folder.mkdir()
    (tmp_path / "base.yaml").write_text("steps: 80\nlr: 0.0001\n", encoding="utf-8")
    (tmp_path / "paper.yaml").write_text("defaults: [/paper/base, _self_]\nunheard: 3\n", encoding="utf-8")
    text = "defaults: [{override /loss: lad}, {override /paper: paper}]\nloss: pacs\nlr: 2e-4\n"
    (folder / "one.yaml").write_text(text, encoding="utf-8")
    changed = study_files.changed(load(home, study="one"), folder, tmp_path)
    assert changed == {"steps": ("40", "80"), "lr": ("0.0001", "0.0002")}
