"""Numbers on the texts of responses. A bundle stores those in `stored` for every evaluation, in place of the texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial

from rlvr.metrics import distinct_n

TextsOfProblems = Mapping[str, list[tuple[str, str]]]  # by problem, (response, outcome) of every sample
RIGHT_ANSWERS, DISTINCT = "right answers", "distinct-"
STYLES = "styles"  # and the task whose responses name their style in the first word


def stored(task: str) -> tuple[str, ...]:
    """The names of the numbers that a bundle stores for a run on this task."""
    return (f"{DISTINCT}3", f"{DISTINCT}4", RIGHT_ANSWERS, *((STYLES,) if task == STYLES else ()))


def of_texts(name: str, texts: TextsOfProblems) -> dict[str, float]:
    """The numbers of this name, on the responses to one benchmark. `distinct-N`: by problem, rlvr.metrics.distinct_n of
    the words of its responses; `right answers`: by problem, how many different responses are right; `styles`: by first
    word, how many responses are right."""
    if name == STYLES:
        right = (text for answers in texts.values() for text, outcome in answers if outcome == "correct")
        return dict(Counter[str](text.partition(" ")[0] for text in right))
    of_problem: Callable[[list[tuple[str, str]]], float] = (
        _right_answers if name == RIGHT_ANSWERS else partial(_distinct, n=int(name.removeprefix(DISTINCT)))
    )
    return {problem: of_problem(answers) for problem, answers in texts.items()}


def _right_answers(answers: list[tuple[str, str]]) -> float:
    return float(len({text for text, outcome in answers if outcome == "correct"}))


def _distinct(answers: list[tuple[str, str]], n: int) -> float:
    return distinct_n([text.split() for text, _ in answers], n)
