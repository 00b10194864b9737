"""Models and tokenizers in Hugging Face format: loading them, word-level tokenizers, the table policy."""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.utils.logging import disable_progress_bar

PAD_WORD = "PAD"

disable_progress_bar()  # of transformers: weights load and save in milliseconds, our own log says what is slow

# A next word that can never follow: exp(-1e4) is 0 in every float format, so its probability and the gradient of its
# logit are exactly 0 and training leaves it where it is. A finite number keeps 0 · logit = 0 in entropies.
IMPOSSIBLE = -1e4


def load(
    path: str | Path, *, dtype: str | torch.dtype, device: str | torch.device = "cpu"
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Model (evaluation mode) and tokenizer of a directory in Hugging Face format. Never asks the network."""
    directory = Path(path)
    _check(directory)
    model = load_model(directory, dtype=dtype)
    model.to(torch.device(device))  # type: ignore[arg-type] - decorated without its signature
    return model, load_tokenizer(directory)


def _check(directory: Path) -> None:
    if not (directory / "config.json").is_file():
        found = "a directory without config.json" if directory.is_dir() else "no directory"
        raise ValueError(
            f"{directory} is {found}. A model is a local directory with config.json, safetensors and tokenizer files; "
            f"for a model of the hub type model=hf model.path={directory}: it is downloaded first."
        )


def load_model(directory: Path, *, dtype: str | torch.dtype) -> PreTrainedModel:
    """Model (evaluation mode) of a directory in Hugging Face format, on the CPU."""
    return AutoModelForCausalLM.from_pretrained(
        directory, dtype=parse_dtype(dtype), attn_implementation="sdpa", local_files_only=True
    ).eval()


def skeleton(directory: Path) -> PreTrainedModel:
    """The model of a directory without its weights: parameters (float32) on the meta device, buffers as they are."""
    _check(directory)
    config = AutoConfig.from_pretrained(directory, local_files_only=True)
    with _weightless():
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="sdpa")
    model.tie_weights()
    if (directory / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(directory, local_files_only=True)
    return model.eval()


def miniature(config: PreTrainedConfig, *, layers: int = 2, words: int = 512) -> PreTrainedModel:
    """A model of the same architecture and widths with few layers and words and random weights: it computes what the
    large one computes, and shows at little cost whether that can be relied on.
    """
    small = copy.deepcopy(config)
    inner = small.get_text_config()
    for name, limit in (("num_hidden_layers", layers), ("vocab_size", words)):
        if getattr(inner, name, None) is not None:
            setattr(inner, name, min(limit, getattr(inner, name)))
    if getattr(inner, "layer_types", None):
        inner.layer_types = inner.layer_types[:layers]
    inner.pad_token_id = None  # an embedding refuses one beyond its words
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(small, dtype=torch.float32, attn_implementation="sdpa").eval()


@contextlib.contextmanager
def _weightless() -> Iterator[None]:
    """What is built inside holds no parameters, only their shapes. Buffers are made: no file holds them."""
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


def load_tokenizer(directory: Path) -> PreTrainedTokenizerBase:
    """The tokenizer of a directory in Hugging Face format."""
    file = directory / "tokenizer.json"
    kind = json.loads(file.read_bytes())["model"].get("type") if file.is_file() else None
    # For some architectures, Qwen2 among them, AutoTokenizer ignores what the directory says and silently builds the
    # architecture's own byte-pair tokenizer, which reads our words as nothing.
    chosen = PreTrainedTokenizerFast if kind == "WordLevel" else AutoTokenizer
    return chosen.from_pretrained(directory, local_files_only=True)


def parse_dtype(dtype: str | torch.dtype) -> torch.dtype:
    """`"bfloat16"` → `torch.bfloat16`; ValueError for anything that is not a floating-point format."""
    found = dtype if isinstance(dtype, torch.dtype) else getattr(torch, dtype, None)
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise ValueError(f"dtype={dtype} is not a floating-point format. Type float32, bfloat16 or float16.")
    return found


def word_tokenizer(vocabulary: Sequence[str], end_word: str) -> PreTrainedTokenizerFast:
    """Tokenizer of a closed vocabulary: words joined by one space; a word's id is its place in the vocabulary.

    `end_word` is the end-of-sequence token; padding is the word PAD, added at the end if the vocabulary lacks it.
    Encode with `encode`, which names unknown words.
    """
    words = [*vocabulary, *([] if PAD_WORD in vocabulary else [PAD_WORD])]
    odd = {word for word in words if words.count(word) > 1 or word.split() != [word]}
    if odd:
        raise ValueError(f"A vocabulary is distinct words without spaces; got {sorted(odd)}")
    if end_word not in vocabulary:
        raise ValueError(f"end_word={end_word!r} is not a word of the vocabulary {list(vocabulary)}")
    backend = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token=end_word, pad_token=PAD_WORD, clean_up_tokenization_spaces=False
    )
    # Special words are cut out of the text before it is split at spaces, even from inside another word.
    special = (end_word, PAD_WORD)
    hidden = [word for word in words if word not in special and any(inner in word for inner in special)]
    if hidden:
        raise ValueError(f"The words {hidden} contain a special word {special}: rename it or them.")
    return tokenizer


def encode(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Token ids of a text as it stands. ValueError naming the words that a word-level tokenizer does not know."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if isinstance(getattr(backend, "model", None), models.WordLevel):
        known = tokenizer.get_vocab()
        ids = [known.get(word) for word in text.split()]
        if None in ids:
            unknown = sorted({word for word in text.split() if word not in known})
            raise ValueError(
                f"Unknown words {unknown} in {text!r}. The model's vocabulary is {sorted(known)}. "
                "Was the base policy made for another task? Its stage depends on the task's vocabulary."
            )
        return [index for index in ids if index is not None]
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def end_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Ids that end a response: the tokenizer's and those of the generation config (chat models have several)."""
    generation = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    listed: list[Any] = [tokenizer.eos_token_id]
    listed += generation if isinstance(generation, list | tuple) else [generation]
    ends = {int(index) for index in listed if index is not None}
    if not ends:
        raise ValueError(
            "Neither the tokenizer nor generation_config.json names an end token: responses could never finish. "
            "Set eos_token in tokenizer_config.json."
        )
    return tuple(sorted(ends))


class TableConfig(PreTrainedConfig):
    """Configuration of `TablePolicy`: the number of words."""

    model_type = "rlvr_table"

    def __init__(self, vocab_size: int = 2, **kwargs: Any) -> None:
        kwargs.setdefault("tie_word_embeddings", False)
        super().__init__(**kwargs)
        self.vocab_size = vocab_size


class TablePreTrained(PreTrainedModel):
    config_class = TableConfig
    base_model_prefix = "model"
    _supports_sdpa = True

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Embedding):
            nn.init.zeros_(module.weight)


class TableModel(TablePreTrained):
    """The table as a decoder: the "hidden state" after a token is its row of logits, [V]."""

    def __init__(self, config: TableConfig) -> None:
        super().__init__(config)
        self.table = nn.Embedding(config.vocab_size, config.vocab_size)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.table

    def forward(self, input_ids: Tensor, **_: Any) -> BaseModelOutputWithPast:
        return BaseModelOutputWithPast(last_hidden_state=self.table(input_ids))  # type: ignore[arg-type]


class TablePolicy(TablePreTrained):
    """Next-token logits from a table [V, V] row of the last token alone: bandits and exact studies in the same loop.

    Starts at 0, the uniform policy. `get_decoder()` then `get_output_embeddings()` (the identity) gives the logits, as
    for a transformer. It has no key-value cache, masks and positions mean nothing to it.
    """

    def __init__(self, config: TableConfig) -> None:
        super().__init__(config)
        self.model = TableModel(config)
        self.lm_head = nn.Identity()
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.model.table

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def get_decoder(self) -> nn.Module:
        return self.model

    def forward(self, input_ids: Tensor, **_: Any) -> CausalLMOutputWithPast:
        hidden = self.model(input_ids=input_ids).last_hidden_state
        return CausalLMOutputWithPast(logits=self.lm_head(hidden))

    @torch.no_grad()
    def allow(self, following: dict[int, Sequence[int]]) -> None:
        """Uniform over `following[token]` after each of these tokens; all other words become impossible there."""
        for token, words in following.items():
            self.model.table.weight[token] = IMPOSSIBLE
            self.model.table.weight[token, torch.as_tensor(list(words))] = 0.0


AutoConfig.register(TableConfig.model_type, TableConfig, exist_ok=True)
AutoModel.register(TableConfig, TableModel, exist_ok=True)
AutoModelForCausalLM.register(TableConfig, TablePolicy, exist_ok=True)
