"""The Jinja environment of chat templates: the extensions, filters and globals that transformers provides to them.

Templates are programs of others: loops and macros have MOST_PASSES together, and no number or text grows without one.
"""

import json
from typing import Any, ClassVar

from jinja2 import Environment, TemplateError, nodes, pass_context
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

MOST_PASSES = 1 << 16  # of all loops of a template, in one prompt
PASSES = "num passes"  # no name that a template can read


class Generation(Extension):
    """{% generation %} marks text of the assistant: the tag itself adds nothing to a prompt."""

    tags: ClassVar[set[str]] = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class Bounded(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(("*", "**"))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" or any(isinstance(side, int) and abs(side) > MOST_PASSES for side in (left, right)):
            raise TemplateError(f"it computes a power, or {MOST_PASSES:,} times something")
        return super().call_binop(context, operator, left, right)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template = super()._parse(source, name, filename)
        for block in template.find_all((nodes.For, nodes.Macro, nodes.CallBlock)):
            line = {"lineno": block.lineno, "environment": self}
            counted = nodes.Filter(nodes.Const(True, **line), "counted", [], [], None, None, **line)
            block.body.insert(0, nodes.ExprStmt(counted, **line))
            if isinstance(block, nodes.For) and block.test is not None:
                block.test = nodes.And(counted, block.test, **line)
        return template


def environment() -> Environment:
    bounded = Bounded(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"])
    bounded.filters.update(tojson=_tojson, counted=_counted)
    del bounded.globals["lipsum"], bounded.filters["slice"]  # loops of their own
    bounded.globals.update(raise_exception=_refuse)
    return bounded


@pass_context
def _counted(context: Any, value: bool) -> bool:
    passes = context.parent[PASSES] = context.parent.get(PASSES, 0) + 1
    if passes > MOST_PASSES:
        raise TemplateError(f"its loops have more than {MOST_PASSES:,} passes")
    return value


def _refuse(message: str) -> None:
    raise TemplateError(message)


def _tojson(value: Any, ensure_ascii: bool = False, **knobs: Any) -> str:  # Jinja's built-in filter escapes HTML
    return json.dumps(value, ensure_ascii=ensure_ascii, **knobs)
