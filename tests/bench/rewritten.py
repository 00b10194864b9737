r"""Checks the judge of mathematics: a right answer must be right in every notation, another value must be wrong.

python -m tests.bench.rewritten [--show]     about 300 right answers of each file of the data folder, two minutes

Right answers are rewritten into forms that a mathematician takes for the same, and changed into other values.
"""

import argparse
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction

from tests.bench.golds import FILES, problems, verifier

PER_FILE = 300  # right answers of a file, about
INTEGER = re.compile(r"-?\d+")
FRACTION = re.compile(r"(-?)\\[dt]?frac\{(\d+)\}\{(\d+)\}")
NUMBERS = re.compile(r"(?!\d{1,3}(?:,\d{3})+$)-?\d+(?:, ?-?\d+)+")  # several answers, in no order; 1,234 is one
PAIR = re.compile(r"([(\[])(-?\d+), ?(-?\d+)([)\]])")
DEGREES = re.compile(r"(-?[\d.]+) ?\^\{?\\circ\}?")
PERCENT = re.compile(r"(-?[\d.]+) ?\\?%")
ROOT = re.compile(r"(\d*)\\sqrt\{(\d+)\}")
Written = Iterator[tuple[str, str]]  # (kind of rewriting, text)


def ways(answer: str) -> Written:
    """Other notations of an answer. None for text that contains mathematics in dollars."""
    if "$" in answer:
        return
    yield from _of_any(answer)
    for pattern, others in (
        *((INTEGER, _of_integer), (FRACTION, _of_fraction), (NUMBERS, _of_numbers), (PAIR, _of_pair)),
        *((DEGREES, _of_degrees), (PERCENT, _of_percent), (ROOT, _of_root)),
    ):
        if match := pattern.fullmatch(answer):
            yield from others(match)


def _of_any(answer: str) -> Written:
    yield "dollars", f"${answer}$"
    yield "spaces", re.sub(r"(?<=[\w})])([+=,])(?=[\w\\({-])(?!\\!)", r" \1 ", answer)
    for old, new in ((r"\frac", r"\dfrac"), (r"\frac", r"\tfrac"), (r"\dfrac", r"\frac"), (r"\cdot", r"\times")):
        if old in answer:
            yield old[1:] + " as " + new[1:], answer.replace(old, new)
    if re.search(r"(?<!\\left)[(\[].*[)\]]", answer) and r"\left" not in answer:
        sized = re.sub(r"[)\]]", lambda m: r"\right" + m[0], re.sub(r"[(\[]", lambda m: r"\left" + m[0], answer))
        if not re.search(r"\\sqrt\\left", sized):
            yield "left and right", sized


def _of_integer(match: re.Match[str]) -> Written:
    number = int(match[0])
    yield "text", rf"\text{{{number}}}"
    yield "bold", rf"\mathbf{{{number}}}"
    yield "decimals", f"{number}.0"
    yield "decimals", f"{number}.00"
    yield "x =", f"x = {number}"
    yield "unit", rf"{number}\text{{ meters}}"
    yield "unit", rf"{number} \, \mathrm{{cm}}"
    if number > 0:
        yield "fraction", rf"\frac{{{2 * number}}}{{2}}"
        yield "money", rf"\${number}"
    if abs(number) >= 1000:
        for comma in (",", "{,}", r"\,", r",\!"):
            yield "thousands", f"{number:,}".replace(",", comma)


def _of_fraction(match: re.Match[str]) -> Written:
    sign, a, b = match.groups()
    yield "slash", f"{sign}{a}/{b}"
    yield "not in lowest terms", rf"{sign}\frac{{{3 * int(a)}}}{{{3 * int(b)}}}"
    if sign:
        yield "sign within", rf"\frac{{-{a}}}{{{b}}}"
    value = Fraction(int(a), int(b))
    if 10**6 % value.denominator == 0:
        yield "decimals", sign + f"{float(value):.6f}".rstrip("0").rstrip(".")
    if value > 1 and value.denominator > 1:
        whole, rest = divmod(value.numerator, value.denominator)
        yield "mixed", rf"{sign}{whole}\frac{{{rest}}}{{{value.denominator}}}"


def _of_numbers(match: re.Match[str]) -> Written:
    numbers = re.split(r", ?", match[0])
    yield "order", ", ".join(reversed(numbers))
    yield "and", ", ".join(numbers[:-1]) + rf" \text{{ and }} {numbers[-1]}"


def _of_pair(match: re.Match[str]) -> Written:
    begin, a, b, end = match.groups()
    yield "decimals", f"{begin}{a}.0,{b}.0{end}"


def _of_degrees(match: re.Match[str]) -> Written:
    yield "degrees", rf"{match[1]}^\circ"
    yield "degrees", rf"{match[1]}^{{\circ}}"
    yield "degrees", match[1]
    yield "degrees", rf"{match[1]}\text{{ degrees}}"


def _of_percent(match: re.Match[str]) -> Written:
    yield "percent", rf"{match[1]}\%"
    yield "percent", match[1]


def _of_root(match: re.Match[str]) -> Written:
    times, under = match.groups()
    yield "braces of a root", rf"{times}\sqrt {under}" if len(under) == 1 else rf"{times} \sqrt{{{under}}}"
    if times:
        yield "times", rf"{times} \cdot \sqrt{{{under}}}"


def changes(answer: str) -> Written:
    """Answers of another value."""
    if match := INTEGER.fullmatch(answer):
        number = int(match[0])
        yield "one more", str(number + 1)
        yield "a half more", f"{number}.5"
        yield "two of them", f"{number}, {number + 1}"
        if number:
            yield "ten times", f"{number}0"
            yield "sign", str(-number)
    elif match := FRACTION.fullmatch(answer):
        sign, a, b = match.groups()
        yield "one more", rf"{sign}\frac{{{int(a) + 1}}}{{{b}}}"
        yield "sign", rf"{'' if sign else '-'}\frac{{{a}}}{{{b}}}" if int(a) else rf"\frac{{1}}{{{b}}}"
        if a != b and int(a):
            yield "upside down", rf"{sign}\frac{{{b}}}{{{a}}}"
    elif match := NUMBERS.fullmatch(answer):
        yield "one left out", answer.rsplit(",", 1)[0]
        yield "one too many", f"{answer}, 98765"
    elif match := PAIR.fullmatch(answer):
        begin, a, b, end = match.groups()
        other = {"(": "[", "[": "("}[begin]
        yield "another end", f"{other}{a},{b}{end}" if begin + end != "()" else f"({int(a) + 1},{b})"
        if a != b:
            yield "order", f"{begin}{b},{a}{end}"
    elif ROOT.fullmatch(answer) or re.fullmatch(r"[\da-z+\- ^{}]*\d[\da-z+\- ^{}]*", answer):
        yield "one more", f"{answer} + 1"
        yield "twice", f"2({answer})"


def measured(
    written: Callable[[str], Written], answers: Sequence[str], expected: str
) -> tuple[Counter[str], Counter[str], list[str]]:
    """(number of texts by kind, number judged as expected by kind, the texts that were not)."""
    rewritings = [(how, answer, text) for answer in answers for how, text in written(answer) if text != answer]
    with verifier() as pool:
        replies = pool.ask([{"gold": gold, "answer": f"\\boxed{{{text}}}"} for _, gold, text in rewritings])
    outcomes = [(reply["outcome"] == "correct") == (expected == "correct") for reply in replies]
    fine = Counter(how for (how, _, _), good in zip(rewritings, outcomes, strict=True) if good)
    pairs = zip(rewritings, outcomes, strict=True)
    bad = [f"{how}: {gold!r} as {text!r}" for (how, gold, text), good in pairs if not good]
    return Counter(how for how, _, _ in rewritings), fine, bad


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--show", action="store_true", help="every text that was not judged as it should be")
    options = parser.parse_args()
    answers = list[str]()
    for file in FILES:
        of_file = [problem.answer for problem in problems(file)]
        answers += of_file[:: max(len(of_file) // PER_FILE, 1)]
    answers = list(dict.fromkeys(answers))
    for what, written, expected in (("written otherwise", ways, "correct"), ("another value", changes, "wrong")):
        total, fine, bad = measured(written, answers, expected)
        print(f"{what}: {fine.total():,} of {total.total():,} judged {expected}, of {len(answers):,} right answers")
        for how, count in total.most_common():
            print(f"  {how:20} {fine[how]:6,} of {count:6,}")
        if options.show:
            print(*bad, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
