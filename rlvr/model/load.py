"""Models in Hugging Face format: loading them whole, without weights (skeletons), or a small copy."""

import contextlib
import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rlvr.model import table_policy
from rlvr.model.hugging_face import (
    AutoConfig,
    AutoModelForCausalLM,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    disable_progress_bar,
)
from rlvr.model.tokenizer import load_tokenizer

FEW_LAYERS, FEW_WORDS = 2, 512  # of a small copy
SHOWN = 3  # names of weights in a message


def load(
    path: str | Path, *, dtype: str | torch.dtype, device: str | torch.device = "cpu"
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Model (evaluation mode) and tokenizer of a directory in Hugging Face format. Never uses the network."""
    directory = Path(path)
    _require_model(directory)
    model = load_model(directory, dtype=dtype)
    model.to(torch.device(device))  # type: ignore[arg-type] - decorated without its signature
    return model, load_tokenizer(directory)


def _require_model(directory: Path) -> None:
    if not (directory / "config.json").is_file():
        kind = "a directory without config.json" if directory.is_dir() else "no directory"
        raise ValueError(
            f"{directory} is {kind}. A model is a local directory with config.json, safetensors and tokenizer files; "
            f"for a model of the hub type model=hf model.path={directory}: it is downloaded first."
        )


def load_model(directory: Path, *, dtype: str | torch.dtype) -> PreTrainedModel:
    """Model (evaluation mode) of a directory in Hugging Face format, on the CPU.

    Raises ValueError if its files lack a weight, which transformers would fill with random numbers.
    """
    table_policy.register()
    disable_progress_bar()  # loading is fast, and our own log reports what is slow
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        directory,
        dtype=parse_dtype(dtype),
        attn_implementation="sdpa",
        local_files_only=True,
        trust_remote_code=False,
        use_safetensors=True,
        output_loading_info=True,
    )
    model, found = loaded  # typed as if it were the model alone
    if missing := sorted(found["missing_keys"]):
        more = f" and {len(missing) - SHOWN} more" if len(missing) > SHOWN else ""
        unknown = f" It has {', '.join(some)}, …" if (some := sorted(found["unexpected_keys"])[:SHOWN]) else ""
        raise ValueError(
            f"the weights of {directory} lack {', '.join(missing[:SHOWN])}{more}, which its config.json requires."
            f"{unknown} Save the model again with save_pretrained."
        )
    return _ready(model)


def _ready(model: PreTrainedModel) -> PreTrainedModel:
    """In evaluation mode, with the decoder that transformers misses where a prefix names none (Llama 4)."""
    if model.get_decoder() is model and isinstance(getattr(model, "model", None), PreTrainedModel):
        model.base_model_prefix = "model"
    return model.eval()


def skeleton(directory: Path) -> PreTrainedModel:
    """The model of a directory without its weights: parameters (float32) on the meta device, buffers as they are."""
    _require_model(directory)
    table_policy.register()
    config = AutoConfig.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
    with _weightless():
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="sdpa")
    model.tie_weights()
    if (directory / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(directory, local_files_only=True)
    return _ready(model)


def small_copy(config: PreTrainedConfig) -> PreTrainedModel:
    """A model of the same architecture and widths with few layers and words: a trial of what the large one can do."""
    small = copy.deepcopy(config)
    text_config = small.get_text_config()
    for name, limit in (("num_hidden_layers", FEW_LAYERS), ("vocab_size", FEW_WORDS)):
        if getattr(text_config, name, None) is not None:
            setattr(text_config, name, min(limit, getattr(text_config, name)))
    if getattr(text_config, "layer_types", None):
        text_config.layer_types = text_config.layer_types[:FEW_LAYERS]
    text_config.pad_token_id = None  # an embedding rejects a padding token beyond its words
    table_policy.register()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return _ready(AutoModelForCausalLM.from_config(small, dtype=torch.float32, attn_implementation="sdpa"))


@contextlib.contextmanager
def _weightless() -> Iterator[None]:
    """Context in which modules get parameters without data (meta device), but buffers: not all are in the files."""
    register = nn.Module.register_parameter

    def on_meta(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None and not parameter.is_meta:
            parameter = nn.Parameter(parameter.to("meta"), requires_grad=parameter.requires_grad)
        register(module, name, parameter)

    nn.Module.register_parameter = on_meta  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


def parse_dtype(dtype: str | torch.dtype) -> torch.dtype:
    """`"bfloat16"` → `torch.bfloat16`; ValueError for anything that is not a floating-point format."""
    parsed = dtype if isinstance(dtype, torch.dtype) else getattr(torch, dtype, None)
    if not isinstance(parsed, torch.dtype) or not parsed.is_floating_point:
        raise ValueError(f"dtype={dtype} is not a floating-point format. Type float32, bfloat16 or float16.")
    return parsed
