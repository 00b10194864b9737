"""Ways to write an answer to a problem of mathematics, with the verdict of `task=math` on each, in a box."""

from collections.abc import Iterator

from rlvr.task.verify.math_answer import judge
from tests.compatibility import code

HEAD = ("notation", "the answer of the data", "judged right", "not judged right")
# notation -> [(the answer of the data, ways to write it, answers that are others)]
NOTATIONS: dict[str, list[tuple[str, list[str], list[str]]]] = {
    "fractions, decimals (to six digits)": [
        (
            r"\frac{3}{4}",
            ["3/4", "0.75", ".75", r"\dfrac34", r"\frac{6}{8}", "75\\%", "3:4", "0.7500001"],
            ["0.75001", "4/3"],
        ),
        (r"1\frac12", ["3/2", "1.5", "1 1/2"], ["11/2"]),
    ],
    "thousands": [("10000", ["10,000", r"10\,000", r"10{,}000", "10 000", "10^4"], ["10,00", "1,000"])],
    "per cent, currencies": [
        (r"50\%", ["50", r"50\%", "0.5"], [r"0.5\%", "5"]),
        ("18", [r"\$18", "18 dollars"], ["81"]),
    ],
    "units": [("12", ["12 cm", r"12\text{ cm}", r"12\,\mathrm{cm}^2", "12 cookies"], ["12x"])],
    "scientific": [("4500", [r"4.5\times 10^3", "4.5e3", r"4.5\cdot10^{3}"], [r"4.5\times 10^4"])],
    "as programs write": [
        (r"\frac{\pi}{2}", ["pi/2", r"\pi/2", "0.5*pi"], ["pi"]),
        ("2x^2", ["2x**2", "2*x^2", r"2x^{2}"], ["2x", "4x^2"]),
        (r"2\sqrt{3}", ["2sqrt(3)", "2√3", r"\sqrt{12}"], [r"\sqrt{6}"]),
    ],
    "a function before a quotient: either reading": [(r"\frac{\ln 3}{2}", [r"\ln 3/2"], [r"\ln 3"])],
    "hexadecimal, binary": [("255", ["0xFF", "0b11111111", r"\text{0xff}"], ["0xF"]), ("0", [], ["0xFF"])],
    "Unicode": [("x^2", ["x²"], ["x³"]), ("-5", ["−5", "–5"], ["5"]), (r"\frac12", ["½"], ["¼"])],
    "equations": [("x+y=2", ["y = 2 - x", "2x+2y=4"], ["x+y=3"]), ("5", ["x = 5", "x=5"], ["x = 6"])],
    "sets, lists": [(r"\{1, 2\}", [r"\{2, 1\}", "1, 2"], [r"\{1\}", r"\{1, 2, 3\}"])],
    "pairs, intervals": [("(1, 2)", ["(1,2)", r"\left(1, 2\right)"], ["(2, 1)", "[1, 2]"])],
    "matrices": [
        (
            r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}",
            [r"\begin{bmatrix} 1 & 2 \\ 3 & 4 \end{bmatrix}"],
            [r"\begin{pmatrix} 1 & 3 \\ 2 & 4 \end{pmatrix}"],
        )
    ],
    "complex": [("1+2i", ["2i+1", r"i(2-i)"], ["1-2i"])],
    "text, choices": [
        (r"\text{even}", ["even", r"\textbf{even}"], ["odd"]),
        ("B", [r"\text{(B)}", "(B)", "B"], ["C", "A or B"]),
    ],
    "restated problems": [("5050", [], [r"\sum_{k=1}^{100} k", "100 \\cdot 101 / 2 + 0 \\cdot x"])],
}


def verdict(gold: str, answer: str) -> str:
    return str(judge({"gold": gold, "answer": f"\\boxed{{{answer}}}"})["outcome"])


def rows() -> Iterator[tuple[str, ...]]:
    """Raises AssertionError for another answer that is judged right."""
    for notation, answers in NOTATIONS.items():
        for gold, same, others in answers:
            verdicts = {answer: verdict(gold, answer) for answer in (*same, *others)}
            assert not [answer for answer in others if verdicts[answer] == "correct"], (gold, verdicts)
            right = [code(answer) for answer in same if verdicts[answer] == "correct"]
            shown = [f"{code(a)} ({verdicts[a]}{', though the same' if a in same else ''})" for a in verdicts]
            rest = [text for text, given in zip(shown, verdicts.values(), strict=True) if given != "correct"]
            yield notation, code(gold), " ".join(right), ", ".join(rest)
