import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch.utils._pytree import tree_leaves, tree_map

from rlvr.trainer.tensor_files import FIRST, load, own_parts, save

TENSORS = {
    "weights": {"a": torch.tensor([[1.5, -2.0], [3.25, float("inf")]]), "half": torch.tensor([1.0, 2.0]).bfloat16()},
    "random": {"cpu": torch.arange(7, dtype=torch.uint8)},
    "turned": torch.arange(6.0).reshape(2, 3).T,
    "flags": torch.tensor([True, False, True]),
    "count": torch.tensor(2**40),
    "nothing": torch.zeros(0, 3),
}


def written(directory: Path) -> Path:
    directory.mkdir()
    save(own_parts(TENSORS), directory)
    return directory


def read(directory: Path) -> dict[str, Any]:
    into = tree_map(torch.zeros_like, TENSORS)
    load(into, directory)
    return into


def test_what_was_written_is_read_bit_for_bit(tmp_path: Path) -> None:
    actual, expected = (tree_leaves(each) for each in (read(written(tmp_path / "a")), TENSORS))
    assert all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))


def test_the_file_is_plain_safetensors_and_no_pickle(tmp_path: Path) -> None:
    (file,) = written(tmp_path / "a").iterdir()
    assert file.name == FIRST
    assert torch.equal(load_file(file)["weights.a"], TENSORS["weights"]["a"])
    with pytest.raises((pickle.UnpicklingError, ValueError, KeyError, IndexError, EOFError, ImportError)):
        pickle.loads(file.read_bytes())  # noqa: S301 - our own bytes


def test_a_file_that_was_cut_is_no_checkpoint(tmp_path: Path) -> None:
    file = written(tmp_path / "a") / FIRST
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(SafetensorError):
        read(file.parent)


def test_a_tensor_that_is_missing_is_named(tmp_path: Path) -> None:
    directory = written(tmp_path / "a")
    with pytest.raises(RuntimeError, match=r"Missing key in checkpoint state_dict: more\.b"):
        load({"more": {"b": torch.zeros(2)}}, directory)
