"""Base policies from a directory or from the hub."""

from pathlib import Path

import pytest

from rlvr.model.hub import hub
from rlvr.model.pretrain import pretrain
from tests.model.test_pretrain import KNOBS
from tests.support.scripted import Echo


def test_a_local_directory_is_taken_as_it_is_and_a_chat_model_needs_a_chat_template(tmp_path: Path) -> None:
    assert hub(Echo(length=3), tmp_path, path=str(tmp_path), chat=False) == tmp_path
    path = pretrain(Echo(length=3), tmp_path, **KNOBS)
    with pytest.raises(ValueError, match=r"no chat template. Drop model.chat=true"):
        hub(Echo(length=3), tmp_path, path=str(path), chat=True)


def test_quantised_weights_are_refused_after_a_download_too(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"quantization_config": {"quant_method": "awq"}}')
    with pytest.raises(ValueError, match=r"quant_method=awq.*Take the unquantised weights"):
        hub(Echo(length=3), tmp_path, path=str(tmp_path), chat=False)


def test_a_model_that_cannot_be_obtained_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # what HF_HUB_OFFLINE=1 sets
    for path, message in (
        ("/no/such/directory", "neither a directory or .gguf file on this machine nor a hub name"),
        ("nobody/no-such-model", r"the hub did not give it.*hf download nobody/no-such-model"),
    ):
        with pytest.raises(ValueError, match=message):
            hub(Echo(length=3), tmp_path, path=path, chat=False)
