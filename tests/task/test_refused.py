from typing import Any

import pytest

from tests.support.tasks import make_task

SKILLS = {"shortest": 3, "longest": 6, "taught": 8, "beyond": 10, "test_problems": 32}
LEVELS = r"one or several of the levels \(1, 2, 3, 4\)"
REFUSED: dict[str, tuple[dict[str, Any], list[tuple[dict[str, Any], str]]]] = {  # (usual knobs, [(others, message)])
    "bandit": (
        {"arms": 5, "centres": [2], "widths": [1], "heights": [1]},
        [
            *(({"arms": 1}, "at least 2 arms"), ({"centres": [1, 2]}, "have 2, 1 and 1 entries")),
            *(({"centres": [5]}, "must lie in 0 to 4"), ({"widths": [0]}, "above 0"), ({"copies": 0}, "at least 1")),
        ],
    ),
    "classes": (
        {"classes": 7, "contexts": 3},
        [(knobs, "at least 2 classes and 1 context") for knobs in ({"classes": 1}, {"contexts": 0})],
    ),
    "coins": (
        {},
        [
            ({"num_coins": 10}, r"task.num_coins=10, task.largest_coin=9: different coins"),
            ({"smallest": 50}, r"task.smallest=50, task.largest=40"),
            ({"smallest": 200, "largest": 300}, r"No sum of 200 to 300 can be paid with at most task.longest=12 coins"),
            ({"test_problems": 5000}, r"1 to 742 of these problems can be held out. Pass task.test_problems=742\."),
        ],
    ),
    "digits": (
        {"labelled": 10},
        [
            *(({"labelled": labelled}, "from 1 to 1442") for labelled in (0, 1443)),
            *(({"images": 4}, "task.images="), ({"validation": 1.0}, "task.validation=")),
            ({"train_problems": 1443}, "task.train_problems="),
        ],
    ),
    "maze": (
        {"size": 7, "test_problems": 64},
        [
            ({"size": 8}, r"task.size=8: a maze has an odd size of at least 5, such as task.size=7"),
            ({"size": 3}, r"odd size of at least 5"),
            ({"size": 5, "test_problems": 512}, r"1 to 10 mazes of this size .* task.test_problems=10 or a larger"),
            ({"loops": 5}, r"has 4 walls that can be opened. Pass task.loops=4 or a larger task.size"),
        ],
    ),
    "skills": (
        SKILLS,
        [
            ({"trained": "shift"}, r"task.trained=shift: different skills of sort, reverse, shift, fall, and one of"),
            *(({"skills": ["sort", other]}, r"different skills") for other in ("sort", "spell")),
            ({"longest": 9}, r"numbers of digits, 2 to 32, in this order"),
            ({"longest": 10, "taught": 10}, r"beyond is more than longest"),
        ],
    ),
    "styles": (
        {"shortest": 3, "longest": 8, "test_problems": 64},
        [
            *(({"shortest": 1}, "2 to 32 digits"), ({"shortest": 9}, "task.shortest=9, task.longest=8")),
            ({"shortest": 2, "longest": 2, "test_problems": 50}, r"1 to 6 strings .* Pass task.test_problems=6"),
        ],
    ),
    "sums": ({}, [(k, LEVELS) for k in ({"level": 5}, {"level": []}, {"level": [1, 1]}, {"test_levels": [0]})]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_impossible_knobs_are_refused(name: str) -> None:
    usual, cases = REFUSED[name]
    make_task(name, **usual)
    for knobs, message in cases:
        with pytest.raises(ValueError, match=message):
            make_task(name, **{**usual, **knobs})
