"""Classification with many classes: pass rates start at 1/classes, so rewards are rare (MaxRL, section 6.1).

A problem is one context word, its answer one class word. With `model=table` every context has its own logits, so
nothing generalises and nothing is approximate: the expected gradient of each context is w(p)·∇p, and objectives differ
in w alone.
"""

from collections.abc import Sequence

from pydantic import NonNegativeInt

from rlvr.records import Problem, Reward, Split, binary, hash64
from rlvr.task.digits import judge


class Classes:
    """`contexts` problems, the same in training and test: what is learned is the policy over their classes. None are
    left for validation.

    answers: the class words. A policy that is uniform over them is right with probability 1/`classes`.
    seed: decides the class of each context. It is not the seed of a run.
    """

    name = "classes"
    end_word = "END"
    max_tokens = 1

    def __init__(self, *, classes: int, contexts: int, seed: NonNegativeInt) -> None:
        if classes < 2 or contexts < 1:
            raise ValueError(
                f"task.classes={classes} and task.contexts={contexts}: at least 2 classes and 1 context are needed."
            )
        self.contexts, self.seed = contexts, seed
        self.answers = tuple(f"CLASS_{i}" for i in range(classes))
        self.vocabulary = ("PAD", self.end_word, *(f"CONTEXT_{i}" for i in range(contexts)), *self.answers)
        self._classes = frozenset(self.answers)

    def size(self, split: Split) -> int | None:
        return 0 if split == "validation" else self.contexts

    def problem(self, split: Split, index: int) -> Problem:
        """Context `index`; its class is a hash (BLAKE2b) of `seed` and `index`."""
        if not 0 <= index < self.contexts:
            raise IndexError(f"there are {self.contexts} contexts: no {split} problem {index}")
        word = self.answers[hash64(f"classes {self.seed} {index}") % len(self.answers)]
        return Problem(f"context-{index}", f"CONTEXT_{index}", word, "classes")

    def solution(self, problem: Problem) -> str:
        """The right response, which cross-entropy learns."""
        return problem.answer

    def demonstration(self, index: int) -> tuple[str, str]:
        """Each context with each class in turn: a policy that learns from them is uniform over the classes."""
        turn, context = divmod(index, self.contexts)
        return f"CONTEXT_{context}", self.answers[turn % len(self.answers)]

    def reward(self, answers: Sequence[tuple[Problem, str]]) -> list[Reward]:
        """1 for the word of the right class, else 0. A word that names no class is unparsable."""
        return [binary(judge(problem, text, self._classes)) for problem, text in answers]

    def close(self) -> None:
        """Nothing to stop."""
