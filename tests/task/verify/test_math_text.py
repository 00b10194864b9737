"""What the text of an answer says beside its value: percent signs, units, brackets, operators, numbers side by side.

texts.csv has one text a line: the function, the text, what it finds in it (text or JSON), a note.
"""

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from rlvr.task.verify.math_form import is_numeral
from rlvr.task.verify.math_notation import plain, typeset
from rlvr.task.verify.math_text import adjacent_numbers, brackets, inside, operators, squeezed, without_percent
from rlvr.task.verify.math_unit import unit, with_upright_words

FINDS: dict[str, Callable[[str], object]] = {
    "inside": inside,
    "without_percent": lambda text: json.dumps(without_percent(text)),
    "plain": plain,
    "adjacent_numbers": lambda text: json.dumps(adjacent_numbers(plain(text))),
    "brackets": brackets,
    "operators": lambda text: json.dumps(sorted(operators(text))),
    "unit": lambda text: json.dumps(unit(text)),
    "typeset": typeset,
    "is_numeral": lambda text: json.dumps(is_numeral(text)),
    "with_upright_words": with_upright_words,
}


@pytest.mark.parametrize("function", FINDS)
def test_what_a_text_says(function: str) -> None:
    with Path(__file__).with_name("texts.csv").open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["function"] == function]
    assert len(rows) > 5
    for row in rows:
        assert FINDS[function](row["text"]) == row["expected"], row


@pytest.mark.timeout(60)  # a search that tries every place takes minutes
@pytest.mark.parametrize("run", [r"\," * 60_000, ", " * 60_000, r"\quad" * 24_000], ids=["gaps", "commas", "quads"])
def test_a_long_run_of_white_space_is_read_once(run: str) -> None:
    assert (inside(f"5{run}"), inside(f"5{run}x")) == ("5", f"5{run}x")
    plain(f"5{run}x")


def test_a_repeating_decimal_of_thousands_of_digits_is_left_as_it_is() -> None:
    """int() refuses more than 4300 digits, and this runs in the process of the trainer, too."""
    degenerate = rf"0.\overline{{{'142857' * 1000}}}"
    assert inside(f"0.{'3' * 9999}") == f"0.{'3' * 9999}"
    assert (plain(degenerate), plain(r"0.\overline{142857}")) == (degenerate, r"\frac{142857}{999999}")


def test_calls_that_are_nested_a_thousand_deep_are_not_all_read() -> None:
    assert plain("sqrt(" * 2 + "2" + ")" * 2) == r"\sqrt{\sqrt{2}}"
    for call, latex in (("sqrt(", r"\sqrt{"), ("^(", "^{")):
        assert plain(call * 1100 + "2" + ")" * 1100).startswith(latex * 50 + call)


def test_white_space_of_latex_is_white_space() -> None:
    assert squeezed(r"a ~ \quad b\, 3\!") == "ab3"
    assert squeezed(r"1 ~ \quad 2\, 3 + 4\!") == "1 2 3+4"  # 12 is another answer


def test_braces_of_a_short_index_say_nothing() -> None:
    assert squeezed("E_{1}, E_{2}") == squeezed("E_1,E_2")
    assert squeezed("x^{12}") != squeezed("x^12")
    assert squeezed("2^{1}0") != squeezed("2^10")
