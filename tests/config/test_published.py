"""The sizes of models that recipes name give the published numbers of parameters."""

from __future__ import annotations

import pytest

from rlvr.config import memory, published


@pytest.mark.parametrize(
    ("name", "millions"),
    [
        ("Qwen/Qwen2.5-7B", 7616),
        ("Qwen/Qwen2.5-Math-7B", 7616),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", 7616),
        ("nvidia/OpenMath-Nemotron-1.5B", 1544),
        ("Vinnnf/Thinkless-1.5B-RL-DeepScaleR", 1777),
        ("seeklhy/OmniSQL-32B", 32764),
        ("Qwen/Qwen3-4B", 4022),
        ("Qwen/Qwen3-4B-Base", 4022),
        ("Qwen/Qwen3-8B", 8191),
        ("Qwen/Qwen3-1.7B-Base", 1721),
        ("HuggingFaceTB/SmolLM2-360M-Instruct", 362),
        ("meta-llama/Llama-3.1-8B-Instruct", 8030),
    ],
)
def test_the_architectures_have_the_published_numbers_of_parameters(name: str, millions: int) -> None:
    model = memory.architecture_of_model({"path": name})
    assert model is not None
    assert round(model.parameters / 1e6) == millions


def test_another_name_is_not_known() -> None:
    assert memory.architecture_of_model({"path": "nobody/no-such-model"}) is None
    assert all("/" in name for name in published.MODELS)
