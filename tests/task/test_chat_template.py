"""A chat template gives what transformers makes of it, without transformers."""

import json
from pathlib import Path

import jinja2
import pytest
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from rlvr.task.chat_template import ChatTemplate, now

TURNS = """{%- if tools %}never{% endif %}
{%- for message in messages %}
    {%- set content = message.content | trim %}
    {{- '<|' + message.role + '|>' + content + eos_token }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|assistant|>' }}
{%- endif %}
"""
TEMPLATES = {
    "turns": TURNS,
    "begin": "{{ bos_token }}{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}\n{% endfor %}",
    "json": "{{ messages | tojson(indent=2) }}<é>{{ messages[0] | tojson }}",
    "day": "{{ strftime_now('%d %b %Y') }} {{ messages[-1].content }}",
    "loop": "{% for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}{{ m.content }}{% endfor %}",
    "generation": "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}.",
    "cleared": "{% for m in messages %}\n    {% if m.role == 'user' %}\n {{ m.content }}\n  {% endif %}\n{% endfor %}",
}
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("system", [None, "Be brief."])
def test_a_prompt_is_what_transformers_makes_of_it(name: str, system: str | None) -> None:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), **SPECIAL)
    text = " What is <1 & 2>, Ünal?\n"
    turns = ([{"role": "system", "content": system}] if system else []) + [{"role": "user", "content": text}]
    tokenizer.chat_template = TEMPLATES[name]
    expected = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True, strftime_now=now)
    assert ChatTemplate(TEMPLATES[name], SPECIAL).prompt(text, system) == expected


def test_a_prompt_is_the_same_on_every_day() -> None:
    template = ChatTemplate("Today is {{ strftime_now('%d %b %Y') }}. {{ messages[-1].content }}", {})
    assert template.prompt("Hello") == "Today is 01 Jan 2026. Hello"


def test_a_template_that_refuses_a_system_prompt_says_so() -> None:
    refusal = "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    template = ChatTemplate(refusal + "{{ messages[0].content }}", {})
    assert template.prompt("Hello") == "Hello"
    with pytest.raises(jinja2.TemplateError, match="no system role"):
        template.prompt("Hello", "Be brief.")


MANY, END = "{% for i in range(9999) %}", "{% endfor %}"


@pytest.mark.parametrize(
    "source",
    [
        *("{% include 'x' %}", "{{ 1 / 0 }}", "{{ 1 + 'a' }}", "{{ '%99999999999d' % 1 }}", "{% if 1 %}" * 3000),
        *(
            "{% for i in range(10**9) %}{% endfor %}",
            f"{MANY}{MANY}{END}{END}",
            "{{ 9**9**9 }}",
            "{{ 'a' * 10000000000 }}",
        ),
        f"{MANY}{{% for j in range(99999) if false %}}{END}{END}",
        "{% for i in range(9999) recursive %}{{ loop(range(9999)) if loop.depth < 9 }}{% endfor %}",
        "{% macro f(n) %}{{ f(n - 1) ~ f(n - 1) if n }}{% endmacro %}{{ f(60) }}",
        "{% set x = namespace(n=9) %}" + "{% for i in range(99) %}{% set x.n = x.n * x.n %}{% endfor %}",
        *("{{ lipsum(n=999999999) }}", "{{ []|slice(999999999)|list }}"),
        *("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "{{ raise_exception | tojson }}", "{{ strftime_now(1) }}"),
    ],
)
def test_whatever_a_template_does_is_an_error_of_the_template(source: str) -> None:
    with pytest.raises(jinja2.TemplateError):
        ChatTemplate(source, {}).prompt("Hello")


def test_a_template_cannot_reach_out_of_its_sandbox() -> None:
    with pytest.raises(jinja2.exceptions.SecurityError):
        ChatTemplate("{{ ''.__class__.__mro__[1].__subclasses__() }}", {}).prompt("Hello")


def test_where_a_model_keeps_its_template(tmp_path: Path) -> None:
    def read_template() -> ChatTemplate | None:
        return ChatTemplate.of(lambda name: file if (file := tmp_path / name).is_file() else None)

    assert read_template() is None
    config = tmp_path / "tokenizer_config.json"
    config.write_text(json.dumps({"bos_token": {"content": "<s>"}, "eos_token": None}))
    assert read_template() is None
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "{{ bos_token }}named"}]
    config.write_text(json.dumps({"bos_token": {"content": "<s>"}, "chat_template": named}))
    template = read_template()
    assert template is not None
    assert template.prompt("") == "<s>named"
    (tmp_path / "chat_template.jinja").write_text("own {{ bos_token }}")  # goes before
    template = read_template()
    assert template is not None
    assert template.prompt("") == "own <s>"


@pytest.mark.parametrize(
    ("turns", "expected"),
    [
        ("<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n", "<|im_end|>"),
        ("<|{{ m.role }}|>\n{{ m.content }}<|end|>\n<|endoftext|>", "<|end|>"),  # Phi-3
        ("[INST] {{ m.content }} </s>", "</s>"),
        ("{{ m.role }}: {{ m.content | trim }}\n\n", None),  # no token ends it
        ("{% if m.role == 'assistant' %}{{ raise_exception('users only') }}{% endif %}{{ m.content }}</s>", None),
    ],
)
def test_a_turn_ends_by_the_first_token_behind_its_answer(turns: str, expected: str | None) -> None:
    template = ChatTemplate("{% for m in messages %}" + turns + "{% endfor %}", {})
    assert template.end_of_turn(["<|endoftext|>", "<|end|>", "<|im_start|>", "<|im_end|>", "</s>", ""]) == expected
