"""An evaluation on a real SLURM, over two of its nodes: the same samples as on this machine."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from rlvr.config.schema import CONF
from rlvr.ledger import layout
from rlvr.model.pretrain import pretrain
from rlvr.task.coins import Coins
from tests.slurm.local_cluster.settings import Settings
from tests.slurm.place import SlurmHome, causes, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.real, pytest.mark.timeout(1200)]


def knobs(file: str) -> dict[str, object]:
    return {k: v for k, v in yaml.safe_load((CONF / file).read_text()).items() if k != "_target_"}


def test_an_evaluation_on_two_nodes_draws_what_one_here_draws(cluster: Settings, tmp_path: Path) -> None:
    task = Coins(**{**knobs("task/coins.yaml"), "test_problems": 8})
    architecture = knobs("model/coins_tiny.yaml")
    model = pretrain(task, tmp_path / "stages", **{**architecture, "lr": 3e-3, "steps": 1})
    words = [str(model), "task=coins", "task.test_problems=8", "evaluation.samples=4", "tracker=none"]
    place, here = SlurmHome(tmp_path / "slurm", cluster), tmp_path / "here"
    on_two_nodes = ["cluster.nodes=2", "cluster.ranks=2", "cluster.report=false", "cluster.time_min=10"]
    code, output = place.python("-m", "rlvr.evaluate", *words, *on_two_nodes)
    assert code == 0, output
    assert "1 runs submitted to SLURM" in output
    environment = {**os.environ, "RLVR_HOME": str(here)}
    subprocess.run([sys.executable, "-m", "rlvr.evaluate", *words, "cluster=local"], env=environment, check=True)
    wait_for(lambda: not place.queue())
    (run_id,) = layout.run_ids(here)
    assert causes(layout.run(place.home, run_id)) == ["ok"]
    (nodes,) = place.home.glob("runs/submissions/*/task_0.nodes-0")
    assert {file.name for file in nodes.glob("1.*.json")} == {"1.0.json", "1.1.json"}
    both = [layout.evaluations(layout.run(home, run_id))[0].read_bytes() for home in (place.home, here)]
    assert both[0] == both[1]
