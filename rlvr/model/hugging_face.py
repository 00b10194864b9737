"""What the house uses of transformers, imported without the optional packages that no policy needs.

Where they are installed, transformers imports scikit-learn, SciPy and accelerate together with its models, for assisted
generation, losses of object detection and models that are larger than memory. That took a third of the time in which a
run starts. transformers asks `_is_package_available` for each of its optional packages, and here the answer for these
is no. Only this file imports transformers, so that the answer is given before the first model is imported.
"""

import os
from importlib.util import find_spec

from transformers.utils import import_utils

ALL = "RLVR_ALL_PACKAGES"  # environment variable: "1" if a program (docs/programs.md) needs them
# TRL's trainers need accelerate, and a process may carry out their runs and ours.
OTHERS = {"scipy", "sklearn"} if find_spec("trl") else {"accelerate", "scipy", "sklearn"}
NOT_USED = frozenset[str]() if os.environ.get(ALL) == "1" else frozenset(OTHERS)

_is_installed = import_utils._is_package_available


def _is_available(package: str, return_version: bool = False) -> tuple[bool, str | None]:
    """Whether transformers may import an optional package, and its version."""
    return (False, "N/A") if package in NOT_USED else _is_installed(package, return_version)


import_utils._is_package_available = _is_available  # type: ignore[assignment] - it is annotated without its None
for _package in NOT_USED:  # answers are cached, and importing import_utils has asked already
    getattr(import_utils, f"is_{_package}_available").cache_clear()

from transformers import (  # noqa: E402 - after the answer above
    AttentionInterface,
    AttentionMaskInterface,
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoTokenizer,
    Cache,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)
from transformers.integrations.sdpa_attention import sdpa_attention_forward, use_gqa_in_sdpa  # noqa: E402
from transformers.masking_utils import sdpa_mask  # noqa: E402
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint  # noqa: E402
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast  # noqa: E402
from transformers.utils import GENERATION_CONFIG_NAME  # noqa: E402
from transformers.utils.logging import disable_progress_bar  # noqa: E402

__all__ = [
    "GENERATION_CONFIG_NAME",
    "AttentionInterface",
    "AttentionMaskInterface",
    "AutoConfig",
    "AutoModel",
    "AutoModelForCausalLM",
    "AutoTokenizer",
    "BaseModelOutputWithPast",
    "Cache",
    "CausalLMOutputWithPast",
    "GenerationConfig",
    "PreTrainedConfig",
    "PreTrainedModel",
    "PreTrainedTokenizerBase",
    "PreTrainedTokenizerFast",
    "disable_progress_bar",
    "load_gguf_checkpoint",
    "sdpa_attention_forward",
    "sdpa_mask",
    "use_gqa_in_sdpa",
]
