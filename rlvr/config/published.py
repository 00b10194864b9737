"""The sizes of models that recipes name, as they are on the hub: a dry run needs no download."""

from typing import Any

_COLUMNS = (
    *("model_type", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim"),
    *("intermediate_size", "vocab_size", "tie_word_embeddings"),
)
_7B = ("qwen2", 3584, 28, 28, 4, 128, 18944, 152064, False)
_1B5 = ("qwen2", 1536, 28, 12, 2, 128, 8960, 151936)
_QWEN3_4B = ("qwen3", 2560, 36, 32, 8, 128, 9728, 151936, True)
_ROWS = {
    "Qwen/Qwen2.5-7B": _7B,
    "Qwen/Qwen2.5-Math-7B": _7B,
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B": _7B,
    "nvidia/OpenMath-Nemotron-1.5B": (*_1B5, True),
    "Vinnnf/Thinkless-1.5B-RL-DeepScaleR": (*_1B5, False),
    "seeklhy/OmniSQL-32B": ("qwen2", 5120, 64, 40, 8, 128, 27648, 152064, False),
    "Qwen/Qwen3-1.7B-Base": ("qwen3", 2048, 28, 16, 8, 128, 6144, 151936, True),
    "Qwen/Qwen3-4B": _QWEN3_4B,
    "Qwen/Qwen3-4B-Base": _QWEN3_4B,
    "Qwen/Qwen3-8B": ("qwen3", 4096, 36, 32, 8, 128, 12288, 151936, False),
    "HuggingFaceTB/SmolLM2-360M-Instruct": ("llama", 960, 32, 15, 5, 64, 2560, 49152, True),
    "meta-llama/Llama-3.1-8B-Instruct": ("llama", 4096, 32, 32, 8, 128, 14336, 128256, False),
}
# Name on the hub -> what its config.json says of its size.
MODELS: dict[str, dict[str, Any]] = {name: dict(zip(_COLUMNS, row, strict=True)) for name, row in _ROWS.items()}
