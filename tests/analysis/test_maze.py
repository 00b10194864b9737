from pathlib import Path

import numpy as np
import pandas as pd

from analysis.figures import maze as maze_figure
from analysis.frames.load import load
from analysis.report import style
from rlvr.ledger import layout
from rlvr.task import maze
from tests.analysis.ledger_factory import config, counts, write_run

# A corridor around a corner, and a dead end below the start.
GRID = "#####" + "#S..#" + "#.#.#" + "#.#G#" + "#####"
PROMPT = maze.prompt(GRID, 5)


def test_the_grid_of_a_prompt_is_the_maze_that_it_was_written_from() -> None:
    grid = maze_figure.grid_of(PROMPT)
    assert "".join("#" if wall else "." for wall in grid.walls.ravel()) == GRID.replace("S", ".").replace("G", ".")
    assert (grid.start, grid.goal) == ((1, 1), (3, 3))
    carved = maze.carve(9, b"key")
    posed = maze_figure.grid_of(maze.prompt(carved, 9))
    assert np.flatnonzero(posed.walls.ravel()).tolist() == [i for i, square in enumerate(carved) if square == "#"]


def test_a_walk_ends_at_its_wall_or_at_its_last_move() -> None:
    grid = maze_figure.grid_of(PROMPT)
    to_the_goal = [(1, 1), (1, 2), (1, 3), (2, 3), (3, 3)]
    assert maze_figure.walk_of("RIGHT RIGHT DOWN DOWN DONE", grid) == (to_the_goal, False)
    assert maze_figure.walk_of("RIGHT DOWN DOWN DONE", grid) == ([(1, 1), (1, 2), (2, 2)], True)
    assert maze_figure.walk_of("DOWN nonsense UP", grid) == ([(1, 1), (2, 1)], False)
    assert maze_figure.walk_of("", grid) == ([(1, 1)], False)


def test_a_right_walk_and_the_longest_that_never_comes_to_the_goal_are_drawn(tmp_path: Path) -> None:
    run_id = write_run(tmp_path, config(loss="grpo"), {0: {"maze5": counts(0)}, 40: {"maze5": counts(1, n=5)}})
    file = layout.evaluation(layout.run(tmp_path, run_id), 40)
    table = pd.read_parquet(file)
    assert maze_figure.figure(load(tmp_path)) is None  # a run whose prompts are not mazes
    table["prompt"] = PROMPT
    table["response"] = [
        *("RIGHT RIGHT DOWN DOWN DONE", "LEFT DONE", "DOWN DOWN DOWN DONE", "DOWN DONE"),
        "RIGHT RIGHT DOWN DOWN UP UP DONE",  # leaves the goal again
    ]
    table.to_parquet(file)
    drawn = maze_figure.figure(load(tmp_path))
    titles = [axes.get_title(loc="left") for axes in drawn.axes]
    assert titles == ["grpo\nmaze5-0: correct", "grpo\nmaze5-0: wrong"]
    right, wrong = (axes.lines[0] for axes in drawn.axes)
    assert list(zip(right.get_ydata(), right.get_xdata(), strict=True))[-1] == (3, 3)
    assert list(zip(wrong.get_ydata(), wrong.get_xdata(), strict=True)) == [(1, 1), (2, 1), (3, 1), (4, 1)]


def test_names_of_arms_stay_on_the_page(tmp_path: Path) -> None:
    for loss, eta, every in (("grpo", 1.0, 1), ("lad", 0.25, 1), ("lad", 4.0, 1), ("lad", 4.0, 150)):
        frozen = config(loss=loss, eta=eta, trainer={"reference_every": every})
        evaluations = {0: {"maze5": counts(0)}, 40: {"maze5": counts(1, n=5)}}
        run_id = write_run(tmp_path, frozen, evaluations, name=f"{loss}-{eta}-{every}")
        file = layout.evaluation(layout.run(tmp_path, run_id), 40)
        table = pd.read_parquet(file)
        table["prompt"], table["response"] = PROMPT, "RIGHT DONE"
        table.to_parquet(file)
    drawn = maze_figure.figure(load(tmp_path))
    style.encode(drawn, "png")
    box = drawn.get_tightbbox()
    assert 0 <= box.x0 < box.x1 <= drawn.get_figwidth()
    titles = {" ".join(axes.get_title(loc="left").split()) for axes in drawn.axes}
    assert any("η=4" in title for title in titles)
