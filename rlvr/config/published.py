"""The sizes of models and of data sets that recipes name, as they are on the hub: a dry run needs no download."""

from __future__ import annotations

from typing import Any

_QWEN2 = {"model_type": "qwen2"}
_7B = {
    **_QWEN2,
    "hidden_size": 3584,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "intermediate_size": 18944,
    "vocab_size": 152064,
}
_1B5 = {
    **_QWEN2,
    "hidden_size": 1536,
    "num_hidden_layers": 28,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "intermediate_size": 8960,
    "vocab_size": 151936,
}
_QWEN3 = {"model_type": "qwen3", "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936}
_QWEN3_1B7 = {
    **_QWEN3,
    "hidden_size": 2048,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "intermediate_size": 6144,
    "tie_word_embeddings": True,
}
_QWEN3_4B = {
    **_QWEN3,
    "hidden_size": 2560,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "intermediate_size": 9728,
    "tie_word_embeddings": True,
}

MODELS: dict[str, dict[str, Any]] = {
    "Qwen/Qwen2.5-7B": _7B,
    "Qwen/Qwen2.5-Math-7B": _7B,
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B": _7B,
    "nvidia/OpenMath-Nemotron-1.5B": {**_1B5, "tie_word_embeddings": True},
    "Vinnnf/Thinkless-1.5B-RL-DeepScaleR": _1B5,
    "seeklhy/OmniSQL-32B": {
        **_QWEN2,
        "hidden_size": 5120,
        "num_hidden_layers": 64,
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
        "intermediate_size": 27648,
        "vocab_size": 152064,
    },
    "Qwen/Qwen3-1.7B-Base": _QWEN3_1B7,
    "Qwen/Qwen3-4B": _QWEN3_4B,
    "Qwen/Qwen3-4B-Base": _QWEN3_4B,
    "Qwen/Qwen3-8B": {
        **_QWEN3,
        "hidden_size": 4096,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "intermediate_size": 12288,
    },
    "HuggingFaceTB/SmolLM2-360M-Instruct": {
        "model_type": "llama",
        "hidden_size": 960,
        "num_hidden_layers": 32,
        "num_attention_heads": 15,
        "num_key_value_heads": 5,
        "intermediate_size": 2560,
        "vocab_size": 49152,
        "tie_word_embeddings": True,
    },
    "meta-llama/Llama-3.1-8B-Instruct": {
        "model_type": "llama",
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
        "vocab_size": 128256,
    },
}

# Problems of benchmarks, by their names in `task.test` of recipes and studies.
BENCHMARKS: dict[str, int] = {
    "aime24": 30,
    "aime25": 30,
    "amc": 83,  # AIMO's validation set, AMC 2022 and 2023
    "amc23": 40,
    "beyondaime": 100,
    "bird": 1534,  # its dev set
    "codeforces": 408,  # DeepCoder's test set
    "college_math": 2818,
    "gsm8k": 1319,
    "gsm8k_platinum": 1209,
    "humaneval_plus": 164,
    "livecodebench": 279,  # DeepCoder's test set
    "math500": 500,
    "minerva": 272,
    "olympiadbench": 675,
    "spider": 1034,  # its dev set
}
