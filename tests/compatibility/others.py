"""Answers to other tasks than mathematics, with the verdict on each."""

from collections.abc import Iterator

from rlvr.task.choice import named_choice
from rlvr.task.verify.inside import equal, normal
from rlvr.task.verify.program import same_output
from rlvr.task.verify.sql_query import same_table
from tests.compatibility import code

HEAD = ("task", "right", "judged right", "not judged right")
BIG = "7" * 5000
# What a program prints: (expected, printed and the same, printed and another)
PRINTED = [
    ("0.333333333", ["0.33333334", "0.3333333333333333"], ["0.3334", "0.33"]),
    ("1000000", ["1000000", "1000000.0"], ["1000001", "1,000,000"]),
    ("10", ["10", " 10 "], ["0010", "1_0"]),
    ("YES", ["YES"], ["yes", "Yes."]),
    (BIG, [BIG], [BIG[:-1] + "8"]),
]
# What a function returns, as Python.
RETURNED = [
    ("[0.1, 0.3]", ["[0.1, 0.1 + 0.2]", "(0.1, 0.3)"], ["[0.1, 0.301]", "[0.3, 0.1]"]),
    ("'0010'", ["'0010'"], ["'10'", "10"]),
    ("2.0", ["2"], ["'2.0'", "float('nan')"]),
]
# Rows of a query with `match=table`: (of the right one, the same, others).
QUERIES = [
    ("[]", ["[]"], ["[(1,)]"]),
    ("[(1, 'a'), (2, 'b')]", ["[(2, 'b'), (1, 'a')]", "[('a', 1), ('b', 2)]"], ["[(1, 'b'), (2, 'a')]", "[(1,)]"]),
]
CITIES = ["Oslo", "Rome", "Bern"]
CHOICES = [
    "B",
    "b",
    "(B)",
    "**B**",
    "Rome",
    "B) Rome",
    "The answer is B",
    r"\boxed{\text{B}}",
    "<think>Or C?</think> B",
]
NO_CHOICES = ["A or B", "B) Bern", "I take B", "C"]


def _shown(text: str) -> str:
    return "a number of 5,000 digits" if text == BIG else "another one" if len(text) == len(BIG) else code(text)


def rows() -> Iterator[tuple[str, str, str, str]]:
    """Raises AssertionError for a verdict that is another one."""
    for expected, same, others in PRINTED:
        assert [same_output(text, expected) for text in same + others] == [True] * len(same) + [False] * len(others)
        yield "`code`, printed", _shown(expected), " ".join(map(_shown, same)), " ".join(map(_shown, others))
    for expected, same, others in RETURNED:
        verdicts = [equal(normal(eval(text)), eval(expected)) for text in same + others]
        assert verdicts == [True] * len(same) + [False] * len(others)
        yield "`code`, returned", code(expected), " ".join(map(code, same)), " ".join(map(code, others))
    for expected, same, others in QUERIES:
        verdicts = [same_table(eval(expected), eval(text), ordered=False) for text in same + others]
        assert verdicts == [True] * len(same) + [False] * len(others)
        yield "`sql`, rows", code(expected), " ".join(map(code, same)), " ".join(map(code, others))
    assert [named_choice(text, CITIES) for text in CHOICES] == ["B"] * len(CHOICES)
    assert "B" not in [named_choice(text, CITIES) for text in NO_CHOICES]
    yield "`choice` of Oslo, Rome, Bern", code("B"), " ".join(map(code, CHOICES)), " ".join(map(code, NO_CHOICES))
