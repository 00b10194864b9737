import dataclasses

import pytest

from rlvr.ledger.cause import State
from rlvr.ledger.state import RunState
from sweeps.arms import arms, mixed_code, total


def test_an_arm_sums_its_seeds_and_the_total_all() -> None:
    js, running = {"group_id": "g", "arm": "lad-js"}, {"rate": 2.0, "eta": 3.0, "replayed": 360, "gpus": 2}
    states = [
        RunState("a", "lad-js-s0", State.FINISHED, 1, 10, 10, accuracy=0.25, useful=3600, **js),
        RunState("b", "lad-js-s1", State.RUNNING, 2, 4, 10, accuracy=0.75, **running, **js),
        RunState("c", "lad-hd-s0", State.QUEUED, group_id="h", arm="lad-hd"),
    ]
    lad_js, lad_hd = arms(states)
    assert (lad_js.name, lad_js.runs, lad_js.states) == ("lad-js", 2, {"finished": 1, "running": 1})
    assert (lad_js.step, lad_js.steps, lad_js.accuracy, lad_js.attempts) == (14, 20, 0.5, 3)
    assert (lad_js.rate, lad_js.eta) == (2.0, 3.0)
    assert (lad_js.hours_useful, lad_js.hours_replayed, lad_js.hours_wasted) == pytest.approx((1.0, 0.2, 0.0))
    assert (lad_hd.name, lad_hd.states, lad_hd.accuracy, lad_hd.rate) == ("lad-hd", {"queued": 1}, None, None)
    everything = total("all", states)
    assert everything.steps == 30  # the queued one as long as its siblings
    assert everything.eta == 8.0  # 6 steps of the running run and 10 of the queued one, 2 per second
    (as_one_arm,) = arms([dataclasses.replace(state, group_id="g") for state in states])
    assert as_one_arm.eta is None  # when its queued run begins depends on other arms
    nothing = total("all", [])  # a sweep cut off before its first run
    assert (nothing.runs, nothing.hours_useful, nothing.hours_wasted, nothing.eta) == (0, 0, 0, None)


def test_an_arm_whose_code_changed_between_runs_or_attempts_is_named() -> None:
    code = {"a-s0": "1a", "a-s1": "1a", "a-s2": "2b", "b-s0": "1a, then 2b", "c-s0": "3c", "c-s1": ""}
    states = [RunState(name, name, State.FINISHED, arm=name[0], code=code) for name, code in code.items()]
    assert mixed_code(states) == [
        "a: its code or data changed: 1a in a-s0, a-s1; 2b in a-s2. `python -m analysis` says what.",
        "b: its code or data changed: 1a, then 2b in b-s0. `python -m analysis` says what.",
    ]
