"""Prompts that are too long, found before anything is launched: with the model's own tokenizer, without torch."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, get_args

from rlvr.records import NotAtHand, Problem
from rlvr.task.chat_template import ChatTemplate

log = logging.getLogger("rlvr")

LongPrompts = Literal["refuse", "drop"]


@dataclass(frozen=True)
class PromptLimit:
    """What becomes of long prompts.

    max_prompt_tokens: limit of training prompts; None: the model's context. long_prompts: `refuse` the data, or `drop`
    these problems from the training data. Test prompts are never dropped, and refused where they exceed the context.
    tokenizer: directory or hub name of the model whose tokens are counted. None, or a model that is not on this
        machine: nothing is known, and to ask for a limit is an error. chat: with those that its chat template adds,
        and the turn of a system prompt where there is one.
    """

    max_prompt_tokens: int | None = None
    long_prompts: LongPrompts = "refuse"
    tokenizer: str | None = None
    chat: bool | None = None
    system: str | None = None

    def __post_init__(self) -> None:
        if self.max_prompt_tokens is not None and self.max_prompt_tokens < 1:
            raise ValueError(f"task.max_prompt_tokens={self.max_prompt_tokens} must be 1 or more, or null.")
        if self.long_prompts not in get_args(LongPrompts):
            raise ValueError(f"task.long_prompts={self.long_prompts} must be {' or '.join(get_args(LongPrompts))}.")
        asked = self.max_prompt_tokens is not None or self.long_prompts == "drop"
        if asked and self._file("tokenizer.json") is None:
            lacking = "a model of Hugging Face: pass model=hf model.path=..."
            if self.tokenizer is not None:
                lacking = f"the tokenizer of {self.tokenizer} on this machine: type hf download {self.tokenizer}"
            raise NotAtHand(f"task.max_prompt_tokens and task.long_prompts=drop need {lacking}, or drop them.")

    def too_long(self, problems: Sequence[Problem]) -> frozenset[str]:
        """Ids of the training problems to be dropped. ValueError for long prompts where they are to be refused."""
        limits = [limit for limit in (self.max_prompt_tokens, self._context()) if limit is not None]
        long = self._longer(problems, min(limits)) if limits else {}
        if long and self.long_prompts == "refuse":
            raise ValueError(
                f"{_told(long, min(limits))} of task.train. Pass task.long_prompts=drop to train without them, or a "
                "larger task.max_prompt_tokens."
            )
        if long:
            log.warning("%s of task.train: dropped; %d are left.", _told(long, min(limits)), len(problems) - len(long))
        return frozenset(long)

    def check_test(self, problems: Sequence[Problem]) -> None:
        """ValueError for prompts that the model cannot read: a benchmark loses no problem in silence."""
        context = self._context()
        if context is not None and (long := self._longer(problems, context)):
            raise ValueError(
                f"{_told(long, context)} of task.test: the model reads no more. Shorten task.template, take another "
                "model, or leave these rows out of the file."
            )

    def _longer(self, problems: Sequence[Problem], limit: int) -> dict[str, int]:
        """{problem id: tokens} of the prompts above the limit. A token has at least one byte: short texts have few."""
        file = self._file("tokenizer.json")
        if file is None:
            return {}
        around = len(self._read("").encode())
        doubtful = [problem for problem in problems if around + len(problem.prompt.encode()) > limit]
        if not doubtful:
            return {}
        from tokenizers import Tokenizer

        counter = Tokenizer.from_file(str(file))
        counter.no_truncation()
        encoded = counter.encode_batch([self._read(problem.prompt) for problem in doubtful], add_special_tokens=False)
        counts = {problem.id: len(one.ids) for problem, one in zip(doubtful, encoded, strict=True)}
        return {name: tokens for name, tokens in counts.items() if tokens > limit}

    def _read(self, prompt: str) -> str:
        """The text that the model reads of a prompt."""
        return prompt if self._template is None else self._template.prompt(prompt, self.system)

    @cached_property
    def _template(self) -> ChatTemplate | None:
        return ChatTemplate.of(self._file) if self.chat else None

    def _context(self) -> int | None:
        file = self._file("config.json")
        context = json.loads(file.read_bytes()).get("max_position_embeddings") if file else None
        return context if isinstance(context, int) else None

    def _file(self, name: str) -> Path | None:
        """A file of the model, in its directory or where the hub keeps what was downloaded. Nothing is downloaded."""
        if self.tokenizer is None:
            return None
        here = Path(self.tokenizer).expanduser() / name
        if here.is_file():
            return here
        from huggingface_hub import try_to_load_from_cache
        from huggingface_hub.errors import HFValidationError

        try:
            cached = try_to_load_from_cache(self.tokenizer, name)
        except HFValidationError:  # a path of no repository's form
            return None
        return Path(cached) if isinstance(cached, str) else None


def _told(long: dict[str, int], limit: int) -> str:
    first = next(iter(long))
    return f"{len(long)} prompts with more than {limit} tokens, such as problem {first} with {long[first]},"
