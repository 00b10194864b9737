import json
import shutil
from pathlib import Path

import pytest
import torch

from rlvr.config.freeze import frozen_config
from rlvr.config.registry import Registry
from rlvr.job.policy import base_of, export
from rlvr.ledger import inputs, layout
from rlvr.ledger.policies import weights_digest
from rlvr.model.tokenizer import word_tokenizer
from rlvr.trainer.checkpoint import write_policy
from tests.analysis.ledger_factory import write_run
from tests.trainer.tiny import qwen2


def test_a_checkpoint_needs_the_model_as_its_run_read_it(tmp_path: Path) -> None:
    model = tmp_path / "model"
    qwen2().save_pretrained(model)
    word_tokenizer(["w", "end"], "end").save_pretrained(model)
    data = tmp_path / "x.jsonl"
    data.write_text('{"problem": "1", "answer": "1"}\n')
    words = ["task=math", f"task.train={data}", f"task.test={data}", "model=hf", f"model.path={model}"]
    config = frozen_config(*Registry().compose(words))
    data.unlink()  # a purge of the disk: neither an export nor an evaluation needs it
    run_dir = layout.run(tmp_path, write_run(tmp_path, config, {}))
    inputs.record(run_dir, config)
    checkpoint = layout.checkpoint(layout.checkpoints(run_dir), 2)
    assert base_of(checkpoint) == model
    checkpoint.mkdir(parents=True, exist_ok=True)
    trained_on = {"lora": {"rank": 1, "alpha": 1.0, "base": weights_digest(model)}}
    (checkpoint / "trainer.json").write_text(json.dumps(trained_on))
    qwen2(seed=1).save_pretrained(model)
    with pytest.raises(ValueError, match="step-00000002 has adapters to other weights: those of the base policy are"):
        write_policy(tmp_path / "out", checkpoint, model, dtype=torch.float32)
    with pytest.raises(ValueError, match=f"model.path={model}: its content is not what run {run_dir.name} began with"):
        base_of(checkpoint)
    shutil.rmtree(model)
    with pytest.raises(ValueError, match=f"^model.path={model} is neither a directory"):
        export(checkpoint, tmp_path / "out", dtype="float32")
