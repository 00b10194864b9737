"""The generators of the library reasoning-gym, by name, judged by their own verifiers (`pip install rlvr[reasoning]`).

Questions are made and answers judged in a sandbox: some of the library's verifiers evaluate what they read, and some of
its generators make other questions in every process, but for the sandbox's, where Python's hashes have a fixed seed.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Interval
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from rlvr.records import Problem, Reward, Split
from rlvr.task.characters import END_WORD, VOCABULARY, read_response, spell
from rlvr.task.countdown import parse
from rlvr.task.fence import TAGGED
from rlvr.task.procedural import Dice, Procedural
from rlvr.task.sources import check_template
from rlvr.task.verify.pool import Pool
from rlvr.task.verify.sandbox import Sandbox

HELD_OUT = 8  # one question in so many
SHARED_SEED = 496  # items of a stream that come from one seed of the library, in parts of
AT_ONCE = 8
MAKE_TIMEOUT_S = 300.0  # of a check or of AT_ONCE questions, on however crowded a machine: nothing hostile is read
# Generators whose verifiers give the full score to any solution, and whose solutions the text tells apart. Not here:
# those of one answer that may be written in many ways (integrals, conclusions of propositional logic) and puzzles that
# are made to have one solution (sudoku, kakurasu).
ANY_SOLUTION = {
    "countdown",
    "cryptarithm",
    "graph_color",
    "n_queens",
    "palindrome_generation",
    "puzzle24",
    "word_ladder",
}
ANY_MOVES = {"boxnet", "jugs", "rubiks_cube", "rush_hour", "sokoban"}
ANY_FEWEST_MOVES = {"knight_swap", "quantum_lock", "shortest_path", "tower_of_hanoi"}
SEVERAL_ANSWERS = ANY_SOLUTION | ANY_MOVES | ANY_FEWEST_MOVES


@dataclass(frozen=True)
class Item:
    """A question, and where it comes from: two of the same text are one."""

    question: str
    place: tuple[str, int, int] = field(compare=False)  # generator, seed, index


class ReasoningGym(Procedural[Item]):
    """Questions of one or several generators in turn: an endless train stream and distinct held-out ones of each.

    generators: a name, a list of names, or {name: {knob: value}} with the generator's own knobs.
    template: the prompt, with {problem} where the question goes; what stands between the last <answer> and </answer> of
        a response is its answer.
    spelled: prompts are the bare questions, spelled in characters, and the whole response is the answer, spelled too: a
        closed vocabulary, for base policies that are taught from nothing. template is then not used.
    binary: rewards are 0 and 1, 1 for a full score; else the verifier's own scores, which may lie between.
    test_problems, validation_problems: of each generator. seed: which questions; not the seed of a run. A hash of the
        question gives one in eight to the held-out side. The other knobs: `rlvr.task.procedural.Procedural`.
    max_tokens: default limit of a response. workers, timeout_s, memory_gb: verifying processes, wall-clock limit of an
        answer, address space of a process.
    """

    name = "reasoning_gym"
    source = "reasoning_gym"
    end_word = END_WORD
    vocabulary = VOCABULARY

    def __init__(
        self,
        *,
        generators: str | Sequence[str] | Mapping[str, Mapping[str, Any]],
        template: str,
        spelled: bool,
        binary: bool,
        test_problems: PositiveInt,
        validation_problems: NonNegativeInt | None,
        train_problems: PositiveInt | None,
        mistakes: Annotated[float, Interval(ge=0, lt=1)],
        seed: NonNegativeInt,
        max_tokens: PositiveInt,
        workers: PositiveInt,
        timeout_s: PositiveFloat,
        memory_gb: PositiveFloat,
    ) -> None:
        super().__init__(
            test_problems=test_problems,
            validation_problems=validation_problems,
            train_problems=train_problems,
            mistakes=mistakes,
            num_items=float("inf"),
            share=1 / HELD_OUT,
            kind="questions",
        )
        check_template(template)
        self.knobs = {name: json.dumps(knobs, sort_keys=True) for name, knobs in _named(generators).items()}
        self.template, self.spelled, self.seed, self.max_tokens = template, spelled, seed, max_tokens
        self._binary = binary
        sandbox = Sandbox(shown=(_library(),))
        sandbox.check()
        limits = {"workers": workers, "timeout_s": timeout_s, "memory_gb": memory_gb}
        self._pool = Pool("rlvr.task.verify.reasoning", **limits, sandbox=sandbox)
        self._made = functools.lru_cache(maxsize=4096)(self._make)
        self._check_generators()

    @property
    def graded(self) -> bool:
        """Whether there are rewards other than 0 and 1."""
        return not self._binary

    @property
    def several_answers(self) -> bool:
        """Whether a generator is among SEVERAL_ANSWERS."""
        return not SEVERAL_ANSWERS.isdisjoint(self.knobs)

    @property
    def identity(self) -> dict[str, Any]:
        """What base policies depend on (`rlvr.ledger.stages.task_identity`)."""
        knobs = ("knobs", "spelled", "template", "seed", "mistakes")
        return {name: getattr(self, name) for name in knobs}

    def draws(self, stream: str, index: int) -> Iterator[Item]:
        """Generators in turn; a held-out stream names its own."""
        names = list(self.knobs)
        place, turn = divmod(index, len(names))
        generator = names[turn]
        if " " in stream:
            place, generator = index, stream.partition(" ")[2]
        chunk, within = divmod(place, SHARED_SEED)
        for attempt in count():
            dice = Dice(f"reasoning_gym {self.seed} {stream} {generator} {chunk} {attempt}")
            seed = dice.below(2**31)
            question, _ = self._stored(generator, seed, within)
            yield Item(question, (generator, seed, within))

    def held_out_streams(self, split: Split) -> Sequence[str]:
        return [f"{split} {name}" for name in self.knobs]

    def held_out(self, item: Item) -> bool:
        return hashlib.blake2b(item.question.encode(), digest_size=8).digest()[0] % HELD_OUT == 0

    def source_of(self, item: Item) -> str:
        return item.place[0]

    def posed(self, item: Item) -> tuple[str, dict[str, Any]]:
        """The answer is where the library makes the question anew: {"generator", "seed", "index"}."""
        generator, seed, index = item.place
        prompt = spell(item.question) if self.spelled else self.template.replace("{problem}", item.question)
        return prompt, {"generator": generator, "seed": seed, "index": index}

    def solution(self, problem: Problem) -> str:
        """The answer that the library stores, as a response. ValueError where it stores none."""
        answer = problem.answer
        return self._solution((answer["generator"], answer["seed"], answer["index"]))

    def demonstration(self, index: int) -> tuple[str, str]:
        """(prompt, right response) `index` of a stream of its own, never a held-out question."""
        asked, answered = self.demonstrated(index)
        return self.posed(asked)[0], self._solution(answered.place)

    def _solution(self, place: tuple[str, int, int]) -> str:
        _, answer = self._stored(*place)
        if answer is None:
            raise ValueError(
                f"The generator {place[0]} stores no right answers: nothing can be demonstrated. Pass model=hf."
            )
        return f"{spell(answer)} {self.end_word}" if self.spelled else f"<answer>{answer}</answer>"

    def _stored(self, generator: str, seed: int, index: int) -> tuple[str, str | None]:
        """(question, answer that the library stores) of one item."""
        return self._made(generator, seed, index // AT_ONCE)[index % AT_ONCE]

    def _make(self, generator: str, seed: int, part: int) -> list[tuple[str, str | None]]:
        indices = list(range(part * AT_ONCE, (part + 1) * AT_ONCE))
        wanted = {"do": "make", "generator": generator, "knobs": self.knobs[generator], "seed": seed}
        (reply,) = self._pool.ask([{**wanted, "indices": indices}], timeout_s=MAKE_TIMEOUT_S)
        if reply["outcome"] != "made":
            raise ValueError(
                f"The generator {generator} made no questions ({reply['outcome']}) within {MAKE_TIMEOUT_S:.0f} s and "
                "task.memory_gb. Raise that, or give it other knobs."
            )
        return [(question, answer) for question, answer in reply["items"]]

    def _check_generators(self) -> None:
        """Raises ValueError for unknown names and knobs."""
        asked = [{"do": "check", "generator": name, "knobs": knobs} for name, knobs in self.knobs.items()]
        for reply in self._pool.ask(asked, timeout_s=MAKE_TIMEOUT_S):
            if reply["outcome"] != "checked" or reply["problem"]:
                self.close()
                raise ValueError(reply.get("problem") or "reasoning-gym did not start in the sandbox.")

    def canonical(self, problem: Problem, response: str) -> str | None:
        """Of a generator among SEVERAL_ANSWERS what the response gives, without white space and order that change
        nothing; of another the answer that the library stores, however the response writes it.
        """
        answer = self._answer(response)
        place = problem.answer
        if answer is None or place["generator"] in SEVERAL_ANSWERS:
            return None if answer is None else _same_text(answer)
        stored = self._stored(place["generator"], place["seed"], place["index"])[1]
        return " ".join((stored or answer).split())

    def answer(self, problem: Problem, response: str) -> str | None:
        """The answer of any response, white space aside."""
        answer = self._answer(response)
        return None if answer is None else " ".join(answer.split())

    def reward(self, answers: Sequence[tuple[Problem, str]]) -> list[Reward]:
        """What the generator's verifier says. Unparsable: no answer, or a spelled one without an end."""
        texts = [self._answer(text) for _, text in answers]
        requests = [
            {"do": "judge", **problem.answer, "knobs": self.knobs[problem.answer["generator"]], "answer": text}
            for (problem, _), text in zip(answers, texts, strict=True)
            if text is not None
        ]
        replies = iter(self._pool.ask(requests))
        return [Reward(0.0, "unparsable") if text is None else self._reward(next(replies)) for text in texts]

    def _reward(self, reply: Mapping[str, Any]) -> Reward:
        outcome = reply["outcome"]
        value = float(outcome == "correct") if self._binary else reply.get("score", 0.0)
        return Reward(value, outcome)

    def _answer(self, response: str) -> str | None:
        if not self.spelled:
            tagged = TAGGED.findall(response)
            return tagged[-1].strip() if tagged else None
        return read_response(response)

    def close(self) -> None:
        self._pool.close()


def _same_text(answer: str) -> str:
    """One text for what differs in white space alone, and in the order of terms (arithmetic) or keys (JSON)."""
    with suppress(ValueError, ArithmeticError, RecursionError):
        return parse(re.findall(r"\d+|\S", answer))[0].text
    with suppress(ValueError, RecursionError):
        return json.dumps(json.loads(answer), sort_keys=True)
    return "".join(answer.split())


def _library() -> Path:
    """The folder that the library is installed in."""
    found = find_spec("reasoning_gym")
    if found is None or found.origin is None:
        raise ValueError("task=reasoning_gym needs the library reasoning-gym: pip install 'rlvr[reasoning]'.")
    return Path(found.origin).parents[1]


def _named(generators: str | Sequence[str] | Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    if isinstance(generators, Mapping):
        named = {name: dict(knobs or {}) for name, knobs in generators.items()}
    else:
        named = {name: {} for name in ([generators] if isinstance(generators, str) else generators)}
    if not named:
        raise ValueError("task.generators is empty: pass a name, such as task.generators=chain_sum.")
    return named
