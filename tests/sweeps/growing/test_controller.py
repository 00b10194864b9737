"""A sweep that grows, on ledgers whose runs end with known numbers: each wave follows from the looks, and once."""

import functools
import json
import os
import shutil
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from analysis.decide import questions
from analysis.figures import tuning as tuning_figure
from analysis.frames.load import load
from analysis.scores.claim import CLAIMS
from analysis.scores.findings import findings
from analysis.tables import tuning as tuning_table
from rlvr.ledger.cause import State
from rlvr.ledger.sweeps import Ledger
from sweeps.growing import stopping, tuning
from sweeps.growing.controller import advance, grow, has_results
from sweeps.growing.record import FINAL, TUNING, Candidate, GrowingRecord
from sweeps.local import stop
from sweeps.planned import PlannedRun
from sweeps.verdict import LaunchOutcome
from tests.analysis.ledger_factory import config, counts, group_of, write_run

PROBLEMS = 60
ARMS = {0: "grpo", 1: "pacs", 2: "rloo"}


def candidate(place: int, seed: int, *, stage: str = FINAL, lr: float = 1e-6) -> Candidate:
    frozen_config = config(ARMS[place], seed=seed, lr=lr)
    name = f"{ARMS[place]}-lr{lr:g}-{stage}-s{seed}"
    words = (f"loss={ARMS[place]}", f"lr={lr:g}", f"seed={seed}")
    run = PlannedRun(f"id-{name}", group_of(frozen_config), name, words, frozen_config, arm=name.rpartition("-")[0])
    return Candidate(run, place, seed, stage, f"lr={lr:g}")


def sweep(home: Path, candidates: list[Candidate], **rules: Any) -> GrowingRecord:
    about = {"study": "study", "command": "python -m rlvr.run", "config_dirs": [], "swept": {"loss": [*ARMS.values()]}}
    record = GrowingRecord(Ledger(home), "s", {**about, "created": 1.0, **rules}, candidates)
    record.write()
    return record


def test_the_plan_of_a_growing_sweep_is_the_users_alone_to_read(tmp_path: Path) -> None:
    """It holds the configs of its runs, which are theirs alone too."""
    before = os.umask(0o022)
    try:
        sweep(tmp_path, [candidate(0, 0)])
    finally:
        os.umask(before)
    files = [tmp_path / "runs/sweeps/s" / name for name in ("planned.jsonl", "manifest.jsonl", "sweep.json")]
    assert [oct(file.stat().st_mode & 0o777) for file in files] == ["0o600"] * 3


def train(home: Path, right: Callable[[str, int], float], cause: str = "ok", of: str = "") -> None:
    """End every run (of a loss) that has not: `right` of 8 samples are right on each problem, by (name, seed)."""
    for path in sorted((home / "runs").glob(f"id-{of}*")):
        info = json.loads((path / "run.json").read_text())
        if (path / "attempts").exists():
            continue
        (one,) = [c for c in GrowingRecord.read(Ledger(home), "s").candidates if c.run.run_id == info["run_id"]]
        share = right(one.run.name, one.seed)
        shutil.rmtree(path)
        problems = counts(*(min(8, max(0, round(share) + (0, 1, -1)[i % 3])) for i in range(PROBLEMS)))
        evaluations: Mapping[int, Any] = {40: {"maze7": problems}}
        about = {"name": one.run.name, "study": "study", "validation": share / 8, "cause": cause}
        write_run(home, one.run.config, evaluations, **about)


def tuned(home: Path, *, places: tuple[int, ...] = (0, 1), finals: int = 1, **rules: Any) -> GrowingRecord:
    """A sweep of these arms, each with two learning rates under the seed 1000, and with seeds that are reported."""
    grid = tuning.TuningGrid([("lr=1e-06",), ("lr=1e-05",)], [1000])
    stages = [(TUNING, 1000), *((FINAL, seed) for seed in range(finals))]
    runs = [candidate(p, s, stage=stage, lr=lr) for p in places for lr in (1e-6, 1e-5) for stage, s in stages]
    return sweep(home, runs, tune=tuning.rule(grid, list(range(finals))), **rules)


def looks(home: Path) -> list[dict[str, Any]]:
    return Ledger(home).sweep("s").info["until"]["looks"]


def until(home: Path, best: float | None = None) -> GrowingRecord:
    rule = stopping.rule("", arms=3, first=3, runs=18, best=best)
    assert rule["seeds"] == [3, 4, 5, 6]
    rule |= {"hours": None, "budget": "18"}
    return sweep(home, [candidate(place, seed) for place in ARMS for seed in range(6)], until=rule)


def test_seeds_go_to_what_is_open_until_it_is_decided(tmp_path: Path) -> None:
    record = until(tmp_path)
    del record.info["until"]["futile"]  # as in rules of earlier versions: the budget is spent
    record.save()
    ledger = Ledger(tmp_path)
    # PACS is far above GRPO at every seed; RLOO is now above and now below.
    scores = {"grpo": lambda s: 3 + s % 2, "pacs": lambda s: 6 + s % 2, "rloo": lambda s: 3 + (s + s // 2) % 2}
    right = lambda name, seed: scores[name.partition("-")[0]](seed)  # noqa: E731
    assert len(advance(ledger, "s", print)) == 9
    assert looks(tmp_path) == []  # nothing is looked at before it has ended
    train(tmp_path, right)
    wave = advance(ledger, "s", print)
    (first,) = looks(tmp_path)
    outcomes = {question["name"].partition(" ")[0]: question["outcome"] for question in first["questions"]}
    assert outcomes == {"loss=pacs": "above", "loss=rloo": "undecided"}
    assert sorted(run for run in wave if "s3" in run) == ["id-grpo-lr1e-06-final-s3", "id-rloo-lr1e-06-final-s3"]
    assert not [run for run in wave if "pacs" in run and "s3" in run]
    for _ in range(3):
        train(tmp_path, right)
        advance(ledger, "s", print)
    info = ledger.sweep("s").info["until"]
    assert (info["stopped"], len(info["looks"])) == ("budget spent", 4)
    assert [look["seeds"] for look in info["looks"]] == [3, 4, 5, 6]
    assert all([q["name"].partition(" ")[0] for q in look["questions"]] == ["loss=rloo"] for look in info["looks"][1:])
    assert (len(ledger.sweep("s").runs), advance(ledger, "s", print)) == (9 + 3 * 2, [])
    assert ledger.sweep("s").info["until"] == info  # nothing is looked at again


def test_what_all_of_the_budget_would_hardly_decide_gets_no_more_seeds(tmp_path: Path) -> None:
    """RLOO is now above and now below GRPO, by turns: given up after 4 of 6 seeds."""
    until(tmp_path)
    ledger, lines = Ledger(tmp_path), list[str]()
    scores = {"grpo": lambda s: 3 + s % 2, "pacs": lambda s: 6 + s % 2, "rloo": lambda s: 3 + (s + s // 2) % 2}
    for _ in range(3):
        advance(ledger, "s", lines.append)
        train(tmp_path, lambda name, seed: scores[name.partition("-")[0]](seed))
    (question,) = looks(tmp_path)[-1]["questions"]
    assert (question["outcome"], len(looks(tmp_path))) == ("undecided", 2)
    assert 0 < question["chance"] < 0.05
    assert lines[-2].endswith(
        f"; given up: all of the budget would decide it with a chance of {100 * question['chance']:.1f} %"
    )
    assert lines[-1].startswith(
        "Stopped: nothing is left to decide (1 of 2 questions given up) after 2 of 4 looks and 11"
    )
    finding = findings(load(tmp_path))[-1]
    assert finding.note.startswith("given up: all of the budget")


def test_of_the_best_arm_alone_seeds_go_to_those_that_may_be_it(tmp_path: Path) -> None:
    """GRPO is far below both at every seed, PACS above RLOO at every seed and by a margin that varies (1 or 3 of 8):
    they go on together, also past a kill before the next wave was written down, until RLOO is dropped, too."""
    until(tmp_path, best=0.0)
    ledger, lines = Ledger(tmp_path), list[str]()
    scores = {"grpo": lambda s: 1 + s % 2, "pacs": lambda s: 6 + (s % 2), "rloo": lambda s: 5 - (s % 2)}
    right = lambda name, seed: scores[name.partition("-")[0]](seed)  # noqa: E731
    advance(ledger, "s", lines.append)
    train(tmp_path, right)
    manifest = (tmp_path / "runs/sweeps/s/manifest.jsonl").read_text()
    wave = advance(ledger, "s", lines.append)
    (tmp_path / "runs/sweeps/s/manifest.jsonl").write_text(manifest)
    assert advance(ledger, "s", lines.append) == wave
    (first,) = looks(tmp_path)
    assert {q["arms"][0]: (q["arms"][1], q["outcome"]) for q in first["questions"]} == {
        "loss=grpo": ("loss=pacs", "below"),
        "loss=rloo": ("loss=pacs", "undecided"),
    }
    assert sorted(run for run in wave if "s3" in run) == ["id-pacs-lr1e-06-final-s3", "id-rloo-lr1e-06-final-s3"]
    while wave:
        train(tmp_path, right)
        wave = advance(ledger, "s", lines.append)
    number = len(looks(tmp_path))
    runs = 9 + 2 * (number - 1)
    assert lines[-1].startswith(
        f"Stopped: the best arm is known after {number} of 4 looks and {runs} of at most 18 runs; left: loss=pacs; "
        f"dropped at look 1: loss=grpo; dropped at look {number}: loss=rloo. See: "
    )
    reported = {
        f.claim.says.partition(" ")[0]: f.outcome for f in findings(load(tmp_path)) if "against" in f.claim.says
    }
    assert reported == {"loss=grpo": "below", "loss=rloo": "below"}


def test_of_arms_that_are_near_enough_to_the_best_none_gets_more_seeds(tmp_path: Path) -> None:
    """PACS and RLOO solve the same problems with every seed: if unseen problems differ, then at most 10 of 100 (rule of
    three: ln(1/0.003)/60, at 0.3 % of the first look). GRPO diverges with every seed."""
    until(tmp_path, best=20.0)
    ledger, lines = Ledger(tmp_path), list[str]()
    advance(ledger, "s", lines.append)
    train(tmp_path, lambda name, seed: 3, cause="diverged", of="grpo")
    train(tmp_path, lambda name, seed: 4 + seed % 2)
    assert advance(ledger, "s", lines.append) == []
    assert lines[-1].startswith(
        "Stopped: no arm that is left is better than the best by more than 20 after 1 of 4 looks and 9 of at most 18 "
        "runs; left: loss=pacs (leads), loss=rloo; dropped at look 1: loss=grpo. See: "
    )
    assert "not better by more than 20" in [f.note for f in findings(load(tmp_path))]


def test_where_every_arm_diverges_none_gets_more_seeds(tmp_path: Path) -> None:
    until(tmp_path, best=0.0)
    ledger, lines = Ledger(tmp_path), list[str]()
    advance(ledger, "s", lines.append)
    train(tmp_path, lambda name, seed: 3, cause="diverged")
    assert advance(ledger, "s", lines.append) == []
    assert lines[-1].startswith(
        "Stopped: an arm that may be the best has diverged runs, and more seeds cannot decide it after 1 of 4 looks"
    )


def test_the_outcome_of_a_launch_is_that_of_all_its_waves(tmp_path: Path) -> None:
    """Nine runs at the first look and three more at each of the next three, of which one diverges at the second."""
    until(tmp_path)
    ledger, begun = Ledger(tmp_path), list[str]()

    def start() -> LaunchOutcome:
        new = [run_id for run_id in ledger.sweep("s").run_ids if run_id not in begun]
        diverging = [run_id for run_id in new if run_id == "id-rloo-lr1e-06-final-s3"]
        outcome = LaunchOutcome(skipped=[run_id for run_id in begun if "rloo-lr1e-06-final-s3" not in run_id])
        outcome.seconds, outcome.busy_s = 10.0, [4.0, 8.0]
        for run_id in new:
            outcome.add(run_id, State.DIVERGED if run_id in diverging else State.FINISHED)
            train(tmp_path, lambda _, seed: 3 + seed % 2, "diverged" if run_id in diverging else "ok", of=run_id[3:])
        begun.extend(new)
        return outcome

    outcome = grow(ledger, "s", start, lambda _: None)
    assert (len(begun), outcome.failed) == (18, ["id-rloo-lr1e-06-final-s3"])
    assert sorted([*outcome.finished, *outcome.failed]) == sorted(begun)
    assert outcome.summary() == "17 of 18 runs finished, 1 diverged. 40s; 2 workers busy 60% of the time"


def trained(home: Path, waves: list[int], outcome: LaunchOutcome) -> LaunchOutcome:
    """What a launch of a wave does. waves: gets the number of runs begun."""
    train(home, lambda _, seed: 3 + seed % 2)
    waves.append(len(Ledger(home).sweep("s").run_ids))
    return outcome


def test_cancel_between_two_waves_ends_the_sweep_before_the_next(tmp_path: Path) -> None:
    """And the same command, or `retry`, takes the next look as if nothing had been."""
    until(tmp_path)
    ledger, waves = Ledger(tmp_path), list[int]()
    start = functools.partial(trained, tmp_path, waves, LaunchOutcome())

    def cancel_at_a_look(_: str) -> None:
        assert stop(ledger, "s") == [os.getpid()]

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        grow(ledger, "s", start, cancel_at_a_look)
    assert (waves, len(looks(tmp_path))) == ([9], 1)
    assert (signal.getsignal(signal.SIGTERM), stop(ledger, "s")) == (before, [])
    grow(ledger, "s", start, lambda _: None)
    assert (waves, len(looks(tmp_path))) == ([9, 12, 15, 18], 4)


def test_a_signal_after_the_last_run_of_a_wave_ends_the_sweep_too(tmp_path: Path) -> None:
    """It came while metrics were shipped: see test_local.py."""
    until(tmp_path)
    waves = list[int]()
    start = functools.partial(trained, tmp_path, waves, LaunchOutcome(signalled=True))
    outcome = grow(Ledger(tmp_path), "s", start, lambda _: None)
    assert (waves, outcome.interrupted, outcome.exit_code) == ([9], True, 130)


def test_where_nothing_can_be_compared_nothing_is_decided(tmp_path: Path) -> None:
    """Two sizes of maze are two settings of one arm each."""
    for size in (7, 9):
        for seed in range(3):
            frozen_config = config("grpo", seed=seed, task={"size": size})
            write_run(tmp_path, frozen_config, {40: {"maze": counts(4, 4)}}, study="study", name=f"grpo-{size}-s{seed}")
    with pytest.raises(LookupError, match="no setting has two arms that measured avg@8. Name a metric"):
        questions(load(tmp_path, study="study"), "", 0.95)


def test_a_bandit_is_decided_by_its_expected_reward(tmp_path: Path) -> None:
    for loss, reward in (("grpo", 0.5), ("rloo", 0.9)):
        for seed in range(3):
            logged = {"evaluation/bandit/expected_reward": reward + 0.01 * reward * seed}
            write_run(tmp_path, config(loss, seed=seed), {}, study="study", logged_at={40: logged})
    (found,) = questions(load(tmp_path, study="study"), "", 0.95)
    assert found.outcome == "above"


def test_a_controller_killed_after_a_look_goes_on_from_it(tmp_path: Path) -> None:
    record = until(tmp_path)
    advance(record.ledger, "s", print)
    train(tmp_path, lambda name, seed: 3 + (seed % 2 if "rloo" in name else 0) + 3 * ("pacs" in name))
    manifest = (tmp_path / "runs/sweeps/s/manifest.jsonl").read_text()
    wave = advance(record.ledger, "s", print)
    taken = looks(tmp_path)
    (tmp_path / "runs/sweeps/s/manifest.jsonl").write_text(manifest)  # killed before the next wave was recorded
    assert (advance(record.ledger, "s", print), looks(tmp_path)) == (wave, taken)


def test_a_run_that_failed_is_no_result_and_one_that_diverged_is(tmp_path: Path) -> None:
    record = until(tmp_path)
    ids = advance(record.ledger, "s", print)
    train(tmp_path, lambda name, seed: 3, cause="host_oom")
    assert not has_results(tmp_path, "s")
    assert (advance(record.ledger, "s", print), looks(tmp_path)) == (ids, [])
    for path in (tmp_path / "runs").glob("id-*"):
        shutil.rmtree(path / "attempts")
    train(tmp_path, lambda name, seed: 3, cause="diverged")
    assert advance(record.ledger, "s", print) == []  # more seeds would not change it
    asked = [(q["outcome"], q["measured"]) for q in looks(tmp_path)[0]["questions"]]
    lost = [("not tested", f"all 3 runs of loss={loss} diverged") for loss in ("pacs", "rloo")]
    assert asked == lost


def test_each_arm_goes_on_with_the_value_that_is_best_on_the_validation_split(tmp_path: Path) -> None:
    grid = tuning.read("lr:1e-6,1e-5 seed:1000,1001", [["loss=grpo"], ["loss=pacs"]])
    stages = [(TUNING, 1000), (TUNING, 1001), (FINAL, 0), (FINAL, 1)]
    candidates = [candidate(p, s, stage=stage, lr=lr) for p in (0, 1) for lr in (1e-6, 1e-5) for stage, s in stages]
    rule = {**tuning.rule(grid, [0, 1]), "values": ["lr=1e-06", "lr=1e-05"]}
    record = sweep(tmp_path, candidates, tune=rule)
    assert all("tuning" in run for run in advance(record.ledger, "s", print))
    best = {"grpo-lr1e-06": 4, "grpo-lr1e-05": 3, "pacs-lr1e-06": 2, "pacs-lr1e-05": 5}
    train(tmp_path, lambda name, seed: best["-".join(name.split("-")[:2] + name.split("-")[2:3])])
    final = [run for run in advance(record.ledger, "s", print) if "final" in run]
    wanted = ("grpo-lr1e-06", "pacs-lr1e-05")
    assert sorted(final) == [f"id-{arm}-final-s{seed}" for arm in wanted for seed in (0, 1)]
    picks = record.ledger.sweep("s").info["tune"]["picks"]
    assert picks["1"] == {"value": "lr=1e-05", "tried": {"lr=1e-06": 0.25, "lr=1e-05": 0.625}}
    train(tmp_path, lambda name, seed: 4)
    assert advance(record.ledger, "s", print) == []
    frames = load(tmp_path)
    assert {run.seed for run in frames.rows} == {0, 1}  # what is reported did not choose
    rows = tuning_table.table(frames)
    assert rows is not None
    picked = {(cell["block"], cell["row"]): round(cell["mean"], 6) for cell in rows.records if "picked" in cell["row"]}
    assert picked == {("loss=grpo", "lr = 1e-06 (picked)"): 0.5, ("loss=pacs", "lr = 1e-05 (picked)"): 0.625}
    drawn = tuning_figure.figure(frames)
    assert drawn is not None
    assert len(drawn.axes[0].get_lines()) == 4  # two curves, two circles
    assert [v for v in findings(frames) if v.outcome == "warning"] == []  # two values have no inside


def test_a_best_value_at_the_edge_of_the_grid_is_warned_of(tmp_path: Path) -> None:
    rule = tuning.rule(tuning.TuningGrid([("lr=1e-06",), ("lr=1e-05",), ("lr=0.0001",)], [1000]), [0])
    tried = [candidate(0, 1000, stage=TUNING, lr=lr) for lr in (1e-6, 1e-5, 1e-4)]
    record = sweep(tmp_path, [*tried, *(candidate(0, 0, lr=lr) for lr in (1e-6, 1e-5, 1e-4))], tune=rule)
    advance(record.ledger, "s", print)
    train(tmp_path, lambda name, seed: 2 + 2 * ("0.0001" in name))
    advance(record.ledger, "s", print)
    train(tmp_path, lambda name, seed: 4)
    (warning,) = findings(load(tmp_path))
    assert warning.claim.says.endswith("the best lr, 0.0001, is at the edge of what was tried")


def test_a_value_that_diverged_under_one_seed_is_not_picked() -> None:
    rule = {"values": ["lr=1", "lr=2"]}
    runs = {"a": (0, "lr=1"), "b": (0, "lr=1"), "c": (0, "lr=2"), "d": (0, "lr=2")}
    picks = tuning.pick(rule, {"a": 0.9, "b": float("nan"), "c": 0.2, "d": 0.4}, runs)
    assert picks["0"] == {"value": "lr=2", "tried": {"lr=1": None, "lr=2": pytest.approx(0.3)}}


def test_an_arm_that_diverged_at_every_value_is_left_out_and_the_others_go_on(tmp_path: Path) -> None:
    record = tuned(tmp_path)
    lines: list[str] = []
    advance(record.ledger, "s", lines.append)
    train(tmp_path, lambda name, seed: 4, cause="diverged", of="pacs")
    train(tmp_path, lambda name, seed: 4)
    assert [run for run in advance(record.ledger, "s", lines.append) if "final" in run] == ["id-grpo-lr1e-06-final-s0"]
    left_out = "Left out: an arm without a result at any value: lr=1e-06 no result, lr=1e-05 no result (pacs-lr1e-06-"
    assert [line.startswith(left_out) for line in lines] == [False, True]
    assert lines[0].endswith(". lr=1e-06, lr=1e-05 are equal: the first is taken")
    train(tmp_path, lambda name, seed: 4)
    assert advance(record.ledger, "s", lines.append) == []
    assert sum(line.startswith("Left out") for line in lines) == 1
    rows = tuning_table.table(load(tmp_path))
    assert rows is not None
    assert [cell["row"] for cell in rows.records if "picked" in cell["row"]] == ["lr = 1e-06 (picked)"]


def test_where_one_arm_alone_is_left_nothing_is_decided_and_no_run_is_spent(tmp_path: Path) -> None:
    until_decided = stopping.rule("", arms=2, first=3, runs=6) | {"hours": None, "budget": "6"}
    record = tuned(tmp_path, finals=3, until=until_decided)
    lines: list[str] = []
    advance(record.ledger, "s", lines.append)
    train(tmp_path, lambda name, seed: 4, cause="diverged", of="pacs")
    train(tmp_path, lambda name, seed: 4)
    for _ in range(2):  # and when it is repeated
        assert advance(record.ledger, "s", lines.append) == []
        assert lines[-1].startswith("Stopped after 4 runs of tuning: fewer than two arms have a result")


def test_a_claim_of_an_arm_that_is_left_out_is_not_said_to_be_decided(tmp_path: Path) -> None:
    until_decided = stopping.rule(CLAIMS, arms=3, first=3, runs=9) | {"hours": None, "budget": "9"}
    claims = [{"says": "more", "metric": "avg", "arm": f"loss={arm}", "relation": ">"} for arm in ("pacs", "rloo")]
    record = tuned(tmp_path, places=(*ARMS,), finals=3, until=until_decided, claims=claims)
    lines: list[str] = []
    advance(record.ledger, "s", lines.append)
    train(tmp_path, lambda name, seed: 4, cause="diverged", of="pacs")
    for _ in range(2):
        train(tmp_path, lambda name, seed: 6 if "rloo" in name else 3)
        advance(record.ledger, "s", lines.append)
    outcomes = [question["outcome"] for question in looks(tmp_path)[0]["questions"]]
    assert outcomes == ["not tested", "holds"]
    assert lines[-1].startswith("Stopped: nothing is left to decide (1 of 2 questions not tested) after 1 of 1 looks")
