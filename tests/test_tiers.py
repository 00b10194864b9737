"""Four runs of continuous integration, one quarter each, run every slow test once."""

from tests.conftest import quarter_of_each


def test_each_file_is_in_one_quarter_and_no_quarter_is_longer_than_another_by_more_than_a_file() -> None:
    seconds = {f"tests/test_{number}.py": float(number**2) for number in range(1, 20)}
    quarters = quarter_of_each(seconds, seconds)
    sums = [sum(seconds[file] for file, quarter in quarters.items() if quarter == number) for number in range(4)]
    assert quarters.keys() == seconds.keys()
    assert sum(sums) == 19 * 20 * 39 / 6  # the sum of the squares of 1 to 19
    assert max(sums) - min(sums) <= 19**2


def test_the_quarters_depend_on_the_files_and_their_seconds_alone() -> None:
    files = [f"tests/test_{number}.py" for number in range(9)]  # none of them timed yet
    assert quarter_of_each(files, {}) == quarter_of_each(files[::-1], {"tests/gone.py": 900.0})


def test_the_files_on_slurm_which_one_worker_runs_are_spread_over_the_quarters() -> None:
    seconds = {f"tests/slurm/test_{number}.py": 100.0 for number in range(8)}
    seconds |= {f"tests/test_{number}.py": 90.0 + number for number in range(12)}
    quarters = quarter_of_each(seconds, seconds)
    on_slurm = [quarter for file, quarter in quarters.items() if "slurm" in file]
    assert [on_slurm.count(number) for number in range(4)] == [2, 2, 2, 2]
