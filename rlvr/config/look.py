"""One look at the data of a task before a launch: what the model reads, what counts as right, what contradicts."""

import math
import re
import statistics
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from rlvr.config import own_code
from rlvr.config.base_model import response_ends
from rlvr.ledger import gguf
from rlvr.records import ArmedTask, GuessedTask, Problem, ReplyingTask, SolvedTask, Split, Task, TaughtTask, reply_of
from rlvr.task.fence import ASKED, Marking, requests
from rlvr.task.math import Math
from rlvr.task.prompt_length import Reader
from rlvr.task.reasoning_gym import ReasoningGym
from rlvr.task.sources import FIRST, Posed, Rows
from rlvr.task.verified import Loaded, Prompted

WORD = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]{3,}")  # no command of LaTeX
PROSE = 5  # words that no final answer has
FEW = 0.05  # share of the right answers that may be prose
DOUBLED = re.compile(r"\\\\[a-zA-Z]{2,}")  # \\boxed, typed as if a backslash had to be escaped
# \n as two characters. Before a lower-case letter it may be a command of LaTeX, such as \neq, but for these words.
ESCAPE = re.compile(r"\\[nt](?![a-z])|\\n(?=(?:answer|please|question|problem|put|solve|think|let|the)\b)")

PROBE_S = 3.0  # for which guesses are judged before a launch
LONGEST = 44  # characters of a guess in a message, and of a right answer that may be the same for many problems
CONSTANTS = ("", "?", "0", "1", "nan", "inf", "True", "None", "[]", "{}", "A", "a", " ".join(map(str, range(100))))
AT_ONCE = 4  # problems whose guesses are judged between two checks of the time
OF_GENERATOR = 3  # problems of a generator of reasoning-gym that are judged, however long it takes
PAID = 0.1  # share of the problems with another right answer of which a guess may be judged right


@dataclass(frozen=True)
class ShownPrompt:
    """A prompt as the model reads it, with the tokens that its tokenizer puts before a text, and its right answer."""

    problem: str  # its id
    prompt: str
    num_tokens: int
    typed: str  # the right answer as it is in the data
    place: str  # of it: file, line and column; "" for a generated problem
    read: str | None  # the right answer as the task reads it; None: only the same text is right


@dataclass(frozen=True)
class FirstLook:
    """notable: sentences for the user of a launch. The other facts are of the first rows, where prompts are shown."""

    notable: tuple[str, ...] = ()
    floors: tuple[str, ...] = ()  # of each benchmark the guess that solves most of its first problems
    prompts: tuple[ShownPrompt, ...] = ()
    num_rows: int = 0  # that were looked at
    text_only: int = 0  # right answers of which only the same text is right
    lengths: tuple[int, float, int] = (0, 0, 0)  # least, median and most tokens of a prompt
    ends: tuple[str, ...] = ()  # tokens that end a response
    marks: tuple[str, ...] = ()  # how a response may mark its answer, in the words of a prompt
    solutions: tuple[int, ...] = ()  # numbers of words of first right answers: of their tokens, or fewer

    def within(self, max_tokens: int | None) -> "FirstLook":
        """The look of a run with this limit of a response."""
        longer = [words for words in self.solutions if max_tokens is not None and words > max_tokens]
        if not longer:
            return self
        sentence = (
            f"rollout.max_tokens={max_tokens}: {len(longer)} of the first {len(self.solutions)} right answers are "
            f"longer (up to {max(longer)} words), and no response can be one of them."
        )
        return replace(self, notable=(*self.notable, sentence))


def look(task: Task, plain: Mapping[str, Any], num_shown: int) -> FirstLook:
    """A look at a task of a frozen config. Raises ValueError if right answers are prose.

    num_shown: prompts to be shown; 0: only what is notable, which loads no tokenizer and parses no answer.
    """
    rows_of_task = task.rows if isinstance(task, Loaded) else Rows({}, {}, ())
    files, notable = rows_of_task.first, [*rows_of_task.repeated, *_escapes(plain)]
    for file, rows in files.items():
        notable += [
            *(_prose(file, rows, plain["task"]) if isinstance(task, Math) else ()),
            *_requests(task, file, rows),
        ]
    node: Mapping[str, Any] = plain.get("policy") or plain["model"] or {}
    path = None if node.get("path") is None else gguf.as_directory(str(node["path"]))
    reader = Reader(path, bool(node.get("chat")), node.get("system"))
    reader = task.prompt_limit().reader if isinstance(task, Prompted) else reader
    of_turns = response_ends(reader.path, chat=True) if reader.path else []
    ends = of_turns if reader.chat or not reader.path else response_ends(reader.path, chat=False)
    notable += _with_ends(files, of_turns)  # without `chat` too: prompts may be turns already
    first: Sequence[Posed] = next(iter(files.values()), ())
    problems = [posed.problem for posed in first] or _generated(task, "test" if plain.get("policy") else "train")
    read_first = [posed.problem for rows in files.values() for posed in rows]
    floors, paid = _guessed(task, read_first or problems)
    notable += paid
    solutions = tuple(len(text.split()) for problem in problems for text in _solution(task, problem))
    brief = FirstLook(tuple(notable), floors, solutions=solutions)
    if not num_shown:
        return brief
    of_prompts = _shown(task, problems, first, reader, num_shown)
    ends = ends if reader.path else [task.end_word] if isinstance(task, TaughtTask) else []
    marks = tuple(ASKED[mark][0] for mark in task.reads) if isinstance(task, Prompted) else ()
    return replace(brief, **of_prompts, num_rows=len(problems), ends=tuple(ends), marks=marks)


def _shown(
    task: Task, problems: Sequence[Problem], first: Sequence[Posed], reader: Reader, num_shown: int
) -> dict[str, Any]:
    """The fields of FirstLook on prompts and right answers. first: the rows that the problems are from, if any."""
    read: list[str | None] = [str(problem.answer) for problem in problems]
    if isinstance(task, Loaded):
        read = task.as_judged(problems)
    if isinstance(task, Math):  # a parser makes products of the letters of words
        read = [None if _is_prose(problem) else text for problem, text in zip(problems, read, strict=True)]
    before, lengths = reader.lengths([problem.prompt for problem in problems])
    shown = list[ShownPrompt]()
    for index, problem in enumerate(problems[:num_shown]):
        typed, place = str(problem.answer), ""
        if first:
            typed, place = first[index].answer.shown, f"{first[index].answer.place}, {first[index].answer.column}"
        shown.append(
            ShownPrompt(problem.id, before + reader.text(problem.prompt), lengths[index], typed, place, read[index])
        )
    of_lengths = (min(lengths), statistics.median(lengths), max(lengths)) if lengths else (0, 0, 0)
    return {"prompts": tuple(shown), "text_only": read.count(None), "lengths": of_lengths}


def _with_ends(files: Mapping[str, Sequence[Posed]], ends: Sequence[str]) -> list[str]:
    """A sentence for each text of a token that ends a response, such as HTML's </s>, and file with it in prompts."""
    numbers = {(file, end): sum(end in p.problem.prompt for p in rows) for file, rows in files.items() for end in ends}
    return [
        f"{file}: {number} of the first {len(files[file])} prompts contain {end}, which the model reads as the end of "
        "a response or turn. Write it otherwise, or if these are turns of a chat: give the problem alone, with "
        "model.chat=true."
        for (file, end), number in numbers.items()
        if number
    ]


def _generated(task: Task, split: Split, most: int = FIRST) -> list[Problem]:
    size = task.size(split)
    return [task.problem(split, i) for i in range(most if size is None else min(most, size))]


def _guessed(task: Task, problems: Sequence[Problem]) -> tuple[tuple[str, ...], list[str]]:
    """(for each benchmark what the best of the same guesses for all problems solves, a sentence on each that solves
    problems whose right answer is another one). Raises ValueError for a generator of reasoning-gym that pays most.
    """
    if isinstance(task, ArmedTask):  # one prompt: its right answers are constants
        return (), []
    # By benchmark and guess: (the problem, whether it is judged right, whether it is the right answer).
    judged: dict[str, dict[str, list[tuple[str, bool, bool]]]] = {}
    try:
        for problem, guess, is_right, is_its_own in _judged_guesses(task, problems):
            of_guess = judged.setdefault(problem.source or task.name, {}).setdefault(guess, [])
            of_guess.append((problem.id, is_right, is_its_own))
    except Exception as error:  # noqa: BLE001 - whatever a task of the user raises, in a run too
        fault = f"{type(error).__name__}: {error}{own_code.line_of(error)}"
        method = "reward or reply" if isinstance(task, ReplyingTask) else "reward"
        return (), [f"task {task.name}: its {method} raises {fault}, for an answer such as '?'."]
    floors, sentences = list[str](), list[str]()
    for source, guesses in judged.items():
        best = max(guesses, key=lambda guess: sum(is_right for _, is_right, _ in guesses[guess]))
        solved = sum(is_right for _, is_right, _ in guesses[best])
        shown = f", {_brief(best)}" if solved else ""
        floors.append(f"{source}: a constant answer solves at most {solved} of {len(guesses[best])} problems{shown}.")
        others = {guess: [row for row in rows if not row[2]] for guess, rows in guesses.items()}
        paid = {guess: [problem for problem, is_right, _ in rows if is_right] for guess, rows in others.items()}
        worst = max(paid, key=lambda guess: len(paid[guess]) / max(1, len(others[guess])))
        share = len(paid[worst]) / max(1, len(others[worst]))
        sentence = (
            f"{source}: the answer {_brief(worst)} is judged right in {len(paid[worst])} of {len(others[worst])} "
            f"problems whose right answer is another one, such as {', '.join(paid[worst][:1])}"
        )
        if isinstance(task, ReasoningGym) and share > 0.5:
            raise ValueError(f"task.generators.{sentence}. Nothing can be learned from it: drop the generator.")
        if share > (0 if isinstance(task, GuessedTask) else PAID):
            sentences.append(f"{sentence}: that is what a policy would learn. Correct the tests, or the verifier.")
    return tuple(floors), sentences


def _judged_guesses(task: Task, problems: Sequence[Problem]) -> Iterator[tuple[Problem, str, bool, bool]]:
    """(problem, guess, whether it is judged right, whether it is the right answer) of first problems, for PROBE_S."""
    end = time.monotonic() + PROBE_S
    if isinstance(task, ReplyingTask) and problems:
        reply_of(task, problems[0], "?")
    if isinstance(task, ReasoningGym):  # each of its generators, in turn
        problems, end = _generated(task, "train", OF_GENERATOR * len(task.knobs)), math.inf
    common = [text for text, _ in Counter(text for problem in problems for text in _right(problem)).most_common(1)]
    for first in range(0, len(problems), AT_ONCE):
        asked = [
            (problem, guess, text)
            for problem in problems[first : first + AT_ONCE]
            for guess, text in _guesses(task, problem, common).items()
        ]
        own = [
            not {*_right(problem), *_solution(task, problem)}.isdisjoint((guess.lower(), text.lower()))
            for problem, guess, text in asked
        ]
        if type(task).reward is Math.reward:  # its processes take seconds to start, and its tests have such answers
            is_right = own
        else:
            is_right = [reward.correct for reward in task.reward([(problem, text) for problem, _, text in asked])]
        for (problem, guess, _), right, is_its_own in zip(asked, is_right, own, strict=True):
            yield problem, guess, right, is_its_own
        if time.monotonic() > end:
            return


def _guesses(task: Task, problem: Problem, common: Sequence[str]) -> Mapping[str, str]:
    """Responses that need no look at the problem, by the answer that they give. common: the commonest right answer."""
    if isinstance(task, GuessedTask):
        return task.guesses(problem)
    constants = dict.fromkeys((*CONSTANTS, *common))
    if isinstance(task, ReasoningGym):
        return {constant: task.as_response(constant) for constant in constants}
    if isinstance(task, TaughtTask):
        return {word: f"{word} {task.end_word}".strip() for word in ("", *task.vocabulary[: len(CONSTANTS)])}
    if isinstance(task, Prompted):
        mark = ASKED[task.reads[0]][1] if task.reads else "%s"
        return {constant: mark % constant for constant in constants}
    all_marks = "\n".join(ASKED[mark][1] for mark in ("tag", "box", "answer"))
    return {c: c for c in constants} | {f"{c}, marked": all_marks.replace("%s", c) for c in constants}


def _right(problem: Problem) -> list[str]:
    """The short texts of a right answer, or of its parts, in lower case."""
    answer: object = problem.answer
    parts = [*cast("Mapping[str, object]", answer).values()] if isinstance(answer, Mapping) else [answer]
    return [str(part).lower() for part in parts if isinstance(part, str | int | float) and len(str(part)) <= LONGEST]


def _solution(task: Task, problem: Problem) -> list[str]:
    if not isinstance(task, SolvedTask):
        return []
    try:
        return [task.solution(problem).lower()]
    except ValueError:  # a generator that stores none
        return []


def _brief(guess: str) -> str:
    return repr(guess if len(guess) <= LONGEST else f"{guess[:LONGEST]}...")


def _prose(file: str, rows: Sequence[Posed], knobs: Mapping[str, Any]) -> list[str]:
    """A sentence if right answers are prose, which mathematics cannot equal. Raises ValueError if most are, in a column
    that the user has not named.
    """
    prose = [posed for posed in rows if _is_prose(posed.problem)]
    if len(prose) <= FEW * len(rows):
        return []
    cell = prose[0].answer
    sentence = (
        f"{file}: {len(prose)} of the first {len(rows)} right answers are prose, and only the same text is right, such "
        f"as {cell.shown} ({cell.place}, column {cell.column}). If the final answer is in another column: "
        f"task.answer_field=NAME, of {', '.join(prose[0].row)}."
    )
    if knobs.get("answer_field") is None and 2 * len(prose) > len(rows):
        raise ValueError(f"{sentence} If it is in this one: task.answer_field={cell.column}")
    return [sentence]


def _is_prose(problem: Problem) -> bool:
    return len(WORD.findall(str(problem.answer))) >= PROSE


def _requests(task: Task, file: str, rows: Sequence[Posed]) -> list[str]:
    """A sentence on prompts that ask for a marking that the task does not read, for none, or twice."""
    if not isinstance(task, Prompted) or not task.reads:
        return []
    reads: set[Marking] = {*task.reads}
    of_template = requests(task.template)
    times = Counter[Marking](mark for posed in rows for mark in requests(posed.text))
    of_rows: set[Marking] = {mark for mark, number in times.items() if 2 * number > len(rows)}
    alone = "'task.template=\"{problem}\"'" if "{choices}" not in task.template else "a task.template without it"
    asks = f"{file}: most problems ask for the answer {_words(of_rows)}"
    if of_rows and not of_rows & reads:
        return [f"{asks}, and it is read {_words(reads)}. Type task.marked={min(of_rows)} {alone}."]
    if of_rows and of_template:
        return [f"{asks}, and task.template asks for it {_words(of_template)}. Type {alone}."]
    if of_template and not of_template & reads:
        what = f"task.template asks for the answer {_words(of_template)}, and it is read {_words(reads)}."
        return [f"{what} Type task.marked={min(of_template)}."]
    if not of_rows | of_template and "whole" not in reads:
        return [
            f"{file}: the answer is read {_words(reads)}, and neither most problems nor task.template ask for that."
        ]
    return []


def _words(marks: Collection[Marking]) -> str:
    return " or ".join(words for mark, (words, _) in ASKED.items() if mark in marks)


def _escapes(plain: Mapping[str, Any]) -> list[str]:
    """A sentence for each typed text with an escape of another language, which the model reads character by character:
    a line break as two, a command of LaTeX with two backslashes.
    """
    section = "policy" if plain.get("policy") else "model"
    node: Mapping[str, Any] = plain[section] or {}
    texts: dict[str, object] = {"task.template": plain["task"].get("template"), f"{section}.system": node.get("system")}
    sentences = list[str]()
    for key, text in texts.items():
        if isinstance(text, str) and (escape := ESCAPE.search(text)):
            sentences.append(
                f"{key} has {escape[0][:2]} as two characters, which the model reads so. In bash a line break is typed "
                f"within $'...': $'{key}=\"...\\n...\"'."
            )
        if isinstance(text, str) and (doubled := DOUBLED.search(text)):
            sentences.append(
                f"{key} has {doubled[0]} with two backslashes, which the model reads so. Within '...' type one: "
                f"{doubled[0][1:]}."
            )
    return sentences
