from collections import Counter
from pathlib import Path

import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf
from sklearn.datasets import load_digits

from rlvr.ledger.stages import task_identity
from rlvr.task.digits import Digits

CONF = Path(__file__).parents[2] / "conf" / "task" / "digits.yaml"


@pytest.fixture(scope="module")
def task() -> Digits:
    return instantiate(OmegaConf.load(CONF))


def test_a_prompt_is_the_image_row_by_row_and_the_answer_its_label(task: Digits) -> None:
    data = load_digits()
    for split in ("train", "test"):
        for problem in (task.problem(split, index) for index in (0, 7, 100, 354)):
            number = int(problem.id.removeprefix("digits-"))
            assert problem.prompt.split() == [f"INK_{int(ink)}" for row in data.images[number] for ink in row]
            assert task.solution(problem) == f"DIGIT_{data.target[number]}"


def test_every_image_is_in_one_split_and_no_picture_in_both(task: Digits) -> None:
    splits = {s: [task.problem(s, i) for i in range(task.size(s) or 0)] for s in ("train", "test")}
    ids = Counter(p.id for part in splits.values() for p in part)
    assert ids == Counter(f"digits-{i}" for i in range(1797))
    assert not {p.prompt for p in splits["train"]} & {p.prompt for p in splits["test"]}
    # 1,797 images, 174 to 183 of a class (scikit-learn's documentation): a fifth of each, rounded down.
    per_class = Counter(p.answer for p in splits["test"])
    assert sorted(per_class.values()) == [34, 35, 35, 35, 36, 36, 36, 36, 36, 36]
    with pytest.raises(IndexError, match="355 test problems"):
        task.problem("test", 355)


def test_only_the_right_word_earns_a_reward(task: Digits) -> None:
    problem = task.problem("test", 0)
    wrong = next(w for w in ("DIGIT_0", "DIGIT_1") if w != problem.answer)
    responses = [problem.answer, wrong, "INK_3", "END", "", f"{problem.answer} {problem.answer}"]
    rewards = task.reward([(problem, text) for text in responses])
    assert [r.value for r in rewards] == [1, 0, 0, 0, 0, 0]
    assert [r.outcome for r in rewards] == ["correct", "wrong", *["unparsable"] * 4]


def test_demonstrations_are_the_labelled_training_images_again_and_again() -> None:
    task = Digits(labelled=3)
    shown = [task.demonstration(i) for i in range(6)]
    first = [task.problem("train", i) for i in range(3)]
    assert shown == [(p.prompt, p.answer) for p in first] * 2


def test_words_are_distinct_and_cover_prompts_and_answers(task: Digits) -> None:
    assert len(set(task.vocabulary)) == len(task.vocabulary) == 2 + 17 + 10
    used = {w for i in range(355) for w in (*task.problem("test", i).prompt.split(), task.problem("test", i).answer)}
    assert used <= set(task.vocabulary)


@pytest.mark.parametrize("images", [2, 3])
def test_several_images_make_a_number(images: int) -> None:
    task = Digits(labelled=1442, images=images)
    scans, labels = load_digits().images, load_digits().target
    by_picture = {tuple(scan.astype(int).flatten()): label for scan, label in zip(scans, labels, strict=True)}
    for split in ("train", "test"):
        problem = task.problem(split, 11)
        ink = [int(word.removeprefix("INK_")) for word in problem.prompt.split()]
        digits = [by_picture[tuple(ink[64 * i : 64 * i + 64])] for i in range(images)]
        assert problem.answer == "NUMBER_" + "".join(map(str, digits))
    assert (len(task.classes), len(set(task.vocabulary))) == (10**images, 2 + 17 + 10**images)
    assert (task.size("train"), task.size("test")) == (None, 2048)


def test_images_of_the_splits_do_not_meet() -> None:
    task = Digits(labelled=1000, images=2, validation=0.1, train_problems=3000)
    pictures = {
        split: {tuple(p[64 * i : 64 * i + 64]) for p in prompts for i in (0, 1)}
        for split, size in (("train", 3000), ("validation", 2048), ("test", 2048))
        for prompts in [[task.problem(split, i).prompt.split() for i in range(size)]]
    }
    assert not pictures["train"] & pictures["test"]
    assert not pictures["validation"] & (pictures["train"] | pictures["test"])
    assert len({task.problem("test", i).prompt for i in range(2048)}) == 2048
    shown = {tuple(p.split()[:64]) for p, _ in map(task.demonstration, range(3000))}
    assert not shown & (pictures["validation"] | pictures["test"])


def test_validation_images_leave_the_training_set_and_nothing_else(task: Digits) -> None:
    held = Digits(labelled=100, validation=0.2)
    parts = [{held.problem(split, i).id for i in range(held.size(split) or 0)} for split in ("train", "validation")]
    assert parts[0] | parts[1] == {task.problem("train", i).id for i in range(1442)}
    assert not parts[0] & parts[1]
    assert abs(len(parts[1]) - 288) < 4 * 15.2  # binomial(1442, 0.2)
    assert [held.problem("test", i) for i in range(355)] == [task.problem("test", i) for i in range(355)]
    assert task.size("validation") == 0


def test_the_base_policy_of_other_demonstrations_is_another_one() -> None:
    """Also where none of the first demonstrations is held out: `task_identity` looks at 64."""
    with_validation, without = (task_identity(Digits(labelled=1000, validation=v)) for v in (0.001, 0.0))
    assert with_validation["knobs"] != without["knobs"]
    assert "validation" not in without["knobs"]  # as before that knob


def test_a_small_training_set_is_part_of_a_larger_one() -> None:
    tasks = {n: Digits(labelled=10, train_problems=n) for n in (64, 256)}
    sets = [{task.problem("train", i).id for i in range(n)} for n, task in tasks.items()]
    assert (len(sets[0]), len(sets[1])) == (64, 256)
    assert sets[0] < sets[1]
