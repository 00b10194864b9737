"""A model's own chat template, rendered as transformers renders it and without importing it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

if TYPE_CHECKING:
    from jinja2 import Environment, Template

SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token")


class ChatTemplate:
    """source: Jinja, run in its sandbox. special: the tokenizer's special tokens, by the names that templates use."""

    def __init__(self, source: str, special: Mapping[str, str]) -> None:
        self.source, self.special = source, special

    @classmethod
    def of(cls, find: Callable[[str], Path | None]) -> ChatTemplate | None:
        """find: a file of the model by its name, or None. None: it has no template."""
        said = _json(find("tokenizer_config.json"))
        file = find("chat_template.jinja")
        source: object = file.read_text(encoding="utf-8") if file is not None else None
        source = source or _json(find("chat_template.json")).get("chat_template") or said.get("chat_template")
        if isinstance(source, list):  # several with names
            named = {one.get("name"): one.get("template") for one in cast("list[dict[str, object]]", source)}
            source = named.get("default")
        if not isinstance(source, str):
            return None
        tokens = {name: said.get(name) for name in SPECIAL}
        texts = {name: token.get("content") if isinstance(token, dict) else token for name, token in tokens.items()}
        return cls(source, {name: text for name, text in texts.items() if isinstance(text, str)})

    def prompt(self, text: str, system: str | None = None) -> str:
        """What the model reads of a user's turn, after a system prompt where there is one: up to where it answers.

        Raises jinja2.TemplateError, of a syntax that is wrong and where the template itself refuses.
        """
        before = [] if system is None else [{"role": "system", "content": system}]
        messages = [*before, {"role": "user", "content": text}]
        given = {"messages": messages, "tools": None, "documents": None, "add_generation_prompt": True}
        return self._compiled.render(**given, **self.special)

    @cached_property
    def _compiled(self) -> Template:
        return _environment().from_string(self.source)


def _environment() -> Environment:
    """With what transformers gives to templates."""
    from jinja2 import TemplateError, nodes
    from jinja2.ext import Extension
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """{% generation %} marks what the assistant said: nothing of a prompt."""

        tags: ClassVar[set[str]] = {"generation"}

        def parse(self, parser: Parser) -> list[nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def refuse(message: str) -> None:
        raise TemplateError(message)

    def now(form: str) -> str:
        return datetime.now().astimezone().strftime(form)

    def tojson(value: Any, ensure_ascii: bool = False, **knobs: Any) -> str:  # Jinja's own escapes HTML
        return json.dumps(value, ensure_ascii=ensure_ascii, **knobs)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = tojson
    environment.globals.update(raise_exception=refuse, strftime_now=now)
    return environment


def _json(file: Path | None) -> dict[str, Any]:
    try:
        content = json.loads(file.read_bytes()) if file is not None else None
    except (OSError, ValueError):
        return {}
    return cast("dict[str, Any]", content) if isinstance(content, dict) else {}
