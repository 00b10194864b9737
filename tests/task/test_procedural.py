import hashlib
import json
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from rlvr.records import Split
from rlvr.task import procedural
from rlvr.task.maze import Maze
from rlvr.task.procedural import Dice, Procedural
from rlvr.task.styles import Styles


class Numbers(Procedural[int]):
    """The numbers 0 to 999; every fifth is held out."""

    source = "numbers"

    def __init__(self, *, mistakes: float = 0.0, fill: float = 0.5, **knobs: Any) -> None:
        super().__init__(**{"test_problems": 30, "seed": 0, **knobs})
        self.mistakes = mistakes
        self.set_sizes(num_items=1000, share=0.2, fill=fill, kind="numbers")

    def draws(self, stream: str, index: int) -> Iterator[int]:
        return (Dice(f"{stream} {index} {attempt}").below(1000) for attempt in count())

    def held_out(self, item: int) -> bool:
        return item % 5 == 0

    def posed(self, item: int) -> tuple[str, int]:
        return f"number {item}", item


def answers(task: Procedural[int], split: Split, number: int) -> list[int]:
    return [task.problem(split, i).answer for i in range(number)]


def test_the_splits_have_nothing_in_common() -> None:
    task = Numbers(test_problems=40, validation_problems=30)
    test, validation, final = answers(task, "test", 40), answers(task, "validation", 30), answers(task, "final", 40)
    assert len({*test, *validation, *final}) == 110
    assert all(item % 5 == 0 for item in test + validation + final)
    assert all(item % 5 for item in answers(task, "train", 3000))
    assert all(shown % 5 and shown == answered for shown, answered in map(task.demonstrated, range(500)))


def test_a_larger_set_contains_the_smaller_one() -> None:
    for knob, split, sizes in (
        ("test_problems", "test", (10, 60)),
        ("train_problems", "train", (10, 300)),
        ("validation_problems", "validation", (10, 60)),
    ):
        small, large = (Numbers(**{knob: size}) for size in sizes)
        assert answers(small, split, sizes[0]) == answers(large, split, sizes[1])[: sizes[0]]  # type: ignore[arg-type]


def every(task: Procedural[Any], split: Split) -> set[str]:
    return {task.problem(split, i).prompt for i in range(task.size(split) or 0)}


def test_larger_sets_do_not_reach_into_final() -> None:
    final = every(Numbers(), "final")
    assert len(final) == 30
    for sizes in ((100, 0), (60, 40), (30, 70), (1, 99)):  # up to all of the 100 that can be held out
        larger = Numbers(test_problems=sizes[0], validation_problems=sizes[1])
        assert not final & (every(larger, "test") | every(larger, "validation"))
    final = every(Styles(shortest=3, longest=4, test_problems=16, seed=0), "final")
    larger = Styles(shortest=3, longest=4, test_problems=64, seed=0)
    assert len(final) == 16
    assert not final & (every(larger, "test") | every(larger, "validation"))


def test_where_nearly_all_is_held_out_final_has_what_is_reached_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(procedural, "PATIENCE", 3000)  # without one of 200 items once in a million times
    small, all_taken = (Numbers(fill=0.9, test_problems=n, validation_problems=180 - n) for n in (90, 180))
    others = every(small, "test") | every(small, "validation")
    assert (len(others), small.size("final"), all_taken.size("final")) == (180, 20, 20)
    assert not others & every(small, "final")
    few = every(Numbers(fill=0.9, test_problems=10, validation_problems=10), "final")
    assert not few & every(Numbers(fill=0.9, test_problems=100, validation_problems=0), "test")


def test_validation_is_as_large_as_test_where_there_is_room() -> None:
    assert Numbers(test_problems=30).size("validation") == 30
    assert Numbers(test_problems=70).size("validation") == 30  # half of 200 can be held out
    assert Numbers(test_problems=100).size("validation") == 0
    assert Numbers(validation_problems=0).size("validation") == 0


def test_a_fixed_training_set_is_finite_and_distinct() -> None:
    task = Numbers(train_problems=256)
    train = answers(task, "train", 256)
    assert task.size("train") == len(set(train)) == 256
    assert train[0] == Numbers().problem("train", 0).answer  # the stream's own order
    with pytest.raises(IndexError, match="numbers has no train problem 256"):
        task.problem("train", 256)


def test_mistakes_are_as_frequent_as_asked_and_stay_in_training() -> None:
    task = Numbers(mistakes=0.3)
    pairs = [task.demonstrated(i) for i in range(4000)]
    wrong = [(shown, answered) for shown, answered in pairs if shown != answered]
    assert abs(len(wrong) / 4000 - 0.3) < 4 * (0.3 * 0.7 / 4000) ** 0.5 + 0.001  # another draw is equal once in 800
    assert all(answered % 5 for _, answered in wrong)
    assert [shown for shown, _ in pairs] == [shown for shown, _ in map(Numbers().demonstrated, range(4000))]


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"test_problems": 101}, r"test_problems=101: 1 to 100 numbers can be held out. Pass task.test_problems=100\."),
        ({"validation_problems": 71}, r"validation_problems=71: 0 to 70 numbers can be held out beside task.test_p"),
        ({"train_problems": 401}, r"a fixed training set has 1 to 400 numbers. Pass task.train_problems=400, or null"),
    ],
)
def test_impossible_sizes_are_refused(knobs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Numbers(**knobs)


def test_dice_are_even_and_the_same_everywhere() -> None:
    # SHA-256 seeds a Mersenne twister: the first number of a name, computed once and written down.
    assert Dice("a name").share() == pytest.approx(0.1916825112710625, abs=0)
    counts = [0] * 6
    for i in range(6000):
        counts[Dice(f"throw {i}").below(6)] += 1
    assert sum((c - 1000) ** 2 / 1000 for c in counts) < 20.5  # chi-square with 5 degrees of freedom, p = 0.001
    weighed = [Dice(f"weighed {i}").choose("abc", [1, 0, 3]) for i in range(4000)]
    assert "b" not in weighed
    assert abs(weighed.count("a") - 1000) < 4 * 750**0.5
    assert sorted(Dice("all").sample(range(9), 9)) == list(range(9))


# SHA-256 of problems and demonstrations as they were before there was a validation split.
DIGESTS = {
    "maze_7": "aa39cfc0b84928bf",
    "maze_5": "08ec1e1416de6604",
    "maze_17": "e4b3d30e443b6fb8",
    "styles": "802a44ec348055e8",
    "styles_3": "79f7cf63206cc76c",
}
OLD = {
    "maze_7": (lambda: Maze(size=7, test_problems=512, seed=0), 500, 512, 200),
    "maze_5": (lambda: Maze(size=5, test_problems=10, seed=3), 100, 10, 200),
    "maze_17": (lambda: Maze(size=17, test_problems=64, seed=1), 50, 64, 50),
    "styles": (lambda: Styles(shortest=3, longest=16, test_problems=256, seed=0), 500, 256, 200),
    "styles_3": (lambda: Styles(shortest=3, longest=3, test_problems=60, seed=2), 500, 60, 200),
}


@pytest.mark.parametrize("name", OLD)
def test_published_problems_stay_what_they_are(name: str) -> None:
    make, num_train, num_test, num_shown = OLD[name]
    task = make()
    problems = [task.problem("train", i) for i in range(num_train)] + [task.problem("test", i) for i in range(num_test)]
    rows = [[p.id, p.prompt, p.answer, p.source] for p in problems]
    shown = [task.demonstration(i) for i in range(num_shown)]
    assert hashlib.sha256(json.dumps([rows, shown]).encode()).hexdigest()[:16] == DIGESTS[name]
