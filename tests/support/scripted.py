"""A task small enough to check by hand: repeat the words of the prompt, each moved along the alphabet."""

from collections.abc import Sequence

from rlvr.records import Problem, Reward, Split

ALPHABET = "abcdef"


class Echo:
    """Prompt `a c b ;` with shift 1: the right response is `b d c .`"""

    name = "echo"
    vocabulary = (*ALPHABET, ";", ".")
    end_word = "."

    def __init__(self, *, length: int, shift: int = 0) -> None:
        self.length, self.shift = length, shift

    @property
    def max_tokens(self) -> int:
        return self.length + 1

    def size(self, split: Split) -> int | None:
        return None if split == "train" else 36

    def _words(self, index: int) -> list[str]:
        """A fixed scramble of the index, as base-6 digits."""
        number = (index * 2654435761 + 12345) % 6**self.length
        return [ALPHABET[number // 6**i % 6] for i in range(self.length)]

    def _answer(self, words: Sequence[str]) -> str:
        moved = [ALPHABET[(ALPHABET.index(word) + self.shift) % 6] for word in words]
        return " ".join([*moved, self.end_word])

    def problem(self, split: Split, index: int) -> Problem:
        words = self._words(index if split == "train" else -1 - index)
        return Problem(f"echo-{split}-{index}", " ".join([*words, ";"]), self._answer(words), "echo")

    def demonstration(self, index: int) -> tuple[str, str]:
        words = self._words(index)
        return " ".join([*words, ";"]), self._answer(words)

    def reward(self, answers: Sequence[tuple[Problem, str]]) -> list[Reward]:
        right = [text == problem.answer for problem, text in answers]
        return [Reward(float(r), "correct" if r else "wrong") for r in right]

    def close(self) -> None:
        """Nothing to stop."""
