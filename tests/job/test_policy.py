"""A checkpoint becomes a model only together with the base policy that its run began with."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlvr.config.freeze import frozen_config
from rlvr.config.registry import Registry
from rlvr.job.policy import base_of
from rlvr.ledger import inputs, layout
from rlvr.model.tokenizer import word_tokenizer
from tests.analysis.ledger_factory import write_run
from tests.trainer.tiny import qwen2


def test_a_checkpoint_needs_the_model_as_its_run_read_it(tmp_path: Path) -> None:
    model = tmp_path / "model"
    qwen2().save_pretrained(model)
    word_tokenizer(["w", "end"], "end").save_pretrained(model)
    config = frozen_config(*Registry().compose(["task=coins", "model=hf", f"model.path={model}"]))
    run_dir = layout.run(tmp_path, write_run(tmp_path, config, {}))
    inputs.record(run_dir, config)
    checkpoint = layout.checkpoint(layout.checkpoints(run_dir), 2)
    assert base_of(checkpoint) == model
    qwen2(seed=1).save_pretrained(model)
    with pytest.raises(ValueError, match=f"model.path={model}: its content is not what run {run_dir.name} began with"):
        base_of(checkpoint)
