"""One-word tasks go through the training loop of every other task."""

from pathlib import Path

import pytest
import torch
from hydra import compose
from omegaconf import OmegaConf

from rlvr.config.freeze import frozen_config
from rlvr.job.loop import TrainingRun
from rlvr.model.tokenizer import encode
from tests.support.composing import composing

OVERRIDES = (
    *("task=classes", "task.classes=20", "task.contexts=4", "model=table", "loss=cross_entropy"),
    *("rollout.prompts=4", "rollout.samples=2", "rollout.dynamic_sampling=none", "trainer.updates=1"),
    *("trainer.clip_norm=0", "trainer.eps=1", "trainer.base_kl=false", "lr=2", "evaluation.samples=1"),
    "evaluation.k=[1]",
)


def test_one_step_of_cross_entropy_moves_each_context_towards_its_class_by_hand(tmp_path: Path) -> None:
    with composing():
        config = OmegaConf.create(frozen_config(compose("run", list(OVERRIDES)), {}))
    run = TrainingRun(config, tmp_path / "runs" / "x", None, None)
    try:
        run._step(1)
        table = dict(run.trainer.weights())["model.table.weight"].double()
        for index in range(4):
            problem = run.task.problem("train", index)
            row = table[encode(run.parts.tokenizer, problem.prompt)[0]]
            right = encode(run.parts.tokenizer, problem.answer)[0]
            wrong = [encode(run.parts.tokenizer, w)[0] for w in run.task.answers if w != problem.answer]
            # From 0, uniform over 20: the mean over 4 contexts of −log π has gradient (1/20 − 1)/4 = −0.2375 at the
            # right class and 1/80 at the others; AdamW's first step is −lr·g/(|g| + eps) with lr = 2, eps = 1.
            assert row[right].item() == pytest.approx(2 * 0.2375 / 1.2375, rel=1e-5)
            assert row[wrong].tolist() == pytest.approx([-2 * 0.0125 / 1.0125] * 19, rel=1e-5)
            assert torch.softmax(row, -1)[[right, *wrong]].sum().item() == pytest.approx(1)
    finally:
        run.close()
