from rlvr.config import memory, published

# What the safetensors of the hub hold, or in millions what the model's card says.
PARAMETERS = {
    "Qwen/Qwen2.5-7B": 7_615_616_512,
    "Qwen/Qwen2.5-Math-7B": 7_615_616_512,
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B": 7_615_616_512,
    "nvidia/OpenMath-Nemotron-1.5B": 1_543_714_304,
    "Vinnnf/Thinkless-1.5B-RL-DeepScaleR": 1777,
    "seeklhy/OmniSQL-32B": 32764,
    "Qwen/Qwen3-4B": 4022,
    "Qwen/Qwen3-4B-Base": 4022,
    "Qwen/Qwen3-8B": 8_190_735_360,
    "Qwen/Qwen3-1.7B-Base": 1721,
    "HuggingFaceTB/SmolLM2-360M-Instruct": 362,
    "meta-llama/Llama-3.1-8B-Instruct": 8_030_261_248,
}


def test_the_architectures_have_the_published_numbers_of_parameters() -> None:
    assert PARAMETERS.keys() == published.MODELS.keys()
    for name, parameters in PARAMETERS.items():
        model = memory.architecture_of_model({"path": name})
        assert model is not None, name
        assert parameters in (model.parameters, round(model.parameters / 1e6)), name


def test_another_name_is_not_known() -> None:
    assert memory.architecture_of_model({"path": "nobody/no-such-model"}) is None
    assert all("/" in name for name in published.MODELS)
