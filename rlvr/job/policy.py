"""The policy of a checkpoint as a directory in Hugging Face format, for an export or for an evaluation."""

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from rlvr.config import schema, targets
from rlvr.config.checks import component_error
from rlvr.ledger import digests, inputs, layout
from rlvr.ledger.policies import digest_of
from rlvr.ledger.runs import check_owner, read_config, read_info
from rlvr.ledger.stages import base_policy as recorded_base
from rlvr.ledger.stages import policy_identity, stage
from rlvr.model.load import parse_dtype
from rlvr.trainer import checkpoint as checkpoints


def export(checkpoint: Path, directory: Path, *, dtype: str) -> None:
    """Write the policy of a checkpoint to a new directory.

    Raises ValueError if the directory exists and is not empty, if the checkpoint is damaged or its base gone.
    """
    if directory.exists() and any(directory.iterdir()):
        raise ValueError(f"{directory} exists already and is not empty. Pass a directory that does not exist yet.")
    try:
        base = base_of(checkpoint)
    except InstantiationException as error:  # a base that is gone
        raise component_error(error) from None
    chat = bool(read_config(layout.run_of(checkpoint))["model"].get("chat"))
    checkpoints.export(directory, checkpoint, base, dtype=parse_dtype(dtype), chat=chat)


def base_of(checkpoint: Path) -> Path:
    """The directory of the policy that a checkpoint's run started from; built again, with the task, if it is missing.

    Raises ValueError if the model's files have changed since: adapters would be added to other weights, and weights be
    given another tokenizer, without a sign of it.
    """
    run_dir = layout.run_of(checkpoint)
    schema.register()
    check_owner(run_dir)
    plain = read_config(run_dir)
    if plain.get("program"):
        raise ValueError(f"{checkpoint} is the state of another program than our trainer: only that knows its policy.")
    if changed := inputs.changed(run_dir, {"model": plain["model"]}):
        raise ValueError(f"{changed}: its content is not what run {run_dir.name} began with. Put it back.")
    targets.make_importable(read_info(run_dir).import_paths, plain)
    config, store = OmegaConf.create(plain), layout.stages_beside(run_dir)
    if schema.is_pretrained(config.model):  # which needs no task, and so none of its data
        return instantiate(config.model, None, store, _convert_="all")
    stage_dir = recorded_base(run_dir, "")
    return stage_dir if stage_dir is not None and not digests.fault_of(stage_dir) else base_policy(config, store)


def base_policy(config: DictConfig, store: Path) -> Path:
    """The directory of a run's base policy; built if it is a stage that is missing."""
    with contextlib.closing(instantiate(config.task, _convert_="all")) as task:
        return instantiate(config.model, task, store, _convert_="all")


def evaluated(policy: Mapping[str, Any], store: Path, *, dtype: str) -> Path:
    """The directory that an evaluation samples from: `policy.path`, or for a checkpoint a stage, which is built once.

    Raises ValueError if the policy's files have changed since the evaluation was launched.
    """
    path = Path(policy["path"])
    if digest_of(path) != policy["digest"]:
        raise ValueError(f"{path} is not what it was when this evaluation was launched. Launch it again.")
    if not layout.trainer_state(path).is_file():
        return path

    def build(directory: Path) -> Mapping[str, Any]:
        if fault := digests.fault_of(path):
            raise ValueError(f"{path} cannot be used: {fault}. Evaluate another checkpoint of the run.")
        checkpoints.write_policy(directory, path, base_of(path), dtype=parse_dtype(dtype))
        return {"checkpoint": str(path)}

    return stage(store, policy_identity(policy["digest"], dtype), build)
