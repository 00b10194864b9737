"""What names a policy on disk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rlvr.ledger import digests
from rlvr.ledger.policies import digest_of, is_checkpoint


def make_model(path: Path, weights: bytes = b"weights") -> Path:
    path.mkdir()
    (path / "config.json").write_text("{}")
    (path / "model.safetensors").write_bytes(weights)
    return path


def test_another_file_is_another_policy(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model")
    first = digest_of(model)
    assert digest_of(model) == first
    (model / "notes.md").write_text("of no effect")
    assert digest_of(model) == first
    (model / "tokenizer.json").write_text("{}")
    second = digest_of(model)
    os.utime(model / "model.safetensors", ns=(1, 1))
    assert len({first, second, digest_of(model)}) == 3


def test_a_sealed_directory_is_named_by_its_digests_wherever_it_lies(tmp_path: Path) -> None:
    one, other, third = (make_model(tmp_path / n, w) for n, w in (("a", b"x"), ("b", b"x"), ("c", b"y")))
    for path in (one, other, third):
        digests.seal(path)
    assert digest_of(one) == digest_of(other) != digest_of(third)


def test_what_is_no_policy_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="neither a checkpoint nor a model"):
        digest_of(tmp_path)
    (tmp_path / "trainer.json").write_text("{}")
    assert is_checkpoint(tmp_path)
    with pytest.raises(ValueError, match=r"digests.json is missing"):
        digest_of(tmp_path)
