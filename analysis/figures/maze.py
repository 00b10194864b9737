"""Mazes with walks of a policy: one that reaches the goal and one that does not (MaxRL, figure 10)."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.frames.frames import Frames
from analysis.frames.samples import Response
from analysis.report import style
from analysis.scores.arm import Arm, arms
from analysis.scores.cell import last_points
from analysis.scores.metric import benchmarks

QUESTION = "Which walks does a policy take, and where do they leave the way?"
TASK = "maze"
MOST_ARMS, MOST_PROBLEMS = 3, 24  # rows of the figure; problems of each outcome among which one is chosen
RIGHT, WRONG = "#0072B2", "#D55E00"
MOVES = {"UP": (-1, 0), "DOWN": (1, 0), "LEFT": (0, -1), "RIGHT": (0, 1)}
Square = tuple[int, int]  # row, column


@dataclass(frozen=True)
class MazeGrid:
    """A maze as its prompt describes it. walls: [rows, columns], true where a wall is."""

    walls: np.ndarray
    start: Square
    goal: Square


@dataclass(frozen=True)
class Walk:
    """The squares that a response visits, in order. blocked: the wall that ended the walk; None if none did."""

    squares: tuple[Square, ...]
    blocked: Square | None


def figure(frames: Frames) -> Figure | None:
    """None unless a policy was evaluated on mazes and its samples are available."""
    shown = pairs(frames)
    return style.with_style(lambda: _draw(shown)) if shown else None


@dataclass(frozen=True)
class ShownWalks:
    """A right and a wrong answer, or only one of them, of one evaluation of an arm."""

    arm: Arm
    run_id: str
    step: int
    answers: tuple[Response, ...]


def pairs(frames: Frames) -> list[ShownWalks]:
    """Of the last evaluation of the first run with samples, for each arm of the figure."""
    policies = [arm for arm in arms(frames) if arm.first.task == TASK and not arm.control]
    of_arms = (_pair(frames, arm) for arm in policies[:MOST_ARMS])
    return [pair for pair in of_arms if pair is not None]


def _pair(frames: Frames, arm: Arm) -> ShownWalks | None:
    sources, _ = benchmarks(frames, arm.run_ids)
    for run_id, point in last_points(frames, arm).items():
        problems = _problems(frames, run_id, point.after, sources)
        answers = [r for r in frames.responses(run_id, point.after, problems) if "GRID_START" in r.prompt]
        chosen = [[r for r in answers if r.outcome == outcome] for outcome in ("correct", "wrong")]
        if any(chosen):
            shown = tuple(max(same_outcome, key=_interest) for same_outcome in chosen if same_outcome)
            return ShownWalks(arm, run_id, point.after, shown)
    return None


def _interest(answer: Response) -> tuple[bool, int]:
    """The largest for the answer to show: first walks that never reach the goal, then the longest ones."""
    grid = grid_of(answer.prompt)
    squares = walk_of(answer.response, grid).squares
    return grid.goal not in squares, len(squares)


def _problems(frames: Frames, run_id: str, step: int, sources: Sequence[str]) -> list[tuple[str, str]]:
    """Problems, as (source, id): the first that were solved, and the first that were not always solved."""
    counted = []
    for source in sources:
        judged = frames.problem_counts(run_id, step, source)
        if judged is not None:
            counted += zip(judged.problems, judged.n.tolist(), judged.c.tolist(), strict=True)
    solved = [problem for problem, _, c in counted if c > 0][:MOST_PROBLEMS]
    missed = [problem for problem, n, c in counted if c < n][:MOST_PROBLEMS]
    return list(dict.fromkeys([*solved, *missed]))


def grid_of(prompt: str) -> MazeGrid:
    """The maze of a prompt, whose words are rows of WALL, PATH, START and GOAL, each ended by NEWLINE."""
    words = prompt.split()
    squares = words[words.index("GRID_START") + 1 : words.index("GRID_END")]
    rows = [row.split() for row in " ".join(squares).split("NEWLINE") if row.strip()]
    at = {word: (r, row.index(word)) for r, row in enumerate(rows) for word in ("START", "GOAL") if word in row}
    return MazeGrid(np.array([[word == "WALL" for word in row] for row in rows]), at["START"], at["GOAL"])


def walk_of(response: str, grid: MazeGrid) -> Walk:
    """The walk of a response, up to the first wall, the first word that is not a move, or the end."""
    squares = [grid.start]
    for word in response.split():
        if word not in MOVES:
            break
        square = (squares[-1][0] + MOVES[word][0], squares[-1][1] + MOVES[word][1])
        if grid.walls[square]:
            return Walk(tuple(squares), square)
        squares.append(square)
    return Walk(tuple(squares), None)


def _draw(shown: Sequence[ShownWalks]) -> Figure:
    drawing = Figure(figsize=(0.75 * style.WIDTH, 2.5 * len(shown)), layout="constrained")
    for row, pair in zip(drawing.subplots(len(shown), 2, squeeze=False), shown, strict=True):
        for axes in row[len(pair.answers) :]:
            axes.set_visible(False)
        for axes, answer in zip(row, pair.answers, strict=False):
            _maze(axes, answer)
            title = f"{textwrap.fill(pair.arm.label, 38)}\n{answer.problem_id}: {answer.outcome}"
            axes.set_title(title, loc="left", fontsize=8)
    return drawing


def _maze(axes: Axes, answer: Response) -> None:
    """A maze and a walk: walls grey, start a circle, goal a star; the walk ends in a square, at a wall in a cross."""
    grid = grid_of(answer.prompt)
    walk = walk_of(answer.response, grid)
    colour = RIGHT if answer.outcome == "correct" else WRONG
    axes.imshow(grid.walls, cmap="Greys", vmin=0, vmax=1.6)
    path = np.array([*walk.squares, *([walk.blocked] if walk.blocked else [])])
    axes.plot(path[:, 1], path[:, 0], color=colour, linewidth=1.6)
    marker, size = ("X", 9) if walk.blocked else ("s", 7)
    axes.plot(path[-1, 1], path[-1, 0], marker, color=colour, markersize=size, markeredgecolor="white")
    axes.plot(grid.start[1], grid.start[0], "o", color="#222222", markersize=6)
    axes.plot(grid.goal[1], grid.goal[0], "*", color="#222222", markersize=10)
    axes.grid(visible=False)
    axes.set_axis_off()
