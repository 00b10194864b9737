"""Converts the model of a GGUF file to a directory in Hugging Face format."""

import functools
from pathlib import Path
from typing import Any

from rlvr.ledger import gguf
from rlvr.ledger.stages import stage


def converted(file: Path, store: Path) -> Path:
    """The directory of a file's model in bfloat16, built once: quantised weights are the values that they stand for.

    Raises ValueError for a file that cannot be converted rightly.
    """
    return stage(store, gguf.identity(file), functools.partial(_convert, file))


def _convert(file: Path, into: Path) -> dict[str, Any]:
    if fault := gguf.fault_of(file):
        raise ValueError(f"model.path={file}: {fault}")
    import torch
    from tokenizers import pre_tokenizers

    from rlvr.model.hugging_face import AutoConfig, AutoModelForCausalLM, AutoTokenizer, load_gguf_checkpoint

    tokenizer: Any = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    way = gguf.SPLITTING[gguf.field(file, "tokenizer.ggml.pre")]
    split = [getattr(pre_tokenizers, name)(**options) for name, options in way]
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(split)
    config: Any = AutoConfig.from_pretrained(file.parent, gguf_file=file.name)
    tokenizer.model_max_length, config.pad_token_id = config.max_position_embeddings, tokenizer.pad_token_id
    tokenizer.save_pretrained(into)
    model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    weights = load_gguf_checkpoint(file, return_tensors=True, model_to_load=model)["tensors"]
    missing, unknown = model.load_state_dict(weights, strict=False)
    if unknown or set(missing) - set(model._tied_weights_keys or ()):
        raise ValueError(f"model.path={file}: its weights are not those of {config.model_type}: {missing} {unknown}")
    model.tie_weights()
    model.to(torch.bfloat16).save_pretrained(into)
    return {"file": file.name, "parameters": model.num_parameters()}
