import pytest

from rlvr.task.verify.math_syntax import fault

SENTENCE = (
    "The vectors are $\\left\\{\\left[\\begin{array}{l}1 \\\\ 0\\end{array}\\right]\\right\\}$, and $x_{1} \\neq x^*$."
)


WHOLE = [
    *(
        *("5", "-.5", "5\\%", "$12", "(-\\infty,\\infty)", "∞", "\\emptyset", "∅", "\\{\\}"),
        *("\\left\\{ \\right\\}", "π", "北京"),
    ),
    *("\\frac12", "\\frac 1{2}", "\\frac\\pi2", "\\frac{1}\\sqrt{2}", "\\sqrt3", "\\sqrt[3]{2}", "\\binom{4}{2}"),
    *("x^2", "x^{-1}", "50^\\circ", "{}_5C_2", "a_\\text{max}", "\\left]1,2\\right[", "\\{1, 2\\}", "\\boxed{0}"),
    *("\\sum_{k=1}^n k", "\\int\\limits_0^1 x\\,dx", "\\begin{pmatrix} 1 & 2 \\\\ \\frac{3}{4} & x_1 \\end{pmatrix}"),
    *("no", "\\text{no}", "Yes, it is.", SENTENCE),
]


@pytest.mark.parametrize("text", WHOLE)
def test_mathematics_and_sentences_are_whole(text: str) -> None:
    assert fault(text) == ""


@pytest.mark.parametrize(
    ("text", "defect"),
    [
        *[
            (text, "neither a letter nor a number")
            for text in ("", "???", "=", ".", "$$", "\\boxed{}", "\\text{ }", "\\sqrt")
        ],
        *[(text, "braces that are not balanced") for text in ("\\frac{1}{2", "1}{2", "x^{2")],
        ("\\frac{1}", "\\frac without two arguments"),
        ("2 + \\dfrac{1}{} + 3", "\\dfrac without two arguments"),
        ("{\\frac{1}}{2}", "\\frac without two arguments"),
        ("2\\sqrt", "\\sqrt without an argument"),
        ("\\sqrt[3]", "\\sqrt without an argument"),
        ("\\sqrt{}2", "\\sqrt without an argument"),
        ("\\begin{matrix} 1 & \\vec & 2 \\end{matrix}", "\\vec without an argument"),
        ("x^", "^ without an argument"),
        ("(x^) + 1", "^ without an argument"),
        ("$a_$", "_ without an argument"),
        ("\\int", "\\int of nothing"),
        ("\\sum_{k=1}^{n}", "\\sum of nothing"),
        ("\\begin{pmatrix} 1 \\\\ 2", "\\begin{pmatrix} that is not closed"),
        ("\\begin{cases} 1 \\end{matrix}", "\\end{matrix} alone"),
        ("1 \\end{matrix}", "\\end{matrix} alone"),
    ],
)
def test_what_is_missing_is_named(text: str, defect: str) -> None:
    assert fault(text) == defect
