"""Tensors on disk, a part by each rank, read back at any number of ranks: one safetensors file a rank.

PyTorch's distributed checkpoint plans who writes and who reads what. Its default files hold pickles, which run the code
of whoever wrote them; safetensors hold numbers. The metadata of each `shard-<rank>.safetensors` says where its parts
lie in the tensors, in the words of PyTorch's `HuggingFaceStorageReader`, which reads them. PyTorch's writer of such
files keeps a second copy of all of them in memory; this one writes from the tensors.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.state_dict_loader import load as load_planned
from torch.distributed.checkpoint.state_dict_saver import save as save_planned
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from rlvr.ledger.files import sync

FIRST = "shard-0.safetensors"  # of rank 0, which every directory has


class Writer(StorageWriter):
    """Writes into a directory, which is there and empty."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def reset(self, checkpoint_id: Any = None) -> None:
        """A writer writes once."""

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **options: Any) -> None:
        """Nothing is to be set up."""

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return [replace(plan, storage_data=f"shard-{rank}.safetensors") for rank, plan in enumerate(plans)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        parts: dict[str, Tensor] = {}
        places: dict[str, dict[str, list[int]]] = {}
        results: list[WriteResult] = []
        for item in plan.items:
            name, tensor = item.index.fqn, planner.resolve_data(item)
            if not isinstance(tensor, Tensor) or item.tensor_data is None:
                raise TypeError(f"{name} is no tensor: a checkpoint keeps other things in trainer.json")
            parts[name] = tensor.detach().cpu().contiguous()
            places[name] = {"saved_offsets": list(item.tensor_data.chunk.offsets)}
            results.append(WriteResult(item.index, tensor.nbytes, plan.storage_data))
        about = {"DCP_SHARDING_INFO": json.dumps(places), "DCP_VERSION": "1.0", "format": "pt"}
        file = self.directory / str(plan.storage_data)
        save_file(parts, file, about)
        sync(file)  # on the host that wrote it
        future: Future[list[WriteResult]] = Future()
        future.set_result(results)
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Each file says what it holds."""

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return isinstance(checkpoint_id, Path)


def save(tensors: dict[str, Any], directory: Path, *, group: dist.ProcessGroup | None = None, alone: bool) -> None:
    """Write (sharded) tensors by nested names. Called by all ranks of a group, or by one process alone."""
    save_planned(tensors, storage_writer=Writer(directory), process_group=group, no_dist=alone)


def load(tensors: dict[str, Any], directory: Path, *, alone: bool = False) -> None:
    """Read into tensors, in place; by all ranks, or by one process alone.

    Raises what is wrong with the files: SafetensorError, or RuntimeError for tensors that they lack.
    """
    reader = HuggingFaceStorageReader(str(directory))
    reader.read_metadata()  # here, for its error: the planner hides it
    try:
        load_planned(tensors, storage_reader=reader, no_dist=alone)
    except CheckpointException as error:
        reason, _ = next(iter(error.failures.values()))
        raise reason from error
