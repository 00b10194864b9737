"""Questions and short answers of any data set, spelled in characters and judged by equal text.

The vocabulary is closed: a policy of a few hundred thousand parameters can be taught from the training rows and trained
on a laptop, whereas `rlvr.task.math` and `rlvr.task.choice` require a language model.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rlvr.records import Outcome, Problem, Reward, binary
from rlvr.task.characters import END_WORD, VOCABULARY, read_response, spell
from rlvr.task.math import ANSWER_FIELDS
from rlvr.task.procedural import Dice, Share
from rlvr.task.sources import PROMPT_FIELDS, Column, RowValue, Sources
from rlvr.task.verified import Loaded

REMEDY = "For other texts take a language model: task=math or task=choice, with model=hf model.path=..."


@dataclass(kw_only=True, eq=False)
class Spelled(Loaded):
    """Problems of a training set and of one or several benchmarks. Other knobs: `rlvr.task.verified`.

    prompt_field, answer_field: columns; None: the first of the usual names that exists.
    mistakes: share of the demonstrations that have the answer of a training problem drawn at random.
    max_tokens: default limit of a response. Each character is a token, and so is the end word.
    """

    train: Sources
    prompt_field: str | None
    answer_field: str | None
    mistakes: Share

    name = "spelled"
    end_word = END_WORD
    vocabulary = VOCABULARY

    def __post_init__(self) -> None:
        columns = [
            Column("prompt_field", self.prompt_field, PROMPT_FIELDS),
            Column("answer_field", self.answer_field, ANSWER_FIELDS),
        ]

        too_long = set[tuple[int, str, str]]()  # tokens, answer and place

        def make(question: RowValue, answer: RowValue) -> tuple[str, str]:
            text = " ".join(str(answer.answer()).split())
            num_tokens = len(spell(text, REMEDY).split()) + 1
            if num_tokens > self.max_tokens:
                too_long.add((num_tokens, text, answer.place))
            return spell(question.prompt().strip(), REMEDY), text

        self.load(columns, make)
        if too_long:
            num_tokens, text, place = max(too_long)
            raise ValueError(
                f"{place}: the answer {text[:60]!r} has {len(text)} characters, the most of {len(too_long)} too long "
                f"ones, and a response at most {self.max_tokens} with its end. Pass task.max_tokens={num_tokens}."
            )
        splits = self._problems
        held_out = {problem.prompt for split in ("validation", "test") for problem in splits[split]}
        self._taught = [problem for problem in splits["train"] if problem.prompt not in held_out]
        if not self._taught:
            raise ValueError("Every problem of task.train is also in task.test: nothing is left to learn from.")

    @property
    def longest_prompt(self) -> str:
        """Of all splits, by words: checked before launch."""
        prompts = (problem.prompt for split in self._problems.values() for problem in split)
        return max(prompts, key=lambda prompt: len(prompt.split()))

    @property
    def identity(self) -> dict[str, Any]:
        """What base policies depend on (`rlvr.ledger.stages.task_identity`)."""
        taught = json.dumps([[problem.prompt, problem.answer] for problem in self._taught])
        return {"mistakes": self.mistakes, "taught": hashlib.sha256(taught.encode()).hexdigest()}

    def solution(self, problem: Problem) -> str:
        """The right answer as a response."""
        return f"{spell(problem.answer, REMEDY)} {END_WORD}"

    def demonstration(self, index: int) -> tuple[str, str]:
        """(prompt, response) of a training problem drawn at random, never a held-out one."""
        dice = Dice(f"demonstration {index}")
        shown = dice.choose(self._taught)
        answered = dice.choose(self._taught) if dice.share() < self.mistakes else shown
        return shown.prompt, self.solution(answered)

    def answer(self, problem: Problem, response: str) -> str | None:
        """The text of a response, white space normalised; None if it has no end word or is not spelled."""
        text = read_response(response)
        return None if text is None else " ".join(text.split())

    def reward(self, answers: Sequence[tuple[Problem, str]]) -> list[Reward]:
        """1 if the response is the right answer, white space aside, else 0. Unparsable: no end word, or not spelled."""
        return [binary(self._judged(problem, text)) for problem, text in answers]

    def _judged(self, problem: Problem, response: str) -> Outcome:
        answer = self.answer(problem, response)
        if answer is None:
            return "unparsable"
        return "correct" if answer == problem.answer else "wrong"
