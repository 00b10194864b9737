"""Mazes by randomized Prim's algorithm, in the token format of MaxRL: find the walk from START to GOAL.

A maze is a flat string of size x size squares, row by row: `#` wall, `.` open, `S` start, `G` goal, with a border of
walls. Cells stand at odd rows and columns; the open squares are a spanning tree of them, so exactly one path joins any
two. Every maze is a pure function of (seed, size, stream, index): its randomness is SHAKE-128 of that key, a published
standard, so that no library version can change a data set.

Start and goal are any two open squares. At size 7 this gives 192 x 17 x 16 = 52,224 mazes, at size 9 more than 90
million. A hash of the maze itself gives one in eight to the test side, whatever the seed, stream or index: training
(reinforcement learning and demonstrations) and test are disjoint by construction.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import count

from rlvr.records import Outcome, Problem, Reward, Split

WALL, OPEN = ord("#"), ord(".")
TEST_SHARE = 8  # one maze in so many is held out
WORDS = {"#": "WALL ", ".": "PATH ", "S": "START ", "G": "GOAL ", "\n": "NEWLINE "}
MOVES = ("UP", "DOWN", "LEFT", "RIGHT")
# Token numbers 4 to 16 are those of the tokenizer released with MaxRL.
VOCABULARY = (
    "PAD",
    "BOS",
    "EOS",
    "UNK",
    "GRID_START",
    "GRID_END",
    "PATH_START",
    "DONE",
    "PATH",
    "WALL",
    "GOAL",
    "START",
    "NEWLINE",
    *MOVES,
    *(f"RESERVED_{i}" for i in range(15)),
)


class Maze:
    """Mazes of one odd size: an endless train stream and `test_problems` distinct held-out mazes.

    seed: which mazes; not the seed of a run, so that all runs meet the same problems in the same order.
    """

    name = "maze"
    vocabulary = VOCABULARY
    end_word = "DONE"

    def __init__(self, *, size: int, test_problems: int, seed: int) -> None:
        if size < 5 or size % 2 == 0:
            raise ValueError(f"task.size={size}: a maze has an odd size of at least 5, such as task.size=7.")
        # Half of the test side at most: the draw below stays quick although Prim's algorithm is not uniform.
        most = int(min(num_mazes(size) / TEST_SHARE / 2, 1e6))
        if not 1 <= test_problems <= most:
            raise ValueError(
                f"task.test_problems={test_problems} with task.size={size}: 1 to {most} mazes of this size can be "
                f"held out. Pass task.test_problems={min(most, max(1, test_problems))} or a larger task.size."
            )
        self.width, self.test_problems, self.seed = size, test_problems, seed
        self.source = f"maze_{size}x{size}"
        self.max_tokens = num_open(size)  # the longest path visits every open square: one move fewer, then DONE
        self._offset: dict[str, int] = dict(zip(MOVES, (-size, size, -1, 1), strict=True))
        self._held_out: list[str] = []

    def size(self, split: Split) -> int | None:
        return None if split == "train" else self.test_problems

    def problem(self, split: Split, index: int) -> Problem:
        """Raises IndexError beyond the test set."""
        if index < 0 or (split == "test" and index >= self.test_problems):
            raise IndexError(f"{self.source} has no {split} problem {index}")
        grid = self._train(split, index) if split == "train" else self._test()[index]
        return Problem(f"{self.source}-{split}-{index}", prompt(grid, self.width), grid, self.source)

    def demonstration(self, index: int) -> tuple[str, str]:
        """(prompt, shortest walk and DONE) of maze `index` of a stream of its own, never a held-out maze."""
        grid = self._train("demonstration", index)
        return prompt(grid, self.width), self._walk(grid)

    def solution(self, problem: Problem) -> str:
        """The shortest walk and DONE. Longer walks are right too: cross-entropy on it is a bound."""
        return self._walk(problem.answer)

    def _walk(self, grid: str) -> str:
        return " ".join([*solve(grid, self.width), self.end_word])

    def reward(self, answers: Sequence[tuple[Problem, str]]) -> list[Reward]:
        """1 for a legal walk that stands on GOAL when DONE comes, else 0. Squares may be visited again.

        Anything but moves and one final DONE is unparsable, a walk cut before DONE too. Differs from the paper's
        released code, which stops at the first visit of GOAL: here a walk that leaves GOAL again is wrong.
        """
        outcomes: list[Outcome] = [self._judge(problem.answer, text) for problem, text in answers]
        return [Reward(float(outcome == "correct"), outcome) for outcome in outcomes]

    def close(self) -> None:
        """Nothing to stop."""

    def _judge(self, grid: str, text: str) -> Outcome:
        *moves, end = text.split() or [""]
        if end != self.end_word or not all(move in self._offset for move in moves):
            return "unparsable"
        here = grid.index("S")
        for move in moves:
            here += self._offset[move]
            if grid[here] == "#":
                return "wrong"
        return "correct" if grid[here] == "G" else "wrong"

    def _train(self, stream: str, index: int) -> str:
        """Maze `index` of a training stream; a draw from the test side is drawn again."""
        draws = (carve(self.width, _key(self.seed, stream, index, attempt)) for attempt in count())
        return next(grid for grid in draws if not held_out(grid))

    def _test(self) -> list[str]:
        if not self._held_out:
            draws = (carve(self.width, _key(self.seed, "test", 0, attempt)) for attempt in count())
            self._held_out = _first_distinct((grid for grid in draws if held_out(grid)), self.test_problems)
        return self._held_out


def _first_distinct(grids: Iterator[str], num: int) -> list[str]:
    kept: dict[str, None] = {}
    while len(kept) < num:
        kept[next(grids)] = None
    return list(kept)


def _key(seed: int, stream: str, index: int, attempt: int) -> bytes:
    return f"maze {seed} {stream} {index} {attempt}".encode()


def held_out(grid: str) -> bool:
    """Whether a maze belongs to the test side: one in eight, decided by the maze alone."""
    return hashlib.blake2b(grid.encode(), digest_size=8).digest()[0] % TEST_SHARE == 0


def num_open(size: int) -> int:
    """Open squares of a maze: n cells and the n - 1 passages of their spanning tree."""
    return 2 * ((size - 1) // 2) ** 2 - 1


def num_mazes(size: int) -> float:
    """How many mazes of a size exist: spanning trees of the grid of cells (Kirchhoff) x ordered pairs of squares."""
    n = (size - 1) // 2
    eigenvalues = [
        4 - 2 * math.cos(math.pi * i / n) - 2 * math.cos(math.pi * j / n) for i in range(n) for j in range(n) if i or j
    ]
    squares = num_open(size)
    return math.prod(eigenvalues) / n**2 * squares * (squares - 1)


@lru_cache
def _neighbours(size: int) -> dict[int, tuple[tuple[int, int], ...]]:
    """Cell -> ((wall between, neighbour cell), ...), all as positions in the flat grid."""
    inside = range(1, size, 2)
    return {
        row * size + column: tuple(
            ((row + dr) * size + column + dc, (row + 2 * dr) * size + column + 2 * dc)
            for dr, dc in ((-1, 0), (1, 0), (0, -1), (0, 1))
            if row + 2 * dr in inside and column + 2 * dc in inside
        )
        for row in inside
        for column in inside
    }


def carve(size: int, key: bytes) -> str:
    """A maze by randomized Prim's algorithm: open a random wall between the maze and a cell outside it, until none is.

    key: names the maze; its SHAKE-128 stream gives one 32-bit word to each choice (bias below 1e-7).
    """
    neighbours = _neighbours(size)
    cells = list(neighbours)
    num_words = 2 * len(cells) + 3  # a wall enters the frontier once: fewer than 2 walls a cell, then cell, start, goal
    word = iter(struct.unpack(f"<{num_words}I", hashlib.shake_128(b"%d " % size + key).digest(4 * num_words)))
    grid = bytearray([WALL]) * (size * size)
    cell = cells[next(word) * len(cells) >> 32]
    grid[cell] = OPEN
    frontier = list(neighbours[cell])
    while frontier:
        pick = next(word) * len(frontier) >> 32
        wall, cell = frontier[pick]
        frontier[pick] = frontier[-1]
        frontier.pop()
        if grid[cell] == WALL:
            grid[wall] = grid[cell] = OPEN
            frontier += [edge for edge in neighbours[cell] if grid[edge[1]] == WALL]
    squares = [i for i, square in enumerate(grid) if square == OPEN]
    grid[squares.pop(next(word) * len(squares) >> 32)] = ord("S")
    grid[squares[next(word) * len(squares) >> 32]] = ord("G")
    return grid.decode()


def prompt(grid: str, size: int) -> str:
    """GRID_START, the squares row by row with NEWLINE after each row, GRID_END, PATH_START: size² + size + 3 words."""
    rows = "".join(grid[i : i + size] + "\n" for i in range(0, len(grid), size))
    return f"GRID_START {rows.translate(_TRANSLATION)}GRID_END PATH_START"


_TRANSLATION = str.maketrans(WORDS)


def solve(grid: str, size: int) -> list[str]:
    """The moves of the one path from START to GOAL, searched from the goal so that it reads forward."""
    start, goal = grid.index("S"), grid.index("G")
    towards = {goal: (goal, "")}  # square -> (next square on the way to the goal, move)
    stack = [goal]
    while start not in towards:
        square = stack.pop()
        for move, offset in zip(MOVES, (size, -size, 1, -1), strict=True):  # undone moves: we walk backwards
            before = square + offset
            if grid[before] != "#" and before not in towards:
                towards[before] = (square, move)
                stack.append(before)
    moves: list[str] = []
    square = start
    while square != goal:
        square, move = towards[square]
        moves.append(move)
    return moves
