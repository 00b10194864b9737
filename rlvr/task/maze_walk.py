"""Mazes walked step by step: after each move the task says which square it has reached."""

from rlvr.records import Outcome, Problem
from rlvr.task.maze import MOVES, WORDS, Maze


class MazeWalk(Maze):
    """As `Maze`, but a response is a conversation, MOVE square MOVE square … DONE: the policy writes moves and DONE,
    and the task the squares (PATH, START, GOAL). A move into a wall ends it. The knobs are those of `Maze`.
    """

    name = "maze_walk"
    words_per_move = 2
    turn_tokens = 1

    def reply(self, problem: Problem, response: str) -> str | None:
        """The word of the square that the last move reaches; None for a wall, and after any word that is no move."""
        square = problem.answer.index("S")
        for move in self.moves(response):
            if move not in MOVES:
                return None
            square += self._offset[move]
            if problem.answer[square] == "#":
                return None
        return WORDS[problem.answer[square]].strip()

    def moves(self, text: str) -> list[str]:
        return text.split()[::2]

    def _judge(self, grid: str, text: str) -> Outcome:
        last = (text.split() or [""])[-1]
        into_wall = last in MOVES and self.reply(Problem("", "", grid), text) is None
        return "wrong" if into_wall else super()._judge(grid, text)

    def demonstration(self, index: int) -> tuple[str, str]:
        """(prompt, conversation); in a mistake up to the first wall."""
        shown, walk = super().demonstration(index)
        return shown, self._conversation(self.demonstrated(index)[0], walk)

    def solution(self, problem: Problem) -> str:
        return self._conversation(problem.answer, super().solution(problem))

    def _conversation(self, grid: str, walk: str) -> str:
        words = list[str]()
        for move in walk.split():
            words.append(move)
            square = self.reply(Problem("", "", grid), " ".join(words))
            if square is None:
                break
            words.append(square)
        return " ".join(words)
