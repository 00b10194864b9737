import json
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from rlvr.noise import GAMMA, mix, to_unit, uniform

WORD = (1 << 64) - 1
word = st.integers(min_value=0, max_value=WORD)


def plain_mix(bits: int) -> int:
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9 & WORD
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB & WORD
    return bits ^ (bits >> 31)


def plain_uniform(seed: int, step: int, key: int, sample: int, position: int) -> float:
    """The definition with Python's integers, one number at a time."""
    gamma, state = 0x9E3779B97F4A7C15, 0
    for name in (seed, step, key, sample):
        state = plain_mix(((state ^ (name & WORD)) + gamma) & WORD)
    bits = plain_mix((state + (position + 1) * gamma) & WORD)
    return ((bits >> 12) + 0.5) / 2**52


def test_mix_gives_the_published_splitmix64_stream() -> None:
    # The first outputs for the seed 1234567, printed on Rosetta Code ("Pseudo-random numbers/Splitmix64").
    states = np.uint64(1234567) + np.arange(1, 6, dtype=np.uint64) * GAMMA
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert mix(states).tolist() == [*published, 4593380528125082431, 16408922859458223821]


@given(seed=word, step=word, key=st.integers(min_value=-(2**63), max_value=WORD), sample=word)
def test_uniform_agrees_with_plain_integers(seed: int, step: int, key: int, sample: int) -> None:
    expected = [plain_uniform(seed, step, key, sample, position) for position in range(3, 6)]
    assert uniform(seed, step, [key], [sample], 3, 3)[0].tolist() == expected


def test_a_number_does_not_depend_on_its_batch_or_block() -> None:
    block = uniform(7, 3, [11, 12, 13], [0, 5, 0], 0, 100)
    assert np.array_equal(uniform(7, 3, [12], [5], 64, 20)[0], block[1, 64:84])
    assert np.array_equal(uniform(7, 3, [13, 11], [0, 0], 10, 1), block[[2, 0], 10:11])


def test_numbers_lie_inside_the_open_interval() -> None:
    extremes = to_unit(np.array([0, WORD], dtype=np.uint64))
    assert (extremes[0], extremes[1]) == (2.0**-53, 1 - 2.0**-53)


AXES = {"seed": lambda i: uniform(i, 2, [3], [4], 0, 1)[0, 0], "step": lambda i: uniform(1, i, [3], [4], 0, 1)[0, 0]}


def stream(axis: str) -> np.ndarray:
    """Numbers whose keys differ only in one component, by one."""
    count = 20000 if axis in ("key", "sample", "position") else 3000
    if axis == "position":
        return uniform(1, 2, [3], [4], 0, count)[0]
    if axis == "key":
        return uniform(1, 2, range(count), [4] * count, 0, 1)[:, 0]
    if axis == "sample":
        return uniform(1, 2, [3] * count, range(count), 0, 1)[:, 0]
    return np.array([AXES[axis](i) for i in range(count)])


@pytest.mark.parametrize("axis", ["seed", "step", "key", "sample", "position"])
def test_neighbours_along_every_axis_are_uniform_and_independent(axis: str) -> None:
    numbers = stream(axis)
    assert stats.kstest(numbers, "uniform").pvalue > 1e-3
    pairs = np.histogram2d(numbers[:-1:2], numbers[1::2], bins=8, range=[[0, 1], [0, 1]])[0]
    assert stats.chisquare(pairs.ravel()).pvalue > 1e-3
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 4 / np.sqrt(len(numbers))


DRAWN = """
import json, sys
from hydra.utils import instantiate
from tests.support.composing import composing
from rlvr.records import Problem, Reward, Rollout, Sampling
from rlvr.rollout.sampler import noise_key
from rlvr.rollout.selection import with_training_rewards
from hydra import compose
import numpy as np

drawn = {"key": noise_key(Problem("p0", ""))}
group = Rollout(Problem("p0", ""), np.zeros(1, np.int64), (), ("",) * 64, (Reward(0.0, "wrong"),) * 64)
(random,) = with_training_rewards([group], "random", Sampling(max_tokens=1, seed=3, step=7))
drawn["rewards"] = [reward.value for reward in random.rewards]
with composing():
    for name in ("coins", "maze", "skills", "styles"):
        task = instantiate(compose("run", [f"task={name}"]).task, _convert_="all")
        drawn[name] = [[task.problem(split, i).prompt for i in (0, 7)] for split in ("train", "test")]
        task.close()
print(json.dumps(drawn))
"""


@pytest.mark.slow
def test_draws_are_the_same_in_every_process() -> None:
    """Unlike Python's own hashes, whose seed differs between processes."""
    outputs = [
        subprocess.run(
            [sys.executable, "-c", DRAWN],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert (outputs[0], len(json.loads(outputs[0]))) == (outputs[1], 6)
