"""Tokenizers: those of models, and word-level ones for tasks with a closed vocabulary."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers

from rlvr.model.hugging_face import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast
from rlvr.model.structure import num_embeddings

PAD_WORD = "PAD"


def load_tokenizer(directory: Path) -> PreTrainedTokenizerBase:
    """The tokenizer of a directory in Hugging Face format."""
    file = directory / "tokenizer.json"
    model_type = json.loads(file.read_bytes())["model"].get("type") if file.is_file() else None
    # For some architectures, Qwen2 among them, AutoTokenizer ignores the directory's tokenizer and silently builds the
    # architecture's own byte-pair tokenizer, which encodes our words as no tokens at all.
    loader = PreTrainedTokenizerFast if model_type == "WordLevel" else AutoTokenizer
    return loader.from_pretrained(directory, local_files_only=True, trust_remote_code=False)


def word_tokenizer(vocabulary: Sequence[str], end_word: str) -> PreTrainedTokenizerFast:
    """Tokenizer of a closed vocabulary: words joined by one space; a word's id is its place in the vocabulary.

    `end_word` is the end-of-sequence token; padding is the word PAD, added at the end if the vocabulary lacks it.
    Encode with `encode`, whose error names unknown words.
    """
    words = [*vocabulary, *([] if PAD_WORD in vocabulary else [PAD_WORD])]
    invalid = {word for word, number in Counter(words).items() if number > 1 or word.split() != [word]}
    if invalid:
        raise ValueError(f"A vocabulary is distinct words without spaces; got {sorted(invalid)}")
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
    """Token ids of a text, no special tokens added. Raises ValueError naming the words that the vocabulary lacks."""
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


def start_tokens(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The tokens that the tokenizer itself puts before a text: the begin token of Llama and Gemma, [gMASK]<sop> of GLM,
    mostly none.
    """
    if not tokenizer("")["input_ids"]:
        return []
    text, whole = tokenizer("a", add_special_tokens=False)["input_ids"], tokenizer("a")["input_ids"]
    for num_before in range(len(whole) - len(text) + 1) if text else ():
        if whole[num_before : num_before + len(text)] == text:
            return whole[:num_before]
    return []


def end_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, turn: int | None = None) -> tuple[int, ...]:
    """Ids that end a response: those of the tokenizer and of the generation config (chat models have several), and that
    of a turn, if prompts are turns. An id that the model or the tokenizer does not know, as in the generation config
    of a larger model, ends none.
    """
    generation = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    candidates: list[Any] = [tokenizer.eos_token_id, turn]
    candidates += generation if isinstance(generation, list | tuple) else [generation]
    ids = [int(index) for index in candidates if index is not None and 0 <= int(index) < num_embeddings(model)]
    ends = {index for index in ids if tokenizer.convert_ids_to_tokens(index) is not None}
    if not ends:
        raise ValueError(
            "Neither the tokenizer nor generation_config.json names an end token: responses could never finish. "
            "Set eos_token in tokenizer_config.json."
        )
    return tuple(sorted(ends))


def pad_token(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, ends: Sequence[int]) -> int:
    """The id that fills rows: the tokenizer's, unless it has none or one that was added without an embedding."""
    pad: Any = tokenizer.pad_token_id
    return pad if isinstance(pad, int) and pad < num_embeddings(model) else ends[0]
