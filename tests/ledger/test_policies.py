import os
from pathlib import Path

import pytest

from rlvr.ledger import digests
from rlvr.ledger.policies import digest_of, downloaded, is_checkpoint
from tests.support.hub_cache import cached


def make_model(path: Path, weights: bytes = b"weights") -> Path:
    path.mkdir()
    (path / "config.json").write_text("{}")
    (path / "model.safetensors").write_bytes(weights)
    return path


def test_a_changed_file_changes_the_digest(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model")
    first = digest_of(model)
    assert digest_of(model) == first
    (model / "notes.md").write_text("of no effect")
    assert digest_of(model) == first
    (model / "tokenizer.json").write_text("{}")
    second = digest_of(model)
    os.utime(model / "model.safetensors", ns=(1, 1))
    assert len({first, second, digest_of(model)}) == 3


def test_the_digest_of_a_sealed_directory_does_not_depend_on_its_place(tmp_path: Path) -> None:
    one, other, third = (make_model(tmp_path / n, w) for n, w in (("a", b"x"), ("b", b"x"), ("c", b"y")))
    for path in (one, other, third):
        digests.write_digests(path)
    assert digest_of(one) == digest_of(other) != digest_of(third)


def test_changes_to_a_sealed_model_change_the_digest(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model")
    digests.write_digests(model)
    before = digest_of(model)
    (model / "chat_template.jinja").write_text("{{ messages }}")  # an added file, which changes prompts
    with_template = digest_of(model)
    (model / "chat_template.jinja").unlink()
    assert digest_of(model) == before
    (model / "model.safetensors").write_bytes(b"tuned")
    assert len({before, with_template, digest_of(model)}) == 3


def test_a_model_of_the_hub_is_found_cached_named_by_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, other = make_model(tmp_path / "model"), make_model(tmp_path / "other", b"others")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    policy_digests = []
    for number, content in enumerate((model, model, other)):
        home = tmp_path / str(number)
        snapshot = cached(home, "tiny/model", content)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(home / "hub"))
        assert downloaded("tiny/model") == snapshot
        policy_digests.append(digest_of(snapshot))
    assert policy_digests[0] == policy_digests[1] != policy_digests[2]  # the first two: two caches of one model
    with pytest.raises(ValueError, match=r"tiny/none is no directory here, and the hub did not give it"):
        downloaded("tiny/none")


def test_a_directory_without_a_policy_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="step-00000020 is gone. A run in training keeps its newest checkpoints only"):
        digest_of(tmp_path / "step-00000020")
    with pytest.raises(ValueError, match="neither a checkpoint nor a model"):
        digest_of(tmp_path)
    (tmp_path / "trainer.json").write_text("{}")
    assert is_checkpoint(tmp_path)
    with pytest.raises(ValueError, match=r"digests.json is missing"):
        digest_of(tmp_path)
