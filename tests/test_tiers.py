"""Three runs of continuous integration, one third each, run every slow test once."""

from __future__ import annotations

from tests.conftest import third_of_each


def test_each_file_is_in_one_third_and_no_third_is_longer_than_another_by_more_than_a_file() -> None:
    seconds = {f"tests/test_{number}.py": float(number**2) for number in range(1, 20)}
    thirds = third_of_each(seconds, seconds)
    sums = [sum(seconds[file] for file, third in thirds.items() if third == number) for number in range(3)]
    assert thirds.keys() == seconds.keys()
    assert sum(sums) == 19 * 20 * 39 / 6  # the sum of the squares of 1 to 19
    assert max(sums) - min(sums) <= 19**2


def test_the_thirds_depend_on_the_files_and_their_seconds_alone() -> None:
    files = [f"tests/test_{number}.py" for number in range(9)]  # none of them timed yet
    assert third_of_each(files, {}) == third_of_each(files[::-1], {"tests/gone.py": 900.0})
