"""The bandit study, really run: LAD recovers its target (LAD, arXiv:2602.20132, Eqs. 4 and 5, Figure 1)."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.real, pytest.mark.timeout(600)]


def test_the_learned_density_is_the_target_with_all_three_modes(tmp_path: Path) -> None:
    """Total variation below 0.1 for js and hd over three seeds."""
    command = [sys.executable, "-m", "rlvr.run", "study=bandit", "divergence=js,hd", "also=[]", "tracker=none"]
    env = {**os.environ, "RLVR_HOME": str(tmp_path)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=580, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    arm = np.arange(50)
    reward = sum(h * np.exp(-0.5 * ((arm - c) / w) ** 2) for c, w, h in ((10, 2, 0.9), (25, 3, 1.0), (40, 2, 0.8)))
    target = np.exp(reward / reward.max() / 0.25)  # P_A ∝ e^{A/η}, A = R, η = ¼
    target /= target.sum()
    finished = list((tmp_path / "runs").glob("*/run.json"))
    assert len(finished) == 6
    for path in finished:
        policy = pd.read_parquet(path.parent / "samples/policy-00000001.parquet")
        np.testing.assert_allclose(policy["probability_old"], 1 / 50, rtol=1e-5)  # it starts uniform
        learned = policy["probability"] / policy["probability_old"]
        learned = learned.to_numpy() / learned.sum()
        distance = 0.5 * np.abs(learned - target).sum()
        assert distance < 0.1, (json.loads(path.read_text())["name"], distance)
        for centre, width in ((10, 2), (25, 3), (40, 2)):
            near = np.abs(arm - centre) <= width
            assert learned[near].sum() > 0.9 * target[near].sum()
