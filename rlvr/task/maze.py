"""Mazes by randomized Prim's algorithm, in the token format of MaxRL: find a walk from START to GOAL.

A maze is a flat string of size x size squares, row by row: `#` wall, `.` open, `S` start, `G` goal, with a border of
walls. Cells are at odd rows and columns; the open squares are a spanning tree of the cells, so exactly one path joins
any two. With `loops` K, K further walls between cells are open: each creates a loop, and problems have several right
walks. Every maze is a pure function of (seed, size, stream, index): its randomness is SHAKE-128 of that key, a
published standard, so that no library version can change a data set.

Start and goal are any two open squares. At size 7 there are 192 x 17 x 16 = 52,224 mazes, at size 9 more than 90
million. A hash of the maze alone assigns one in eight to the held-out side, whatever the seed, stream or index:
training (reinforcement learning and demonstrations) and test are disjoint by construction.
"""

import hashlib
import math
import struct
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import count
from typing import Annotated

from annotated_types import Interval
from pydantic import NonNegativeInt, PositiveInt

from rlvr.records import Outcome, Problem, Reward, binary, hash64
from rlvr.task.procedural import Dice, Procedural, Share

WALL, OPEN = ord("#"), ord(".")
TEST_SHARE = 8  # one maze in TEST_SHARE is held out
WORDS = {"#": "WALL ", ".": "PATH ", "S": "START ", "G": "GOAL ", "\n": "NEWLINE "}
MOVES = ("UP", "DOWN", "LEFT", "RIGHT")
# Token numbers 4 to 16 are those of the tokenizer released with MaxRL.
VOCABULARY = (
    *("PAD", "BOS", "EOS", "UNK", "GRID_START", "GRID_END", "PATH_START", "DONE", "PATH", "WALL", "GOAL", "START"),
    *("NEWLINE", *MOVES, *(f"RESERVED_{i}" for i in range(15))),
)


class Maze(Procedural[str]):
    """Mazes of one odd size: an endless training stream and distinct held-out mazes.

    loops: number of walls that are opened in addition to the spanning tree. seed: selects the mazes. It is not the seed
    of a run: all runs have the same problems in the same order. The other knobs: `rlvr.task.procedural.Procedural`.
    """

    name = "maze"
    vocabulary = VOCABULARY
    end_word = "DONE"
    words_per_move = 1

    def __init__(
        self,
        *,
        size: Annotated[int, Interval(ge=5, le=99)],
        test_problems: PositiveInt,
        seed: NonNegativeInt,
        loops: int = 0,
        validation_problems: NonNegativeInt | None = None,
        train_problems: PositiveInt | None = None,
        mistakes: Share = 0.0,
    ) -> None:
        if size < 5 or size % 2 == 0:
            raise ValueError(f"task.size={size}: a maze has an odd size of at least 5, such as task.size=7.")
        if not 0 <= loops <= num_closed(size):
            raise ValueError(
                f"task.loops={loops}: a maze with task.size={size} has {num_closed(size)} walls that can be opened. "
                f"Pass task.loops={min(max(0, loops), num_closed(size))} or a larger task.size."
            )
        sizes = {"validation_problems": validation_problems, "train_problems": train_problems}
        super().__init__(test_problems=test_problems, **sizes, seed=seed)
        kind, remedy = f"mazes of this size (task.size={size}, task.loops={loops})", " or a larger task.size"
        self.set_sizes(num_items=num_mazes(size, loops), share=1 / TEST_SHARE, kind=kind, remedy=remedy)
        self.width, self.loops, self.mistakes = size, loops, mistakes  # not `size`, which is a method
        self.source = f"{self.name}_{size}x{size}" + (f"_loops{loops}" if loops else "")
        longest = num_open(size) + loops - 1  # moves of a path that visits every open square
        self.max_tokens = self.words_per_move * longest + 1  # and DONE
        self._offset = offsets(size)

    def draws(self, stream: str, index: int) -> Iterator[str]:
        return (carve(self.width, _key(self.seed, stream, index, i), loops=self.loops) for i in count())

    def stream(self, name: str) -> Iterator[str]:
        return filter(held_out, self.draws(name, 0))

    def held_out(self, item: str) -> bool:
        return held_out(item)

    def posed(self, item: str) -> tuple[str, str]:
        return prompt(item, self.width), item

    def demonstration(self, index: int) -> tuple[str, str]:
        """(prompt, walk and DONE) of maze `index` of a separate stream, never a held-out maze.

        Without loops the walk is the shortest; with loops it is a random one without detours, so that all are taught.
        """
        shown, solved = self.demonstrated(index)
        if not self.loops:
            return prompt(shown, self.width), self._shortest_walk(solved)
        moves = stroll(solved, self.width, _key(self.seed, "stroll", index, 0))
        return prompt(shown, self.width), " ".join([*moves, self.end_word])

    def solution(self, problem: Problem) -> str:
        """A shortest walk and DONE. Longer walks are right too, so cross-entropy on this one is a bound."""
        return self._shortest_walk(problem.answer)

    def _shortest_walk(self, grid: str) -> str:
        return " ".join([*solve(grid, self.width), self.end_word])

    @property
    def several_answers(self) -> bool:
        """Whether problems have several right walks. Without loops there is one, not counting detours."""
        return self.loops > 0

    def canonical(self, problem: Problem, response: str) -> str | None:
        """The moves of a right walk without its detours (the moves between two visits of a square); else None."""
        if self._judge(problem.answer, response) != "correct":
            return None
        return " ".join(without_detours(self.moves(response)[:-1], self._offset))

    def moves(self, text: str) -> list[str]:
        """The words that the policy wrote: moves and DONE, if it is sound."""
        return text.split()

    def reward(self, answers: Sequence[tuple[Problem, str]]) -> list[Reward]:
        """1 for a legal walk that is on GOAL at its DONE, else 0. Squares may be visited more than once.

        Unparsable: anything but moves and one final DONE, such as a walk that is cut before DONE. Differs from the
        paper's released code, which stops at the first visit of GOAL: here a walk that leaves GOAL again is wrong.
        """
        return [binary(self._judge(problem.answer, text)) for problem, text in answers]

    def _judge(self, grid: str, text: str) -> Outcome:
        *moves, end = self.moves(text) or [""]
        if end != self.end_word or not all(move in self._offset for move in moves):
            return "unparsable"
        square = grid.index("S")
        for move in moves:
            square += self._offset[move]
            if grid[square] == "#":
                return "wrong"
        return "correct" if grid[square] == "G" else "wrong"


def _key(seed: int, stream: str, index: int, attempt: int) -> bytes:
    return f"maze {seed} {stream} {index} {attempt}".encode()


def held_out(grid: str) -> bool:
    """Whether a maze belongs to the held-out side: true of one in eight, a function of the maze alone."""
    return hash64(grid) % TEST_SHARE == 0


def offsets(size: int) -> dict[str, int]:
    """How far each move goes in the flat grid."""
    return dict(zip(MOVES, (-size, size, -1, 1), strict=True))


def num_open(size: int) -> int:
    """Number of open squares of a maze without loops: n cells and the n - 1 passages of their spanning tree."""
    return 2 * ((size - 1) // 2) ** 2 - 1


def num_closed(size: int) -> int:
    """Number of walls between neighbouring cells that a spanning tree leaves closed."""
    n = (size - 1) // 2
    return 2 * n * (n - 1) - (n**2 - 1)


def num_mazes(size: int, loops: int = 0) -> float:
    """How many mazes of a size exist: spanning trees of the grid of cells (Kirchhoff) x ordered pairs of squares.

    With loops the result is a lower bound: C(closed, loops) sets of walls can be opened in each tree, and no maze
    contains more than C(passages, loops) trees.
    """
    n = (size - 1) // 2
    eigenvalues = [
        4 - 2 * math.cos(math.pi * i / n) - 2 * math.cos(math.pi * j / n) for i in range(n) for j in range(n) if i or j
    ]
    squares = num_open(size) + loops
    layouts = math.prod(eigenvalues) / n**2
    layouts *= math.comb(num_closed(size), loops) / math.comb(n**2 - 1 + loops, loops)
    return max(layouts, 1) * squares * (squares - 1)


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


def carve(size: int, key: bytes, *, loops: int = 0) -> str:
    """A maze by randomized Prim's algorithm: open random walls between it and cells outside it until no cell is left.

    key: identifies the maze; its SHAKE-128 stream has one 32-bit word for each choice (bias below 1e-7).
    loops: number of further walls between cells to open, all equally likely.
    """
    neighbours = _neighbours(size)
    cells = list(neighbours)
    # A wall enters the frontier once: fewer than 2 words per cell, then one each for the first cell, start and goal.
    num_words = 2 * len(cells) + 3 + loops
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
    closed = sorted({wall for cell in cells for wall, _ in neighbours[cell] if grid[wall] == WALL}) if loops else []
    for _ in range(loops):
        grid[closed.pop(next(word) * len(closed) >> 32)] = OPEN
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
    """The moves of a shortest path from START to GOAL, searched from the goal so that it reads forward."""
    start, goal = grid.index("S"), grid.index("G")
    towards = {goal: (goal, "")}  # square -> (next square on the way to the goal, move)
    queue = deque([goal])
    while start not in towards:
        square = queue.popleft()
        for move, offset in zip(MOVES, (size, -size, 1, -1), strict=True):  # moves are undone: the search is backwards
            before = square + offset
            if grid[before] != "#" and before not in towards:
                towards[before] = (square, move)
                queue.append(before)
    moves: list[str] = []
    square = start
    while square != goal:
        square, move = towards[square]
        moves.append(move)
    return moves


def stroll(grid: str, size: int, key: bytes) -> list[str]:
    """The moves of a loop-erased random walk from START to GOAL (Lawler 1980): a detour is erased when it returns to a
    square. Every path without a repeated square has a positive probability."""
    dice, offset_of = Dice(key.decode()), offsets(size)
    square, moves = grid.index("S"), list[str]()
    while grid[square] != "G":
        moves.append(dice.choose([move for move, offset in offset_of.items() if grid[square + offset] != "#"]))
        square += offset_of[moves[-1]]
    return without_detours(moves, offset_of)


def without_detours(moves: Sequence[str], offset_of: Mapping[str, int]) -> list[str]:
    """The moves of a walk without those between two visits of a square."""
    visited, kept = [0], list[str]()  # squares, from the start of the walk
    for move in moves:
        square = visited[-1] + offset_of[move]
        if square in visited:
            del kept[visited.index(square) :], visited[visited.index(square) + 1 :]
        else:
            visited.append(square)
            kept.append(move)
    return kept
