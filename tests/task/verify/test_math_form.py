"""What an answer leaves to be done, and what is too large to be computed. Whole verdicts: verdicts.csv."""

import sympy

from rlvr.task.verify.math_form import is_huge, is_numeral, last_side, steps

x = sympy.Symbol("x")


def test_a_degenerate_text_is_no_numeral() -> None:
    assert not any(is_numeral(text) for text in (r"\text{a}" * 4000, "{" * 9000 + "}" * 9000, "9" * 100_000))


def test_the_last_side_is_the_value() -> None:
    assert [last_side(text).strip() for text in ("x = 2 + 4 = 6", "6 = x", r"x \approx 6", "6")] == ["6"] * 4


def test_steps_that_are_left_to_do() -> None:
    with sympy.evaluate(False):
        rows = {"arithmetic": [sympy.Integer(7) + 5, sympy.Integer(17) * 23], "power": [sympy.Integer(3) ** 10]}
        rows |= {"root": [sympy.sqrt(18), sympy.sqrt(2) * sympy.sqrt(3)]}
        rows |= {"value": [sympy.log(32, 2), sympy.sin(sympy.pi / 6)]}
        rows |= {"expanding": [(x + 1) ** 5, (x + 1) * (x + 2)], "collecting": [x + x, 2 * x + x]}
        rows |= {"division": [(x**2 - 1) / (x - 1)]}
        done = [x**2 + 2 * x + 1, 2 * (x + 1), 3 * sympy.sqrt(2), sympy.log(5), sympy.sqrt(2) / 2, 2 * sympy.pi]
    for step, expressions in rows.items():
        assert all(step in steps(expression) for expression in expressions), step
    assert [steps(expression) for expression in done] == [set()] * len(done)


def test_what_has_a_hundred_thousand_digits_is_huge() -> None:
    with sympy.evaluate(False):
        huge = [sympy.Integer(9) ** (sympy.Integer(9) ** 9), sympy.factorial(10**8), sympy.Rational(2, 3) ** 10**9]
        small = [sympy.Integer(2) ** 1000, sympy.factorial(100), sympy.exp(x**4), sympy.exp(-x / 8), x**50]
    assert [is_huge(number) for number in huge] == [True] * 3
    assert [is_huge(number) for number in small] == [False] * 5
