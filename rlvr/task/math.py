"""Mathematics with known final answers, from any data set; math-verify judges \\boxed{...} in child processes."""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from rlvr.records import Outcome, Problem, Reward, binary
from rlvr.task.fence import Marking, asking, last_boxed, marked
from rlvr.task.sources import PROMPT_FIELDS, Column, RowValue, check_template
from rlvr.task.verified import Verified
from rlvr.task.verify.math_notation import plain, without_thousands
from rlvr.task.verify.math_syntax import fault
from rlvr.task.verify.math_text import inside, squeezed

log = logging.getLogger("rlvr")

ANSWER_FIELDS = ("answer", "final_answer", "solution", "reward_model.ground_truth")


@dataclass(kw_only=True, eq=False)
class Math(Verified):
    """Problems of a training set and of one or several benchmarks. Other knobs: `rlvr.task.verified`.

    prompt_field, answer_field: columns, "a.b" for a nested one; None: the first of the usual names that exists.
    tolerance_field: column with the largest allowed distance of a number from the right one (OlympiadBench: error);
        null in a row: the number must be equal. None: no column, all numbers must be equal.
    boxed: only the last \\boxed{...} of a response is its answer, or without one the last <answer>...</answer>; if
        False, math-verify searches the whole response, and takes the last number of a truncated text as its answer.
    marked: how a response marks its answer, and how the prompt asks for it: in a box, a tag, behind "Answer:", as its
        last number, or as the whole of it. None: as `boxed` says.
    unevaluated: the verdict on an answer of the right value with operators left to evaluate that the right answer does
        not have (sums, integrals, limits, binomials, factorials and the like).
    """

    prompt_field: str | None
    answer_field: str | None
    boxed: bool
    marked: Marking | None = None
    unevaluated: Literal["wrong", "right"] = "wrong"
    tolerance_field: str | None = None

    name = "math"

    def __post_init__(self) -> None:
        check_template(self.template)
        if self.marked and not self.boxed:
            raise ValueError(f"task.boxed=false has no effect with task.marked={self.marked}. Drop one of them.")
        self.template = asking(self.template, self.marked)
        self._reported = set[str]()  # ids of the problems whose right answers were reported as unreadable
        self._tolerances: dict[str, float] = {}  # by prompt
        columns = [
            Column("prompt_field", self.prompt_field, PROMPT_FIELDS),
            Column("answer_field", self.answer_field, ANSWER_FIELDS),
            Column("tolerance_field", None, (self.tolerance_field or "",), optional=True),
        ]

        def make(problem: RowValue, answer: RowValue, tolerance: RowValue) -> tuple[str, str]:
            prompt = self.template.replace("{problem}", problem.prompt())
            if tolerance.value is not None:
                self._tolerances[prompt] = _tolerance(tolerance)
            return prompt, _answer(answer)

        self.start_pool("math_answer")
        self.load(columns, make)
        if self.tolerance_field is not None and not self._tolerances:
            raise ValueError(
                f"task.tolerance_field={self.tolerance_field}: no row of task.train or task.test has a tolerance in "
                "such a column. Correct the name, or drop it."
            )

    def reward(self, answers: Sequence[tuple[Problem, str]]) -> list[Reward]:
        """1 where math-verify finds the response's answer equal to the right one, else 0, with the reason."""
        texts = [final_answer(text, self.marked) if self.boxed else text for _, text in answers]
        replies = self.replies(
            [
                None if text is None else self._request(problem, text)
                for (problem, _), text in zip(answers, texts, strict=True)
            ]
        )
        unreadable = [problem for (problem, _), reply in zip(answers, replies, strict=True) if "unreadable" in reply]
        self._warn_once(unreadable)
        return [self._reward(reply["outcome"]) for reply in replies]

    @property
    def reads(self) -> tuple[Marking, ...]:
        if self.marked:
            return (self.marked,)
        return ("box", "tag") if self.boxed else ()

    def as_judged(self, problems: Sequence[Problem]) -> list[str | None]:
        replies = self.replies([{"gold": problem.answer} for problem in problems])
        return [reply.get("parsed") for reply in replies]

    def _request(self, problem: Problem, text: str) -> dict[str, str | float]:
        tolerance = self._tolerances.get(problem.prompt)
        return {"gold": problem.answer, "answer": text, "problem": problem.prompt} | (
            {} if tolerance is None else {"tolerance": tolerance}
        )

    def answer(self, problem: Problem, response: str) -> str | None:
        """The final answer without white space, numbers in the form that is compared; None if `boxed` is False or the
        response has no final answer."""
        text = final_answer(response, self.marked) if self.boxed else None
        return None if text is None else squeezed(without_thousands(plain(inside(text)))).replace(r"\dfrac", r"\frac")

    def _reward(self, outcome: Outcome) -> Reward:
        if outcome == "unevaluated" and self.unevaluated == "right":
            outcome = "correct"
        return binary(outcome)

    def _warn_once(self, unreadable: Iterable[Problem]) -> None:
        """Log a warning for each of these problems that has not had one."""
        for problem in unreadable:
            if problem.id not in self._reported:
                self._reported.add(problem.id)
                log.warning(
                    "The right answer of problem %s, %r, cannot be read as mathematics: only the same text is right.",
                    problem.id,
                    problem.answer,
                )


def final_answer(text: str, marking: Marking | None = None) -> str | None:
    r"""The answer of a response, in a box. Without a marking its last \boxed{...}, or else its last <answer> tag."""
    boxed = last_boxed(text) if marking is None else None
    if boxed is not None:
        return boxed
    answer = marked(text, marking or "tag")
    return None if answer is None else f"\\boxed{{{answer.strip()}}}"


def _tolerance(cell: RowValue) -> float:
    """The largest allowed distance from the right number. The cell holds a number or its text, such as "1e-1"."""
    try:
        tolerance = float(cell.value)
    except (TypeError, ValueError):
        raise cell.refuse("a number, or null") from None
    if not 0 <= tolerance < float("inf"):
        raise cell.refuse("a number of 0 or more, or null")
    return tolerance


def _answer(cell: RowValue) -> str:
    """The final answer as text. Of a worked solution in the style of GSM8K: the text after the last ####."""
    text = str(cell.answer())
    if "####" in text:
        text = without_thousands(text.rpartition("####")[2])
    answer = last_boxed(text) or text.strip()
    if defect := fault(answer):
        raise cell.refuse(f"mathematics or a sentence: this has {defect}")
    return answer
