"""Tensors on disk: one safetensors file for each rank that writes them, readable by any number of ranks.

The metadata of each `shard-<rank>.safetensors` has the offsets of its parts in the tensors, in the format of PyTorch's
`HuggingFaceStorageReader`, which reads them. PyTorch's own writers plan their work by exchanging pickles, which can run
code of their sender; here every rank computes what it has to write, without communication.
"""

import json
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from rlvr.ledger.files import sync

FIRST = "shard-0.safetensors"  # rank 0's file, which every directory has


class OwnParts(NamedTuple):
    """What one rank writes: its parts of the tensors, in main memory, and where each begins in its tensor."""

    tensors: dict[str, Tensor]
    offsets: dict[str, list[int]]


def own_parts(tensors: Mapping[str, Any], *, rank: int = 0, copy: bool = False) -> OwnParts:
    """This rank's parts of tensors with nested names. Tensors that are not sharded are written by rank 0, and of
    sharded ones with a copy on each node the copy of the first node.

    copy: the parts share no memory with the tensors, which may change before they are written.
    """
    parts = OwnParts({}, {})
    for name, tensor in _flat(tensors):
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} is not a tensor: a checkpoint keeps all else in trainer.json")
        offsets = [0] * tensor.ndim
        if isinstance(tensor, DTensor):
            if _is_further_copy(tensor):
                continue
            _, begin = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
            tensor, num_elements, offsets = tensor.to_local(), tensor.numel(), list(begin)
            if num_elements and not tensor.numel():  # the tensor has fewer rows than there are ranks
                continue
        elif rank:
            continue
        parts.tensors[name] = tensor.detach().to("cpu", copy=copy).contiguous()
        parts.offsets[name] = offsets
    return parts


def save(parts: OwnParts, directory: Path, *, rank: int = 0) -> None:
    places = {name: {"saved_offsets": offsets} for name, offsets in parts.offsets.items()}
    metadata = {"DCP_SHARDING_INFO": json.dumps(places), "DCP_VERSION": "1.0", "format": "pt"}
    file = directory / f"shard-{rank}.safetensors"
    save_file(parts.tensors, file, metadata)
    sync(file)  # must be called on the host that wrote it


def _is_further_copy(tensor: DTensor) -> bool:
    """Whether another rank, the first along a dimension of the mesh with copies, has the same part of the tensor."""
    coordinates = tensor.device_mesh.get_coordinate()
    assert coordinates is not None
    return any(place.is_replicate() and i for place, i in zip(tensor.placements, coordinates, strict=True))


def load(tensors: dict[str, Any], directory: Path) -> None:
    """Read this process's part of each of the tensors, in place.

    Raises SafetensorError for a damaged file, and RuntimeError for tensors that the files lack.
    """
    from torch.distributed.checkpoint.api import CheckpointException  # slow to import: not for a run's first attempt
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load as load_planned

    reader = HuggingFaceStorageReader(str(directory))
    reader.read_metadata()  # called for its error, which the planner would hide
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)  # no_dist is intended
        try:
            load_planned(tensors, storage_reader=reader, no_dist=True)
        except CheckpointException as error:
            reason, _ = next(iter(error.failures.values()))
            raise reason from error


def _flat(tensors: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(name, tensor) with nested names joined by dots, as PyTorch's planner joins them."""
    for name, value in tensors.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value
