"""Runs summed up by arm."""

from __future__ import annotations

import dataclasses

import pytest

from rlvr.ledger.cause import State
from rlvr.ledger.state import RunState
from sweeps.arms import arms, total


def test_an_arm_sums_its_seeds_and_the_total_all() -> None:
    made = [
        RunState("a", "lad-js-s0", State.FINISHED, 1, 10, 10, accuracy=0.25, useful=3600, group_id="g", arm="lad-js"),
        RunState(
            "b",
            "lad-js-s1",
            State.RUNNING,
            2,
            4,
            10,
            accuracy=0.75,
            rate=2.0,
            eta=3.0,
            replayed=360,
            gpus=2,
            group_id="g",
            arm="lad-js",
        ),
        RunState("c", "lad-hd-s0", State.QUEUED, group_id="h", arm="lad-hd"),
    ]
    one, other = arms(made)
    assert (one.name, one.runs, one.states) == ("lad-js", 2, {"finished": 1, "running": 1})
    assert (one.step, one.steps, one.accuracy, one.rate, one.eta, one.attempts) == (14, 20, 0.5, 2.0, 3.0, 3)
    assert (one.hours_useful, one.hours_replayed, one.hours_wasted) == pytest.approx((1.0, 0.2, 0.0))
    assert (other.name, other.states, other.accuracy, other.rate) == ("lad-hd", {"queued": 1}, None, None)
    assert dataclasses.asdict(total("all", made))["steps"] == 30  # the queued one as long as its siblings
    nothing = total("all", [])  # a sweep cut off before its first run
    assert (nothing.runs, nothing.hours_useful, nothing.hours_wasted, nothing.eta) == (0, 0, 0, None)
