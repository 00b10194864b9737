import pytest

from rlvr.records import Problem
from rlvr.task.maze_walk import MazeWalk
from tests.task.test_maze import SMALL  # the one path: RIGHT RIGHT DOWN DOWN RIGHT RIGHT UP UP

TASK = MazeWalk(size=7, test_problems=64, seed=0)
RIGHT = "RIGHT PATH RIGHT PATH DOWN PATH DOWN PATH RIGHT PATH RIGHT PATH UP PATH UP GOAL DONE"
REPLIES = {
    "RIGHT": "PATH",
    "RIGHT PATH LEFT": "START",
    "RIGHT PATH RIGHT PATH RIGHT": None,  # a wall
    RIGHT.removesuffix(" GOAL DONE"): "GOAL",
    RIGHT: None,
    "PATH": None,
    "": "START",
}
JUDGED = {
    RIGHT: "correct",
    "RIGHT PATH RIGHT PATH DONE": "wrong",
    "RIGHT PATH RIGHT PATH RIGHT": "wrong",
    RIGHT.removesuffix(" DONE"): "unparsable",
    "RIGHT PATH PATH": "unparsable",
    "": "unparsable",
}


@pytest.mark.parametrize("said", REPLIES)
def test_the_reply_is_the_square_that_is_reached(said: str) -> None:
    assert TASK.reply(SMALL, said) == REPLIES[said]


@pytest.mark.parametrize("said", JUDGED)
def test_a_walk_is_judged_by_its_moves(said: str) -> None:
    (reward,) = TASK.reward([(SMALL, said)])
    assert (reward.outcome, reward.value) == (JUDGED[said], float(JUDGED[said] == "correct"))


def test_demonstrations_and_solutions_are_conversations_that_the_task_would_have() -> None:
    assert TASK.solution(SMALL) == RIGHT
    for index in range(50):
        prompt, said = TASK.demonstration(index)
        grid = "".join({"WALL": "#", "PATH": ".", "START": "S", "GOAL": "G"}.get(w, "") for w in prompt.split()[:-1])
        problem, words = Problem("", prompt, grid), said.split()
        assert TASK.reward([(problem, said)])[0].correct
        assert len(words) <= TASK.max_tokens
        for place in range(1, len(words), 2):
            assert TASK.reply(problem, " ".join(words[:place])) == words[place]
