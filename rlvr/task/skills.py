"""Several skills, of which one is trained: how do the accuracy on the others and on longer inputs change?

The prompt names the skill: `sort 7 1 3 :` has the answer `1 3 7 end`, `reverse 7 1 3 :` the answer `3 1 7 end`.
Demonstrations teach all skills equally; reinforcement learning trains one of them, on short inputs only. The held-out
splits have a benchmark for each skill, on short and on longer inputs, so that skills that were kept and skills that
were learned are measured separately.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count

from rlvr.records import Outcome, Problem, Reward, Split, binary, hash64
from rlvr.task.procedural import Dice, Procedural, Share

SKILLS = {
    "sort": lambda digits: sorted(digits),
    "reverse": lambda digits: digits[::-1],
    "shift": lambda digits: [(digit + 1) % 10 for digit in digits],
    "fall": lambda digits: sorted(digits, reverse=True),
}
DIGITS = tuple(map(str, range(10)))
HELD_OUT = 8  # one input in HELD_OUT is held out
Input = tuple[str, tuple[int, ...]]  # skill, digits


@dataclass(kw_only=True, eq=False)
class Skills(Procedural[Input]):
    """Strings of digits, to which a skill is to be applied.

    skills: the skills that demonstrations teach, from `SKILLS`. trained: the skill of all training problems.
    shortest, longest: digits of training problems. taught: the most digits of a demonstration. beyond: the most digits
    of the benchmarks of longer inputs, which begin at longest + 1; their names end in `_long`.
    test_problems, validation_problems: number of problems of each benchmark. A hash of the input assigns one in eight
    to the held-out side. The other knobs: `rlvr.task.procedural.Procedural`.
    """

    skills: Sequence[str]
    trained: str
    shortest: int
    longest: int
    taught: int
    beyond: int
    mistakes: Share

    name = "skills"
    source = "skills"
    end_word = "end"

    def __post_init__(self) -> None:
        skills, (shortest, longest, beyond) = tuple(self.skills), (self.shortest, self.longest, self.beyond)
        if self.trained not in skills or not set(skills) <= set(SKILLS) or len(set(skills)) < len(skills):
            raise ValueError(
                f"task.skills={list(skills)}, task.trained={self.trained}: different skills of {', '.join(SKILLS)}, "
                "and one of them trained."
            )
        if not 2 <= shortest <= longest <= self.taught <= beyond <= 32 or longest == beyond:
            raise ValueError(
                f"task.shortest={shortest}, task.longest={longest}, task.taught={self.taught}, task.beyond={beyond}: "
                "numbers of digits, 2 to 32, in this order; beyond is more than longest."
            )
        num_items = sum(10**n for n in range(shortest, longest + 1))
        self.set_sizes(num_items=num_items, share=1 / HELD_OUT, kind=f"inputs of {shortest} to {longest} digits")
        self.skills = skills
        self.max_tokens = beyond + 1
        self.vocabulary = ("PAD", self.end_word, ":", *DIGITS, *skills)

    def draws(self, stream: str, index: int) -> Iterator[Input]:
        """Streams: "train"; "demonstration" and "mistake", each skill in turn; "<split> <skill> <short or long>"."""
        skill, least, most = self.trained, self.shortest, self.longest
        if stream in ("demonstration", "mistake"):
            skill, most = self.skills[index % len(self.skills)], self.taught
        elif " " in stream:
            _, skill, span = stream.split(" ")
            least, most = (least, most) if span == "short" else (self.longest + 1, self.beyond)
        for attempt in count():
            dice = Dice(f"skills {self.seed} {stream} {index} {attempt}")
            length = least + dice.below(most - least + 1)
            yield skill, tuple(dice.below(10) for _ in range(length))

    def held_out_streams(self, split: Split) -> Sequence[str]:
        return [f"{split} {skill} {span}" for skill in self.skills for span in ("short", "long")]

    def held_out(self, item: Input) -> bool:
        return hash64(f"{item}") % HELD_OUT == 0

    def source_of(self, item: Input) -> str:
        skill, digits = item
        return f"skills_{skill}" + ("_long" if len(digits) > self.longest else "")

    def posed(self, item: Input) -> tuple[str, str]:
        skill, digits = item
        return f"{skill} {' '.join(map(str, digits))} :", self._answer(item)

    def solution(self, problem: Problem) -> str:
        """The one right response."""
        return problem.answer

    def demonstration(self, index: int) -> tuple[str, str]:
        """(prompt, right response) `index` of a separate stream, each skill in turn."""
        shown, answered = self.demonstrated(index)
        return self.posed(shown)[0], self._answer(answered)

    def reward(self, answers: Sequence[tuple[Problem, str]]) -> list[Reward]:
        """1 for the right digits in order, else 0. Unparsable: anything but digits and one end word."""
        return [binary(self._judged(problem, text)) for problem, text in answers]

    def _judged(self, problem: Problem, text: str) -> Outcome:
        *digits, end = text.split() or [""]
        if end != self.end_word or not set(digits) <= set(DIGITS):
            return "unparsable"
        return "correct" if " ".join([*digits, end]) == problem.answer else "wrong"

    def _answer(self, item: Input) -> str:
        skill, digits = item
        return " ".join([*map(str, SKILLS[skill](digits)), self.end_word])
