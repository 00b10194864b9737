"""What the text of an answer says beside its value: percent signs, units, brackets, operators, numbers side by side."""

from __future__ import annotations

import pytest

from rlvr.task.verify.math_text import (
    adjacent_numbers,
    brackets,
    inside,
    operators,
    plain,
    squeezed,
    unit,
    without_percent,
)


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{$5$.}", "5"),
        (r"\boxed{\(x\)}", "x"),
        (r"$30^\circ.$", r"30^\circ"),
        (r"\$5", r"\$5"),
        (r"$1$, $2$", r"$1$, $2$"),  # two of them
        (".273.", ".273"),
        (r"25 \,", "25"),
        (r"5\!.", "5"),
        ("7", "7"),
    ],
)
def test_the_content_of_a_box(text: str, content: str) -> None:
    assert inside(text) == content


@pytest.mark.timeout(60)  # a search that tries every place takes minutes
@pytest.mark.parametrize("run", [r"\," * 60_000, ", " * 60_000, r"\quad" * 24_000], ids=["gaps", "commas", "quads"])
def test_a_long_run_of_white_space_is_read_once(run: str) -> None:
    assert inside(f"5{run}") == "5"
    assert inside(f"5{run}x") == f"5{run}x"
    plain(f"5{run}x")


def test_a_repeating_decimal_of_thousands_of_digits_is_left_as_it_is() -> None:
    """int() refuses more than 4300 digits, and this runs in the process of the trainer, too."""
    degenerate = rf"0.\overline{{{'142857' * 1000}}}"
    assert plain(degenerate) == degenerate
    assert plain(r"0.\overline{142857}") == r"\frac{142857}{999999}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"50\%", ("50", True)),
        ("50 %", ("50", True)),
        (r"12.5\text{ percent}", ("12.5", True)),
        ("33 percent", ("33", True)),
        (r"10\%, 20\%", (r"10\%, 20\%", False)),
        ("50", ("50", False)),
    ],
)
def test_percent_signs(text: str, expected: tuple[str, bool]) -> None:
    assert without_percent(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"10\,000", "10000"),
        ("10 000", "10000"),
        (r"1{,}024", "1024"),
        (r"5,\!525", "5525"),
        (r"29,\!322,\!216", "29322216"),
        ("10 00", "10 00"),
        ("0.125 125", "0.125 125"),
        ("4.5e33", r"4.5 \times 10^{33}"),
        ("1E-7", r"1 \times 10^{-7}"),
        ("2e", "2e"),
        ("e5", "e5"),
        ("1 1/2", r"1\frac{1}{2}"),
        ("11/2", "11/2"),
        (r"\frac 1 2", r"\frac{1}{2}"),
        (r"\frac12", r"\frac{1}{2}"),
        ("-1./3", "-1/3"),
        ("np.arcsin(10/13)", r"\arcsin(10/13)"),
        ("0.5", "0.5"),
        (r"m_{\max }=n^{2}", "m_{max}=n^{2}"),
        (r"\max(1, 2)", r"\max(1, 2)"),
        ("a + b + c", "a +{b} +{c}"),
        (r"\sin^2 t", r"\sin^2{t}"),
        ("5 m", "5 m"),
        (r"e^{t}+ C_{3} \cos (t)", r"e^{t}+ C_{3} \cos (t)"),
    ],
)
def test_numbers_as_the_parser_reads_them(text: str, expected: str) -> None:
    assert plain(text) == expected


@pytest.mark.parametrize("text", ["10 20", r"10\ 20", r"10\,20", r"10 \quad 20", "10~20", "10{20}", "x 1 2", "1 .5"])
def test_numbers_side_by_side_are_seen(text: str) -> None:
    assert adjacent_numbers(plain(text))


@pytest.mark.parametrize(
    "text",
    [
        "10, 20",
        "1 000",
        r"1 \frac{1}{2}",
        "1 1/2",
        r"\frac 1 2",
        r"\frac{1}{2}",
        r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}",
        r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}",
        r"2^{10} \cdot 3",
        r"x_{1} 2",
        r"\sqrt{2} 3",
        r"\sqrt[3]{2}",
        "3 x 4 y",
        "2 + 3",
        "5 m",
        "",
    ],
)
def test_what_only_looks_like_numbers_side_by_side_is_not(text: str) -> None:
    assert not adjacent_numbers(plain(text))


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("(1, 2)", "("),
        (r"\left( 1, 2, 3 \right)", "("),
        (r"\{1, 2\}", "{"),
        (r"\left\{ (1,2), (3,4) \right\}", "{"),
        ("(1, 2), (3, 4)", ""),
        ("(x + 1)", ""),
        ("(x+1)(x, y)", ""),
        (r"\{5\}", ""),
        ("[1, 2]", ""),
        ("1, 2", ""),
    ],
)
def test_what_encloses_a_list(text: str, kind: str) -> None:
    assert brackets(text) == kind


@pytest.mark.parametrize(
    ("text", "families"),
    [
        (r"\sum_{k=1}^{100} k", {"sum"}),
        (r"\int_0^1 x\,dx", {"integral"}),
        (r"\iint f", {"integral"}),
        (r"\lim_{n\to\infty} n", {"limit"}),
        (r"\binom{10}{3}", {"product or combination"}),
        (r"\dbinom{10}{3}", {"product or combination"}),
        (r"{10 \choose 3}", {"product or combination"}),
        ("5!", {"product or combination"}),
        (r"\prod_{k=1}^5 k", {"product or combination"}),
        (r"\gcd(12, 18)", {"divisor"}),
        (r"7 \bmod 5", {"remainder"}),
        (r"\max(1, 2)", {"extremum"}),
        (r"\lfloor 3.7 \rfloor", {"rounding"}),
        (r"\frac{d}{dx} x^2", {"derivative"}),
        (r"\frac{dy}{dx}", {"derivative"}),
        (r"\det(A)", {"determinant"}),
        (r"5\!", set()),  # a thin space
        (r"x \ne 5", set()),
        ("x != 5", set()),
        (r"\frac{d}{2}", set()),
        (r"\infty", set()),
        (r"\intercal", set()),
        (r"\sqrt{2} + \pi", set()),
    ],
)
def test_operators_that_are_left_to_be_evaluated(text: str, families: set[str]) -> None:
    assert operators(text) == families


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5 cm", [("cm", 1)]),
        (r"5\text{ centimeters}", [("cm", 1)]),
        (r"5 \mathrm{~cm}", [("cm", 1)]),
        (r"25\text{ cm}^2", [("cm", 2)]),
        (r"25 \text{ square centimeters}", [("cm", 2)]),
        (r"60\text{ mph}", [("h", -1), ("mi", 1)]),
        (r"60\text{ miles per hour}", [("h", -1), ("mi", 1)]),
        (r"3\text{ m/s}", [("m", 1), ("s", -1)]),
        (r"\$5", [("$", 1)]),
        (r"5\text{ dollars}", [("$", 1)]),
        (r"30^\circ", [("deg", 1)]),
        (r"30^{\circ}", [("deg", 1)]),
        (r"30\text{ degrees}", [("deg", 1)]),
        (r"2\text{ hours}", [("h", 1)]),
        ("3 feet", [("ft", 1)]),
        (r"5\text{ apples}", None),
        (r"5\text{ units}", None),
        ("5", None),
        ("x", None),
        (r"\frac{1}{2}", None),
        (r"\text{Monday}", None),
    ],
)
def test_units(text: str, expected: list[tuple[str, int]] | None) -> None:
    assert unit(text) == (None if expected is None else tuple(expected))


def test_white_space_of_latex_is_white_space() -> None:
    assert squeezed(r"a ~ \quad b\, 3\!") == "ab3"
    assert squeezed(r"1 ~ \quad 2\, 3 + 4\!") == "1 2 3+4"  # 12 is another answer


def test_braces_of_a_short_index_say_nothing() -> None:
    assert squeezed("E_{1}, E_{2}") == squeezed("E_1,E_2")
    assert squeezed("x^{12}") != squeezed("x^12")
    assert squeezed("2^{1}0") != squeezed("2^10")
