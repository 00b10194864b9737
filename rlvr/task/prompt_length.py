"""Finds prompts that are too long, before a launch: with the model's own tokenizer, without torch."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, cast

from rlvr.records import NotAvailable, Problem
from rlvr.task.chat_template import ChatTemplate

log = logging.getLogger("rlvr")

CONTEXT = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")  # keys of config.json
LARGEST_OF = ("keep_window_size", "index_topk")  # knobs for the number of tokens that are attended to
LONG_ROPE = ("longrope", "su")  # names of the kind of rotary embedding
MOST_BEFORE = 8  # more tokens than any tokenizer puts before a text (`rlvr.model.tokenizer.start_tokens`)
LongPrompts = Literal["refuse", "drop"]


def file_of_model(path: str, name: str) -> Path | None:
    """One of the files of a model, in the directory `path` or, if that is a hub name, in the hub's cache; else None.

    path: a hub name may have a revision, `OWNER/MODEL@REVISION`. Nothing is downloaded.
    """
    local = Path(path).expanduser() / name
    if local.is_file():
        return local
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        repository, _, revision = path.partition("@")
        cached = try_to_load_from_cache(repository, name, revision=revision or None)
    except HFValidationError:  # the path does not have the form of a repository's name
        return None
    return Path(cached) if isinstance(cached, str) else None


def of_text(config: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a config.json, with what it says of the text model of several at the top level."""
    text: object = config.get("text_config")
    return {**config, **(cast("Mapping[str, Any]", text) if isinstance(text, Mapping) else {})}


def context_in(numbers: Mapping[str, Any]) -> int | None:
    """Context length in tokens by a model's config.json, at most its `limits`; None if it does not state it."""
    top = of_text(numbers)
    stated = [int(top[key]) for key in CONTEXT if isinstance(top.get(key), int)]
    return min([*stated[:1], *limits(numbers)], default=None)


def limits(numbers: Mapping[str, Any]) -> dict[int, str]:
    """{positions beyond which what a policy says of a sequence depends on others: why}, by a model's config.json.

    Beyond those of LongRoPE's short factors transformers takes the long ones for all sequences of a batch, and vLLM for
    all requests. Beyond the other two (Doge, DeepSeek-V3.2) attention goes to the largest of a batch's columns.
    Raises ValueError for rotary parameters that are no mapping.
    """
    top = of_text(numbers)
    rope: Any = top.get("rope_parameters") or top.get("rope_scaling") or {}
    if not isinstance(rope, Mapping):
        raise ValueError(
            f"the model's rope_parameters are {rope!r}: a mapping such as {{rope_type: default}} is expected"
        )
    rope = cast("Mapping[str, Any]", rope)
    is_long = rope.get("rope_type", rope.get("type")) in LONG_ROPE or "long_factor" in rope
    found: list[tuple[Any, str]] = [(top.get(name), f"{name}: beyond them its attention") for name in LARGEST_OF]
    if is_long:
        short = rope.get("original_max_position_embeddings") or top.get("original_max_position_embeddings")
        found.append((short, "LongRoPE: beyond them its rotary factors"))
    return {limit: why for limit, why in found if isinstance(limit, int) and limit}


@dataclass(frozen=True)
class Reader:
    """The model that reads prompts and appends up to `max_tokens` tokens to each.

    path: the model's directory or hub name. Nothing is known of the model where this is None or names a model that is
    not on this machine. chat: prompts are user turns of its chat template, after the system prompt if there is one.
    """

    path: str | None = None
    chat: bool | None = None
    system: str | None = None
    max_tokens: int = 0

    @cached_property
    def context(self) -> int | None:
        """The model's context length in tokens; None if it is not known."""
        file = self.file("config.json")
        return context_in(json.loads(file.read_bytes())) if file else None

    def room(self) -> int | None:
        """Number of tokens that the longest allowed prompt has; None if the model's context length is not known."""
        return None if self.context is None else self.context - self.max_tokens

    def text(self, prompt: str) -> str:
        """The text that the model reads for a prompt: with `chat`, the prompt in the model's chat template."""
        return prompt if self._template is None else self._template.prompt(prompt, self.system)

    def lengths(self, prompts: Sequence[str]) -> tuple[str, list[int]]:
        """(the tokens that the tokenizer puts before every text, as text; the number of tokens of each prompt with
        them, or of its words if the tokenizer is not here). With a chat template nothing is put before.

        Raises ValueError for prompts that the tokenizer cannot read.
        """
        file = self.file("tokenizer.json")
        if file is None or not prompts:
            return "", [len(prompt.split()) for prompt in prompts]
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(file))
        tokenizer.no_truncation()
        tokenizer.no_padding()  # a saved tokenizer has that of the last batch it was called for
        texts = [self.text(prompt) for prompt in prompts]
        try:
            encoded = tokenizer.encode_batch(texts, add_special_tokens=False)
            mask = [] if self.chat else tokenizer.encode(texts[0]).special_tokens_mask
        except Exception as error:  # noqa: BLE001 - the library raises nothing more precise
            raise ValueError(f"{self.path}: its tokenizer cannot read a prompt: {error}.") from None
        num_before = mask.index(0) if 0 in mask else len(mask)
        before = tokenizer.encode("").tokens[:num_before] if num_before else []
        return "".join(before), [num_before + len(encoding.ids) for encoding in encoded]

    @cached_property
    def _template(self) -> ChatTemplate | None:
        return ChatTemplate.of(self.file) if self.chat else None

    def file(self, name: str) -> Path | None:
        """Path of one of the model's files on this machine; None if it is not here."""
        return None if self.path is None else file_of_model(self.path, name)


@dataclass(frozen=True)
class PromptLimit:
    """The limits of prompts, and what happens to problems whose prompts are longer.

    max_prompt_tokens: limit of training prompts, in addition to the context of the reader. long_prompts: `refuse` the
    data, or `drop` these problems from the training data. Test prompts are never dropped: they are refused if no
    response fits behind them. A limit without the reader's tokenizer on this machine raises NotAvailable.
    """

    max_prompt_tokens: int | None = None
    long_prompts: LongPrompts = "refuse"
    reader: Reader = Reader()

    @classmethod
    def of(
        cls, max_prompt_tokens: int | None, long_prompts: LongPrompts, reader: Mapping[str, Any] | None, max_tokens: int
    ) -> PromptLimit:
        """reader: fields of `Reader`. max_tokens: the limit of a response, where `reader` has none."""
        fields: dict[str, Any] = dict(reader or {})
        fields["max_tokens"] = fields.get("max_tokens") or max_tokens
        return cls(max_prompt_tokens, long_prompts, Reader(**fields))

    def __post_init__(self) -> None:
        needs_tokenizer = self.max_prompt_tokens is not None or self.long_prompts == "drop"
        if needs_tokenizer and self.reader.file("tokenizer.json") is None:
            lacking = "a model of Hugging Face: pass model=hf model.path=..."
            if self.reader.path is not None:
                lacking = f"the tokenizer of {self.reader.path} on this machine: type hf download {self.reader.path}"
            raise NotAvailable(f"task.max_prompt_tokens and task.long_prompts=drop need {lacking}, or drop them.")

    def too_long(self, problems: Sequence[Problem]) -> frozenset[str]:
        """Ids of the training problems to drop. Raises ValueError for long prompts if `long_prompts` is "refuse"."""
        limits = [limit for limit in (self.max_prompt_tokens, self.reader.room()) if limit is not None]
        if not limits:
            return frozenset()
        long = self._longer(problems, min(limits))
        if not long:
            return frozenset()
        description = self._description(long, min(limits))
        if self.long_prompts == "refuse":
            raise ValueError(
                f"{description} of task.train. Pass task.long_prompts=drop to train without them, or "
                f"another limit: task.max_prompt_tokens, {self._response(long)}."
            )
        log.warning("%s of task.train: dropped; %d are left.", description, len(problems) - len(long))
        return frozenset(long)

    def check_test(self, problems: Sequence[Problem]) -> None:
        """Raises ValueError for prompts that exceed the model's context: no benchmark problem is dropped silently."""
        room = self.reader.room()
        if room is not None and (long := self._longer(problems, room)):
            raise ValueError(
                f"{self._description(long, room)} of task.test: the model reads no more. Shorten task.template, pass "
                f"{self._response(long)}, take another model, or leave these rows out of the file."
            )

    def _longer(self, problems: Sequence[Problem], limit: int) -> dict[str, int]:
        """{problem id: number of tokens} of the prompts above the limit; {} if there is no tokenizer here.

        A token has at least one byte, so only texts with more bytes than the limit are tokenized. Without a chat
        template the tokens count that the tokenizer puts before a text.
        """
        if self.reader.file("tokenizer.json") is None:
            return {}
        template_bytes = len(self.reader.text("").encode()) + MOST_BEFORE * (not self.reader.chat)
        candidates = [problem for problem in problems if template_bytes + len(problem.prompt.encode()) > limit]
        _, lengths = self.reader.lengths([problem.prompt for problem in candidates])
        counts = {problem.id: length for problem, length in zip(candidates, lengths, strict=True)}
        return {problem_id: num_tokens for problem_id, num_tokens in counts.items() if num_tokens > limit}

    def _description(self, long: dict[str, int], limit: int) -> str:
        """How many prompts are too long, with the first as an example: the beginning of a message."""
        first = next(iter(long))
        why = ""
        if limit == self.reader.room():
            why = f" (the model's context of {self.reader.context} without {self.reader.max_tokens} of a response)"
        more = f"with more than {max(limit, 0)} tokens{why}"
        return f"{len(long)} prompts {more}, such as problem {first} with {long[first]},"

    def _response(self, long: dict[str, int]) -> str:
        """The length of responses that leaves room for the longest of these prompts, as it is typed."""
        room = (self.reader.context or 0) - max(long.values())
        return f"rollout.max_tokens={room}" if room > 0 else "rollout.max_tokens"
