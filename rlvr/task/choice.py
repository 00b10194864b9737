"""Multiple choice, from any data set of the usual forms (MMLU, MMLU-Pro, GPQA, ARC): the letter is the answer."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlvr.records import Outcome, Problem, Reward, binary
from rlvr.task.fence import Marking, asking, marked
from rlvr.task.procedural import Dice
from rlvr.task.sources import Column, RowValue, check_template
from rlvr.task.verified import Prompted

QUESTION_FIELDS = ("question", "Question", "prompt", "problem", "question_stem")
CHOICES_FIELDS = ("choices", "options")
ANSWER_FIELDS = ("answer", "answerKey", "answer_key", "Correct Answer", "correct_answer", "label")
INCORRECT_FIELDS = [(f"Incorrect Answer {i}", f"incorrect_answer_{i}") for i in (1, 2, 3)]  # GPQA
LETTERS = "ABCDEFGHIJKLMNOP"


@dataclass(kw_only=True, eq=False)
class Choice(Prompted):
    """Questions with a few choices, of which one is right. Other knobs: `rlvr.task.verified`.

    A row has its choices as a list, as {"text": [...], "label": [...]}, as columns A, B, ..., or as columns of the
    right answer and of the wrong ones (GPQA). The right choice is identified by its letter, its number from 0, or its
    text. Null choices are left out of the prompt, which counts the others A, B, ...; the answer's letter and number are
    those of the row.
    template: the prompt, with {problem} and {choices}, which becomes lines such as `A) Paris`.
    question_field, choices_field, answer_field: columns, "a.b" for a nested one; None: the first of the usual names
        that exists.
    marked: how a response marks its answer, and how the prompt asks for it (`rlvr.task.math`). None: in any way.
    shuffle: order the choices by a hash of the question. Choices that have no order in the data (GPQA) always are.
    """

    question_field: str | None
    choices_field: str | None
    answer_field: str | None
    shuffle: bool
    marked: Marking | None = None

    name = "choice"

    def __post_init__(self) -> None:
        check_template(self.template)
        if "{choices}" not in self.template:
            raise ValueError(f"task.template={self.template!r} must contain {{choices}}, where the choices go.")
        self.template = asking(self.template, self.marked)
        columns = [
            Column("question_field", self.question_field, QUESTION_FIELDS),
            Column("answer_field", self.answer_field, ANSWER_FIELDS),
            Column("choices_field", self.choices_field, CHOICES_FIELDS, optional=True),
            *(Column("choices_field", None, names, optional=True) for names in INCORRECT_FIELDS),
            *(Column("choices_field", None, (letter, letter.lower()), optional=True) for letter in LETTERS),
        ]
        self.load(columns, self._posed)

    def _posed(
        self, question: RowValue, answer: RowValue, choices_cell: RowValue, *other_columns: RowValue
    ) -> tuple[str, dict[str, Any]]:
        text = question.prompt()
        choices, right, ordered = _choices(answer, choices_cell, other_columns)
        if self.shuffle or not ordered:
            order = Dice(f"choices of {text}").sample(range(len(choices)), len(choices))
            choices, right = [choices[i] for i in order], order.index(right)
        lines = "\n".join(f"{letter}) {choice}" for letter, choice in zip(LETTERS, choices, strict=False))
        prompt = self.template.replace("{choices}", lines).replace("{problem}", text)
        return prompt, {"letter": LETTERS[right], "choices": choices}

    @property
    def reads(self) -> tuple[Marking, ...]:
        return (self.marked,) if self.marked else ("box", "tag", "answer", "whole")

    def as_judged(self, problems: Sequence[Problem]) -> list[str | None]:
        answers = [problem.answer for problem in problems]
        return [f"{a['letter']}) {a['choices'][LETTERS.index(a['letter'])]}" for a in answers]

    def answer(self, problem: Problem, response: str) -> str | None:
        """The letter of the choice that the response names; None if it names none."""
        return named_choice(response, problem.answer["choices"], self.marked)

    def reward(self, answers: Sequence[tuple[Problem, str]]) -> list[Reward]:
        """1 where the response names the right choice, else 0. Unparsable: it names none, or several."""
        return [binary(self._judged(problem, text)) for problem, text in answers]

    def _judged(self, problem: Problem, response: str) -> Outcome:
        letter = self.answer(problem, response)
        if letter is None:
            return "unparsable"
        return "correct" if letter == problem.answer["letter"] else "wrong"


def _choices(
    answer: RowValue, choices_cell: RowValue, other_columns: Sequence[RowValue]
) -> tuple[list[str], int, bool]:
    """(choices, index of the right one, whether the data give them an order). Raises ValueError with the row's place.

    other_columns: the cells of INCORRECT_FIELDS, then those of the columns A, B, ...
    """
    incorrect, lettered = other_columns[: len(INCORRECT_FIELDS)], other_columns[len(INCORRECT_FIELDS) :]
    if wrong := [str(cell.value).strip() for cell in incorrect if cell.value is not None]:
        return [answer.text().strip(), *wrong], 0, False
    labels: Sequence[Any] = LETTERS
    value = choices_cell.value
    if isinstance(value, Mapping) and "text" in value:
        value, labels = value["text"], value.get("label") or LETTERS
    if value is None:
        last = max((i for i, cell in enumerate(lettered) if cell.value is not None), default=-1)
        value = [cell.value for cell in lettered[: last + 1]]
    if not isinstance(value, list | tuple) or not 2 <= sum(choice is not None for choice in value) <= len(LETTERS):
        raise choices_cell.refuse(f"2 to {len(LETTERS)} choices: a list, columns A, B, ..., or incorrect answers")
    texts = [None if choice is None else str(choice).strip() for choice in value]
    right = _right_index(answer, texts, [str(label) for label in labels[: len(texts)]])
    # Empty ones are left out only now: the answer counts them.
    present = [i for i, text in enumerate(texts) if text is not None]
    return [text for text in texts if text is not None], present.index(right), True


def _right_index(answer: RowValue, choices: Sequence[str | None], labels: Sequence[str]) -> int:
    """Index of the choice that the answer column names: by its label, by its number from 0, or by its text.

    choices: None where the row has none under this label and number.
    """
    index = _named_index(answer, choices, labels)
    if index is not None and choices[index] is not None:
        return index
    named = ", ".join(label for label, choice in zip(labels, choices, strict=False) if choice is not None)
    reason = "" if index is None else "; the one that it names is null"
    raise answer.refuse(f"one of {named}, a number from 0 to {len(choices) - 1}, or the text of a choice{reason}")


def _named_index(answer: RowValue, choices: Sequence[str | None], labels: Sequence[str]) -> int | None:
    """The index that the answer column names, whether or not there is a choice; None if it names none, or several."""
    value = answer.value[0] if isinstance(answer.value, list) and len(answer.value) == 1 else answer.value
    name = str(value).strip()
    if name in labels:  # which may be numbers
        return labels.index(name)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(choices):
        return value
    matches = {i for i, choice in enumerate(choices) if name in (choice, str(i))}
    return matches.pop() if len(matches) == 1 else None


# An answer without a box or tag: a line that contains `Answer: B` or `the answer is (B) Paris`.
ANSWER_IS = r"(?i:answer)[\s*]*(?::|(?i:is)\b\s*:?)[\s*]*"
ANSWER_LINE = re.compile(rf"^.*{ANSWER_IS}(.*)$", re.MULTILINE)
PREFIX = re.compile(rf"^(?i:(?:the )?(?:final |correct )?){ANSWER_IS}")
LETTER_AND_TEXT = re.compile(r"(?:(?i:option|choice) )?\(?([A-Pa-p])(?:[).:]+\s*(.*)| \((.*)\))?")
MARKS = "*$` "
THOUGHT_END = "</think>"  # of models that reason, before what they say
WRAPPED = re.compile(r"\\(?:text|textbf|mathrm|mathbf)\s*\{([^{}]*)\}")


def named_choice(response: str, choices: Sequence[str], marking: Marking | None = None) -> str | None:
    """The letter of the choice that a response names; None if it names none.

    Without a marking it is read from the last \\boxed{...}; without one from the last <answer> tag, else from the last
    line with an answer; else the response, but for a thought before it, is nothing but a choice.
    """
    markings: tuple[Marking, ...] = (marking,) if marking else ("box", "tag")
    for way in markings:
        if (answer := marked(response, way)) is not None:
            return _letter(answer, choices)
    if marking:
        return None
    for line_end in reversed(ANSWER_LINE.findall(response)):
        if letter := _letter(line_end, choices):
            return letter
    return _letter(response.rpartition(THOUGHT_END)[2], choices)


def _letter(text: str, choices: Sequence[str]) -> str | None:
    """The letter of a choice, from the letter (bare, `(B)`, `B.` or `Option B`), the letter and the choice's text
    (`B. London`, `B (London)`), or the text."""
    letters = LETTERS[: len(choices)]
    for form in (_single_spaced, _without_decoration):
        answer, texts = form(text), [form(choice) for choice in choices]
        if texts.count(answer) == 1 and answer not in letters:
            return letters[texts.index(answer)]
        match = LETTER_AND_TEXT.fullmatch(answer)
        index = letters.find(match[1].upper()) if match else -1
        if match and index >= 0 and (match[2] or match[3]) in (None, "", texts[index]):
            return letters[index]
    return None


def _single_spaced(text: str) -> str:
    return " ".join(text.split())


def _without_decoration(text: str) -> str:
    """The text without `Answer:`, dollar signs, asterisks, backticks, font commands and a full stop at the end."""
    text = WRAPPED.sub(r"\1", re.sub(r"\\[ ,;]|~", " ", text))
    text = PREFIX.sub("", text.strip().strip(MARKS)).strip(MARKS)
    return _single_spaced(text.rstrip(".").strip(MARKS))  # `**B.**` and `**B**.`
