"""A model's chat template, rendered as the library transformers renders it, without importing that library."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from jinja2 import Template

DAY = datetime(2026, 1, 1)
ANSWER = "Response0"  # an answer that no template contains
SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token")


def now(form: str) -> str:
    """The date that templates read: always the same, or a prompt would be another one after midnight."""
    return DAY.strftime(form)


def turns(text: str, system: str | None) -> list[dict[str, str]]:
    """A prompt as the turns of a chat: the user's, after the system prompt if there is one."""
    before = [] if system is None else [{"role": "system", "content": system}]
    return [*before, {"role": "user", "content": text}]


class ChatTemplate:
    """source: the Jinja source, rendered in Jinja's sandbox. special: {name in templates: special token}."""

    def __init__(self, source: str, special: Mapping[str, str]) -> None:
        self.source, self.special = source, special

    @classmethod
    def of(cls, find: Callable[[str], Path | None]) -> ChatTemplate | None:
        """The chat template of a model; None if the model has none.

        find: returns the path of one of the model's files by its name, or None if there is no such file.
        """
        config = _json(find("tokenizer_config.json"))
        file = find("chat_template.jinja")
        source: object = file.read_text(encoding="utf-8") if file is not None else None
        source = source or _json(find("chat_template.json")).get("chat_template") or config.get("chat_template")
        if isinstance(source, list):  # several named templates
            templates = [cast("dict[str, object]", of) for of in cast("list[object]", source) if isinstance(of, dict)]
            source = {template.get("name"): template.get("template") for template in templates}.get("default")
        if not isinstance(source, str):
            return None
        tokens = {name: config.get(name) for name in SPECIAL}
        texts = {name: token.get("content") if isinstance(token, dict) else token for name, token in tokens.items()}
        return cls(source, {name: text for name, text in texts.items() if isinstance(text, str)})

    def prompt(self, text: str, system: str | None = None) -> str:
        """The text that the model reads for one user turn, after the system prompt if there is one: up to the answer.

        Raises jinja2.TemplateError for a syntax error, and where the template itself raises an exception.
        """
        messages = turns(text, system)
        variables = {"messages": messages, "tools": None, "documents": None, "add_generation_prompt": True}
        return self._rendered(**variables)

    def end_of_turn(self, tokens: Collection[str]) -> str | None:
        """The first of these tokens behind an assistant's answer, which ends its turn; None if there is none.

        tokens: the texts of the special and other added tokens of the tokenizer. Base models whose tokenizer ends texts
        by one token, and whose template ends turns by another, name the latter nowhere else.
        """
        messages = [{"role": "user", "content": "Question"}, {"role": "assistant", "content": ANSWER}]
        from jinja2 import TemplateError

        try:
            text = self._rendered(messages=messages, tools=None, documents=None, add_generation_prompt=False)
        except TemplateError:  # of a template that refuses such turns
            return None
        behind = text.rpartition(ANSWER)[2] if ANSWER in text else ""
        places = [(behind.index(token), -len(token), token) for token in tokens if token and token in behind]
        return min(places)[2] if places else None

    def _rendered(self, **variables: Any) -> str:
        """Raises jinja2.TemplateError whatever the template, which is a program of others, does."""
        from jinja2 import TemplateError

        try:
            return self._compiled.render(**variables, **self.special)
        except (
            ArithmeticError,
            AttributeError,
            LookupError,
            MemoryError,
            RuntimeError,
            TypeError,
            ValueError,
        ) as error:
            raise TemplateError(f"{type(error).__name__}: {error}") from None

    @cached_property
    def _compiled(self) -> Template:
        from rlvr.task.template_environment import environment  # Jinja

        return environment().from_string(self.source, {"strftime_now": now})


def _json(file: Path | None) -> dict[str, Any]:
    try:
        content = json.loads(file.read_bytes()) if file is not None else None
    except (OSError, ValueError):
        return {}
    return cast("dict[str, Any]", content) if isinstance(content, dict) else {}
