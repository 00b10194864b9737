"""Tensors on disk, a part by each rank, read back at any number of ranks: one safetensors file a rank.

The metadata of each `shard-<rank>.safetensors` says where its parts lie in the tensors, in the words of PyTorch's
`HuggingFaceStorageReader`, which reads them. PyTorch's own writers plan together by sending one another pickles, which
run the code of whoever sends or wrote them; here every rank knows what is its own, and nobody asks.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.checkpoint.state_dict_loader import load as load_planned
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from rlvr.ledger.files import sync

FIRST = "shard-0.safetensors"  # of rank 0, which every directory has


def save(tensors: Mapping[str, Any], directory: Path, *, rank: int = 0) -> None:
    """Write this rank's part of (sharded) tensors by nested names; the first rank's, what all of them have alike."""
    parts: dict[str, Tensor] = {}
    places: dict[str, dict[str, list[int]]] = {}
    for name, tensor in _flat(tensors):
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} is no tensor: a checkpoint keeps other things in trainer.json")
        offsets = [0] * tensor.ndim
        if isinstance(tensor, DTensor):
            _, begin = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
            tensor, whole, offsets = tensor.to_local(), tensor.numel(), list(begin)
            if whole and not tensor.numel():  # fewer rows than ranks
                continue
        elif rank:
            continue
        parts[name] = tensor.detach().cpu().contiguous()
        places[name] = {"saved_offsets": offsets}
    about = {"DCP_SHARDING_INFO": json.dumps(places), "DCP_VERSION": "1.0", "format": "pt"}
    file = directory / f"shard-{rank}.safetensors"
    save_file(parts, file, about)
    sync(file)  # on the host that wrote it


def load(tensors: dict[str, Any], directory: Path) -> None:
    """Read into tensors, in place: into this process's part of each.

    Raises what is wrong with the files: SafetensorError, or RuntimeError for tensors that they lack.
    """
    reader = HuggingFaceStorageReader(str(directory))
    reader.read_metadata()  # here, for its error: the planner hides it
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)  # that is meant
        try:
            load_planned(tensors, storage_reader=reader, no_dist=True)
        except CheckpointException as error:
            reason, _ = next(iter(error.failures.values()))
            raise reason from error


def _flat(tensors: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Names with dots, as PyTorch's planner has them."""
    for name, value in tensors.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value
