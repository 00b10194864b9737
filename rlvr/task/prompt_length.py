"""Prompts that are too long, found before anything is launched: with the model's own tokenizer, without torch."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

from rlvr.records import NotAtHand, Problem
from rlvr.task.chat_template import ChatTemplate

log = logging.getLogger("rlvr")

LongPrompts = Literal["refuse", "drop"]


@dataclass(frozen=True)
class Reader:
    """The model that reads prompts, and writes up to `max_tokens` behind them.

    path: its directory or hub name; None, or a model that is not on this machine: nothing is known. chat: prompts are
    turns of its chat template, after a system prompt where there is one.
    """

    path: str | None = None
    chat: bool | None = None
    system: str | None = None
    max_tokens: int = 0

    def room(self) -> int | None:
        """Tokens of the longest prompt; None: not known."""
        file = self.file("config.json")
        context = json.loads(file.read_bytes()).get("max_position_embeddings") if file else None
        return context - self.max_tokens if isinstance(context, int) else None

    def text(self, prompt: str) -> str:
        """What it reads of a prompt."""
        return prompt if self._template is None else self._template.prompt(prompt, self.system)

    @cached_property
    def _template(self) -> ChatTemplate | None:
        return ChatTemplate.of(self.file) if self.chat else None

    def file(self, name: str) -> Path | None:
        """One of its files, in its directory or where the hub keeps what was downloaded. Nothing is downloaded."""
        if self.path is None:
            return None
        here = Path(self.path).expanduser() / name
        if here.is_file():
            return here
        from huggingface_hub import try_to_load_from_cache
        from huggingface_hub.errors import HFValidationError

        try:
            cached = try_to_load_from_cache(self.path, name)
        except HFValidationError:  # a path of no repository's form
            return None
        return Path(cached) if isinstance(cached, str) else None


@dataclass(frozen=True)
class PromptLimit:
    """What becomes of long prompts.

    max_prompt_tokens: limit of training prompts, beside the context of the reader. long_prompts: `refuse` the data, or
    `drop` these problems from the training data. Test prompts are never dropped, and refused where no response fits
    behind them. To ask for a limit where nothing is known of the reader is an error.
    """

    max_prompt_tokens: int | None = None
    long_prompts: LongPrompts = "refuse"
    reader: Reader = Reader()

    @classmethod
    def of(
        cls, max_prompt_tokens: int | None, long_prompts: LongPrompts, reader: Mapping[str, Any] | None, max_tokens: int
    ) -> PromptLimit:
        """max_tokens: of a response, if the reader does not say."""
        said: dict[str, Any] = dict(reader or {})
        said["max_tokens"] = said.get("max_tokens") or max_tokens
        return cls(max_prompt_tokens, long_prompts, Reader(**said))

    def __post_init__(self) -> None:
        if self.max_prompt_tokens is not None and self.max_prompt_tokens < 1:
            raise ValueError(f"task.max_prompt_tokens={self.max_prompt_tokens} must be 1 or more, or null.")
        if self.long_prompts not in get_args(LongPrompts):
            raise ValueError(f"task.long_prompts={self.long_prompts} must be {' or '.join(get_args(LongPrompts))}.")
        asked = self.max_prompt_tokens is not None or self.long_prompts == "drop"
        if asked and self.reader.file("tokenizer.json") is None:
            lacking = "a model of Hugging Face: pass model=hf model.path=..."
            if self.reader.path is not None:
                lacking = f"the tokenizer of {self.reader.path} on this machine: type hf download {self.reader.path}"
            raise NotAtHand(f"task.max_prompt_tokens and task.long_prompts=drop need {lacking}, or drop them.")

    def too_long(self, problems: Sequence[Problem]) -> frozenset[str]:
        """Ids of the training problems to be dropped. ValueError for long prompts where they are to be refused."""
        limits = [limit for limit in (self.max_prompt_tokens, self.reader.room()) if limit is not None]
        long = self._longer(problems, min(limits)) if limits else {}
        if long and self.long_prompts == "refuse":
            raise ValueError(
                f"{self._told(long, min(limits))} of task.train. Pass task.long_prompts=drop to train without them, or "
                "another limit: task.max_prompt_tokens, rollout.max_tokens."
            )
        if long:
            left = len(problems) - len(long)
            log.warning("%s of task.train: dropped; %d are left.", self._told(long, min(limits)), left)
        return frozenset(long)

    def check_test(self, problems: Sequence[Problem]) -> None:
        """ValueError for prompts that the model cannot read: a benchmark loses no problem in silence."""
        room = self.reader.room()
        if room is not None and (long := self._longer(problems, room)):
            raise ValueError(
                f"{self._told(long, room)} of task.test: the model reads no more. Shorten task.template or "
                "rollout.max_tokens, take another model, or leave these rows out of the file."
            )

    def _longer(self, problems: Sequence[Problem], limit: int) -> dict[str, int]:
        """{problem id: tokens} of the prompts above the limit. A token has at least one byte: short texts have few."""
        file = self.reader.file("tokenizer.json")
        if file is None:
            return {}
        around = len(self.reader.text("").encode())
        doubtful = [problem for problem in problems if around + len(problem.prompt.encode()) > limit]
        if not doubtful:
            return {}
        from tokenizers import Tokenizer

        counter = Tokenizer.from_file(str(file))
        counter.no_truncation()
        texts = [self.reader.text(problem.prompt) for problem in doubtful]
        try:
            encoded = counter.encode_batch(texts, add_special_tokens=False)
        except Exception as error:  # noqa: BLE001 - the library raises nothing more precise
            raise ValueError(f"{self.reader.path}: its tokenizer cannot read a prompt: {error}.") from None
        counts = {problem.id: len(one.ids) for problem, one in zip(doubtful, encoded, strict=True)}
        return {name: tokens for name, tokens in counts.items() if tokens > limit}

    def _told(self, long: dict[str, int], limit: int) -> str:
        first, room = next(iter(long)), self.reader.room()
        why = f" (the model's context without {self.reader.max_tokens} of a response)" if limit == room else ""
        return f"{len(long)} prompts with more than {limit} tokens{why}, such as problem {first} with {long[first]},"
