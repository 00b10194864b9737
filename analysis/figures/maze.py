"""Mazes with walks of a policy: one that reaches the goal and one that does not (MaxRL, figure 10)."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.frames.frames import Frames
from analysis.frames.samples import Response
from analysis.report import style
from analysis.scores.arm import Arm
from analysis.scores.excerpt import excerpts

QUESTION = "Which walks does a policy take, and where do they leave the way?"
TASK = "maze"
MOST_ARMS = 3  # rows of the figure
RIGHT, WRONG = "#0072B2", "#D55E00"
MOVES = {"UP": (-1, 0), "DOWN": (1, 0), "LEFT": (0, -1), "RIGHT": (0, 1)}
Square = tuple[int, int]  # row, column


@dataclass(frozen=True)
class MazeGrid:
    """A maze as its prompt describes it. walls: [rows, columns], true where a wall is."""

    walls: np.ndarray
    start: Square
    goal: Square


def figure(frames: Frames) -> Figure | None:
    """None unless a policy was evaluated on mazes and its samples are available."""
    shown = _pairs(frames)
    return style.with_style(lambda: _draw(shown)) if shown else None


def _pairs(frames: Frames) -> list[tuple[Arm, list[Response]]]:
    """A right and a wrong answer of each arm, or only one of them: of the samples that the page shows of its end."""
    shown = [of_arm for excerpt in excerpts(frames) for of_arm in excerpt.shown if of_arm.arm.first.task == TASK]
    pairs: list[tuple[Arm, list[Response]]] = []
    for of_arm in [of_arm for of_arm in shown if not of_arm.arm.control][:MOST_ARMS]:
        answers = [r for of_problem in of_arm.last.responses.values() for r in of_problem if "GRID_START" in r.prompt]
        chosen = [[r for r in answers if r.outcome == outcome] for outcome in ("correct", "wrong")]
        if any(chosen):
            pairs.append((of_arm.arm, [max(alike, key=_interest) for alike in chosen if alike]))
    return pairs


def _interest(answer: Response) -> tuple[bool, int]:
    """The largest for the answer to show: first walks that never reach the goal, then the longest ones."""
    grid = grid_of(answer.prompt)
    squares, _ = walk_of(answer.response, grid)
    return grid.goal not in squares, len(squares)


def grid_of(prompt: str) -> MazeGrid:
    """The maze of a prompt, whose words are rows of WALL, PATH, START and GOAL, each ended by NEWLINE."""
    words = prompt.split()
    squares = words[words.index("GRID_START") + 1 : words.index("GRID_END")]
    rows = [row.split() for row in " ".join(squares).split("NEWLINE") if row.strip()]
    at = {word: (r, row.index(word)) for r, row in enumerate(rows) for word in ("START", "GOAL") if word in row}
    return MazeGrid(np.array([[word == "WALL" for word in row] for row in rows]), at["START"], at["GOAL"])


def walk_of(response: str, grid: MazeGrid) -> tuple[list[Square], bool]:
    """(the squares that a response visits, whether the last is the wall that ends the walk). Else it ends at the first
    word that is not a move, or at the end."""
    squares = [grid.start]
    for word in response.split():
        if word not in MOVES:
            break
        squares.append((squares[-1][0] + MOVES[word][0], squares[-1][1] + MOVES[word][1]))
        if grid.walls[squares[-1]]:
            return squares, True
    return squares, False


def _draw(shown: Sequence[tuple[Arm, list[Response]]]) -> Figure:
    drawing = Figure(figsize=(0.75 * style.WIDTH, 2.5 * len(shown)), layout="constrained")
    for row, (arm, answers) in zip(drawing.subplots(len(shown), 2, squeeze=False), shown, strict=True):
        for axes in row[len(answers) :]:
            axes.set_visible(False)
        for axes, answer in zip(row, answers, strict=False):
            _maze(axes, answer)
            title = f"{textwrap.fill(arm.short, 38)}\n{answer.problem_id}: {answer.outcome}"
            axes.set_title(title, loc="left", fontsize=8)
    return drawing


def _maze(axes: Axes, answer: Response) -> None:
    """A maze and a walk: walls grey, start a circle, goal a star; the walk ends in a square, at a wall in a cross."""
    grid = grid_of(answer.prompt)
    squares, blocked = walk_of(answer.response, grid)
    colour = RIGHT if answer.outcome == "correct" else WRONG
    axes.imshow(grid.walls, cmap="Greys", vmin=0, vmax=1.6)
    path = np.array(squares)
    axes.plot(path[:, 1], path[:, 0], color=colour, linewidth=1.6)
    marker, size = ("X", 9) if blocked else ("s", 7)
    axes.plot(path[-1, 1], path[-1, 0], marker, color=colour, markersize=size, markeredgecolor="white")
    axes.plot(grid.start[1], grid.start[0], "o", color="#222222", markersize=6)
    axes.plot(grid.goal[1], grid.goal[0], "*", color="#222222", markersize=10)
    axes.grid(visible=False)
    axes.set_axis_off()
