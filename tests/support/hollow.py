"""Models of any size that take no disk space: sparse files with the right names and shapes of tensors."""

import json
import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers


def write_hollow_model(directory: Path, config: Mapping[str, Any]) -> None:
    """Write a Llama-like model with tied embeddings in Hugging Face format. config: content of config.json."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    keys = hidden // config["num_attention_heads"] * config["num_key_value_heads"]
    layer = {
        **{f"self_attn.{name}_proj": [hidden, hidden] for name in "qo"},
        **{f"self_attn.{name}_proj": [keys, hidden] for name in "kv"},
        **{f"mlp.{name}_proj": [inner, hidden] for name in ("gate", "up")},
        "mlp.down_proj": [hidden, inner],
    }
    shapes = {"model.embed_tokens.weight": [config["vocab_size"], hidden], "model.norm.weight": [hidden]}
    for index in range(config["num_hidden_layers"]):
        shapes |= {f"model.layers.{index}.{name}.weight": shape for name, shape in layer.items()}
    header, end = {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    with (directory / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)
    (directory / "config.json").write_text(json.dumps(dict(config)))
    bytes_of_text = Tokenizer(models.BPE({byte: i for i, byte in enumerate(pre_tokenizers.ByteLevel.alphabet())}, []))
    bytes_of_text.pre_tokenizer = pre_tokenizers.ByteLevel()
    bytes_of_text.save(str(directory / "tokenizer.json"))
