import json
from collections import Counter, deque
from functools import lru_cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from rlvr.records import Problem
from rlvr.task.maze import Maze, carve, held_out, num_closed, num_mazes, num_open, stroll

STEPS = {"UP": (-1, 0), "DOWN": (1, 0), "LEFT": (0, -1), "RIGHT": (0, 1)}
Square = tuple[int, int]

# The one path: RIGHT RIGHT DOWN DOWN RIGHT RIGHT UP UP.
SMALL = Problem(
    "hand", "",
    "#######"
    "#S..#G#"
    "###.#.#"
    "#.....#"
    "#######",
    "hand",
)  # fmt: skip


def make_maze(size: int = 7, test_problems: int = 64, seed: int = 0) -> Maze:
    return Maze(size=size, test_problems=test_problems, seed=seed)


def read_prompt(prompt: str) -> tuple[dict[Square, str], int]:
    """Squares of a prompt by (row, column), and the number of rows: read from the words alone."""
    first, *words, end, path_start = prompt.split(" ")
    assert (first, end, path_start) == ("GRID_START", "GRID_END", "PATH_START")
    rows = " ".join(words).split("NEWLINE")
    assert rows.pop() == ""
    return {(r, c): word for r, row in enumerate(rows) for c, word in enumerate(row.split())}, len(rows)


def open_neighbours(squares: dict[Square, str], at: Square) -> list[Square]:
    around = [(at[0] + dr, at[1] + dc) for dr, dc in STEPS.values()]
    return [square for square in around if squares.get(square, "WALL") != "WALL"]


def distances(squares: dict[Square, str], start: Square) -> dict[Square, int]:
    """Breadth-first search."""
    distance, queue = {start: 0}, deque([start])
    while queue:
        square = queue.popleft()
        for neighbour in open_neighbours(squares, square):
            if neighbour not in distance:
                distance[neighbour] = distance[square] + 1
                queue.append(neighbour)
    return distance


def where(squares: dict[Square, str], word: str) -> Square:
    (square,) = [square for square, what in squares.items() if what == word]
    return square


def walked(squares: dict[Square, str], moves: list[str]) -> list[Square]:
    """The squares of a walk from the start, which ends at a wall if it comes to one."""
    path = [where(squares, "START")]
    for move in moves:
        if squares[path[-1]] != "WALL":
            path.append((path[-1][0] + STEPS[move][0], path[-1][1] + STEPS[move][1]))
    return path


mazes = st.builds(
    lambda size, index: make_maze(size, 8).problem("train", index),
    st.sampled_from([5, 7, 9, 13, 17]),
    st.integers(0, 2**40),
)


@settings(max_examples=60, deadline=None)
@given(mazes)
def test_maze_is_a_spanning_tree_of_its_cells(problem: Problem) -> None:
    squares, size = read_prompt(problem.prompt)
    assert len(squares) == size**2
    nodes = [square for square, word in squares.items() if word != "WALL"]
    edges = sum(len(open_neighbours(squares, square)) for square in nodes) // 2
    assert edges == len(nodes) - 1  # with connectedness: a tree
    assert len(distances(squares, nodes[0])) == len(nodes)
    assert all((r, c) in nodes for r in range(1, size, 2) for c in range(1, size, 2))
    assert all(squares[edge, i] == squares[i, edge] == "WALL" for edge in (0, size - 1) for i in range(size))


@settings(max_examples=120, deadline=None)
@given(st.sampled_from([(5, 0), (7, 0), (9, 0), (17, 0), (7, 2), (9, 5), (17, 20)]), st.integers(0, 2**40))
def test_demonstrations_are_walks_to_the_goal_without_detours(shape: tuple[int, int], index: int) -> None:
    """Without loops the shortest."""
    task = Maze(size=shape[0], loops=shape[1], test_problems=8, seed=0)
    prompt, response = task.demonstration(index)
    squares, _ = read_prompt(prompt)
    path = walked(squares, response.split()[:-1])
    assert "WALL" not in {squares[square] for square in path}
    assert (squares[path[-1]], len(set(path))) == ("GOAL", len(path))
    if not shape[1]:
        assert len(path) - 1 == distances(squares, path[0])[path[-1]]
    assert len(path) == len(response.split()) <= task.max_tokens


@settings(max_examples=200, deadline=None)
@given(mazes, st.lists(st.sampled_from(list(STEPS)), max_size=30))
def test_reward_agrees_with_a_walk_on_the_prompt(problem: Problem, moves: list[str]) -> None:
    squares, size = read_prompt(problem.prompt)
    correct = squares[walked(squares, moves)[-1]] == "GOAL"
    (reward,) = make_maze(size, 8).reward([(problem, " ".join([*moves, "DONE"]))])
    assert (reward.correct, reward.value) == (correct, float(correct))
    assert reward.outcome in {"correct", "wrong"}


@pytest.mark.parametrize(
    ("response", "outcome"),
    [
        ("RIGHT RIGHT DOWN DOWN RIGHT RIGHT UP UP DONE", "correct"),
        ("RIGHT RIGHT LEFT RIGHT DOWN DOWN RIGHT RIGHT UP UP DONE", "correct"),  # a square may be visited again
        ("RIGHT RIGHT DOWN DOWN RIGHT RIGHT UP DONE", "wrong"),  # one short
        ("RIGHT RIGHT DOWN DOWN RIGHT RIGHT UP UP DOWN DONE", "wrong"),  # leaves the goal again
        ("RIGHT RIGHT RIGHT RIGHT DONE", "wrong"),  # through the wall to the goal
        ("UP DONE", "wrong"),  # out of the grid
        ("LEFT LEFT LEFT LEFT DONE", "wrong"),
        ("DONE", "wrong"),
        ("RIGHT RIGHT DOWN DOWN RIGHT RIGHT UP UP", "unparsable"),  # cut before DONE
        ("RIGHT RIGHT DOWN DOWN RIGHT RIGHT UP UP DONE DONE", "unparsable"),
        ("RIGHT RIGHT DOWN DOWN RIGHT RIGHT UP UP DONE UP", "unparsable"),
        ("RIGHT RIGHT DOWN DOWN RIGHT WALL RIGHT UP UP DONE", "unparsable"),
        ("right DONE", "unparsable"),
        ("", "unparsable"),
    ],
)
def test_outcome_of_a_walk(response: str, outcome: str) -> None:
    (reward,) = make_maze(7).reward([(SMALL, response)])
    assert (reward.outcome, reward.value) == (outcome, float(outcome == "correct"))


def test_one_maze_in_eight_is_held_out() -> None:
    draws = [held_out(carve(17, b"%d" % i)) for i in range(4000)]
    # Binomial(4000, 1/8): mean 500, standard deviation 21.
    assert abs(sum(draws) - 500) < 4 * 21


def test_problems_are_a_pure_function_of_seed_size_and_index() -> None:
    first, second = make_maze(), make_maze()
    _ = [first.problem("train", i) for i in (3, 1)]
    assert first.problem("train", 5) == second.problem("train", 5)
    assert first.problem("test", 9) == make_maze(test_problems=512).problem("test", 9)
    assert first.problem("train", 5) != make_maze(seed=1).problem("train", 5)
    ids = [first.problem(split, i).id for split in ("train", "test") for i in range(64)]
    assert len(set(ids)) == 128
    assert json.loads(json.dumps(first.problem("train", 5).answer)) == first.problem("train", 5).answer


@lru_cache
def prim(visited: frozenset[int], edges: frozenset[tuple[int, int]]) -> dict[frozenset[tuple[int, int]], float]:
    """Exact distribution of the tree that Prim's algorithm grows on 3 x 3 cells from a partial tree."""
    grid = [(a, b) for a in range(9) for b in range(9) if (b == a + 1 and b % 3) or b == a + 3]
    border = [e for e in grid if (e[0] in visited) != (e[1] in visited)]
    if not border:
        return {edges: 1.0}
    total: Counter[frozenset[tuple[int, int]]] = Counter()
    for edge in border:
        for tree, probability in prim(visited | set(edge), edges | {edge}).items():
            total[tree] += probability / len(border)
    return dict(total)


def tree_of(grid: str) -> frozenset[tuple[int, int]]:
    """Passages of a 7 x 7 maze as pairs of cell numbers 0 to 8."""
    at = lambda cell: (1 + 2 * (cell // 3)) * 7 + 1 + 2 * (cell % 3)  # noqa: E731
    pairs = [(a, b) for a in range(9) for b in range(9) if (b == a + 1 and b % 3) or b == a + 3]
    return frozenset((a, b) for a, b in pairs if grid[(at(a) + at(b)) // 2] != "#")


@pytest.mark.slow
def test_trees_are_distributed_as_by_prims_algorithm() -> None:
    expected: Counter[frozenset[tuple[int, int]]] = Counter()
    for start in range(9):
        for tree, probability in prim(frozenset({start}), frozenset()).items():
            expected[tree] += probability / 9
    assert len(expected) == 192  # spanning trees of the 3 x 3 grid (OEIS A007341)
    num = 20_000
    drawn = Counter(tree_of(carve(7, b"%d" % i)) for i in range(num))
    result = chisquare([drawn[tree] for tree in expected], [num * p for p in expected.values()])
    assert result.pvalue > 1e-3


def test_number_of_mazes() -> None:
    # 2 x 2 cells: 4 trees, 7 open squares; 3 x 3: 192 trees, 17; 4 x 4: 100352 trees, 31 (OEIS A007341).
    assert (num_mazes(5), num_mazes(7)) == (pytest.approx(4 * 7 * 6), pytest.approx(192 * 17 * 16))
    assert num_mazes(9) == pytest.approx(100_352 * 31 * 30)


def test_response_limit_admits_the_longest_path() -> None:
    # A snake through all 9 cells of a 7 x 7 maze: 16 moves and DONE.
    assert make_maze(7).max_tokens == num_open(7) == 17
    grid = (
        "#######"
        "#S....#"
        "#####.#"
        "#.....#"
        "#.#####"
        "#....G#"
        "#######"
    )  # fmt: skip
    snake = Problem("snake", "", grid, "hand")
    walk = "RIGHT RIGHT RIGHT RIGHT DOWN DOWN LEFT LEFT LEFT LEFT DOWN DOWN RIGHT RIGHT RIGHT RIGHT DONE"
    assert len(walk.split()) == 17
    assert make_maze(7).reward([(snake, walk)])[0].correct


def test_every_word_is_in_the_vocabulary_of_32() -> None:
    task = make_maze(17, 8)
    assert len(task.vocabulary) == len(set(task.vocabulary)) == 32
    prompt, response = task.demonstration(0)
    assert set(prompt.split(" ")) | set(response.split(" ")) <= set(task.vocabulary)
    assert task.end_word == response.split(" ")[-1]
    assert len(prompt.split(" ")) == 17 * 17 + 17 + 3


def test_the_solution_of_every_problem_earns_the_reward() -> None:
    for size, num_test in ((7, 64), (5, 10)):
        task = make_maze(size, num_test)
        problems = [task.problem("train", i) for i in range(50)] + [task.problem("test", i) for i in range(num_test)]
        answers = [task.solution(problem) for problem in problems]
        assert all(r.value == 1 for r in task.reward(list(zip(problems, answers, strict=True))))
        assert max(len(a.split(" ")) for a in answers) <= task.max_tokens
    held_out_mazes = {problem.answer for problem in problems[50:]}  # of the smallest mazes: as many as there can be
    assert len(held_out_mazes) == 10
    assert not held_out_mazes & {problem.answer for problem in problems[:50]}


LOOPED = Problem(
    "hand", "",
    "#######"
    "#S...##"
    "#.#.###"
    "#...#.#"
    "###.#.#"
    "#...G.#"
    "#######",
    "hand",
)  # fmt: skip


def test_loops_open_as_many_walls_and_nothing_else() -> None:
    for loops in (1, 3, 9):
        grid = carve(9, b"key", loops=loops)
        plain = carve(9, b"key")
        opened = [i for i in range(81) if (plain[i] == "#") != (grid[i] == "#")]
        assert len(opened) == loops
        assert all((i // 9) % 2 != (i % 9) % 2 for i in opened)  # walls between two cells, no corners
        assert all(0 < i // 9 < 8 and 0 < i % 9 < 8 for i in opened)


def test_demonstrations_with_loops_show_several_walks_of_one_maze() -> None:
    walks = Counter(" ".join(stroll(LOOPED.answer, 7, b"%d" % i)) for i in range(500))
    assert set(walks) == {"RIGHT RIGHT DOWN DOWN DOWN DOWN RIGHT", "DOWN DOWN RIGHT RIGHT DOWN DOWN RIGHT"}
    assert min(walks.values()) > 100


def test_solutions_with_loops_are_shortest() -> None:
    task = Maze(size=9, loops=6, test_problems=8, seed=0)
    for i in range(50):
        problem = task.problem("train", i)
        squares, _ = read_prompt(problem.prompt)
        length = len(task.solution(problem).split()) - 1
        assert length == distances(squares, where(squares, "START"))[where(squares, "GOAL")]


def test_walks_that_differ_by_detours_are_one_answer() -> None:
    task = Maze(size=7, loops=1, test_problems=8, seed=0)
    one = "RIGHT RIGHT DOWN DOWN DOWN DOWN RIGHT"
    answers = {
        f"{one} DONE": one,
        "RIGHT LEFT RIGHT RIGHT DOWN DOWN DOWN DOWN RIGHT DONE": one,  # a step back
        "RIGHT RIGHT DOWN DOWN LEFT RIGHT DOWN DOWN RIGHT DONE": one,  # and forth
        "RIGHT RIGHT DOWN DOWN LEFT LEFT UP UP RIGHT RIGHT DOWN DOWN DOWN DOWN RIGHT DONE": one,  # once around
        "DOWN DOWN RIGHT RIGHT DOWN DOWN RIGHT DONE": "DOWN DOWN RIGHT RIGHT DOWN DOWN RIGHT",
        "RIGHT DONE": None,  # wrong
    }
    assert {text: task.canonical(LOOPED, text) for text in answers} == answers
    assert task.several_answers
    assert not Maze(size=7, test_problems=8, seed=0).several_answers


def test_every_maze_with_loops_has_its_own_name_and_number() -> None:
    assert Maze(size=9, loops=3, test_problems=8, seed=0).source == "maze_9x9_loops3"
    assert num_closed(7) == 12 - 8  # walls between 3 x 3 cells less the passages of a tree
    # 5 x 5 has one loop: its only layout has 8 open squares, 8 · 7 = 56 mazes.
    grids = {carve(5, b"%d" % i, loops=1) for i in range(4000)}
    assert len(grids) == 56 >= num_mazes(5, 1)
    # 7 x 7 with every wall open: 21 squares.
    assert len({carve(7, b"%d" % i, loops=4) for i in range(8000)}) == 21 * 20 >= num_mazes(7, 4)
