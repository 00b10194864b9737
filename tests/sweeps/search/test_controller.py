"""The controller on a known surface: what it asks, prunes and tells, and that it may be killed at any write."""

import json
import shutil
import statistics
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from optuna.pruners import MedianPruner, PatientPruner
from optuna.trial import TrialState

from rlvr.ledger import journal, layout
from sweeps.search.report import report
from sweeps.verdict import LaunchOutcome
from tests.sweeps.search.surface import STEPS, Here, in_a_child, rows, search

MEDIAN = {"n_startup_trials": 2, "n_warmup_steps": 0, "n_min_trials": 1}
PARETO = {"up": "maximize", "down": "minimize"}


def complete(home: Path, *, at_once: int = 1, lost: int = 0, **options: Any) -> list[tuple[Any, ...]]:
    searching = search(home, **options)
    searching.run(Here(searching.ledger, lost), at_once)
    return rows(searching)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sampler", "writes", "metrics"),
    [
        ("tpe", 17, None),
        ("random", 29, None),
        pytest.param("cmaes", 23, None, marks=pytest.mark.slow),
        pytest.param("nsgaii", 31, PARETO, marks=pytest.mark.slow),
    ],
)
def test_killed_again_and_again_it_proposes_and_tells_the_same(
    sampler: str, writes: int, metrics: dict[str, str] | None, tmp_path: Path
) -> None:
    options = {"sampler": sampler, "metrics": metrics, "pruner": None if metrics else MedianPruner(**MEDIAN)}
    undisturbed = complete(tmp_path / "undisturbed", **options)
    home, lives = tmp_path / "killed", 1
    while not in_a_child(lambda: complete(home, **options), writes + lives):
        lives += 1
        assert lives < 100
    searching = search(home, **options)
    assert rows(searching) == undisturbed
    assert lives > 5
    lines = (searching.ledger.sweep_dir("s") / "manifest.jsonl").read_text().splitlines()
    manifest = [json.loads(line) for line in lines]
    first = {t.user_attrs["run_id"]: t.number for t in reversed(searching.trials())}  # a point may come twice: one run
    assert {line["run_id"]: line["trial"] for line in manifest} == first
    for line in manifest:
        records = journal.read(layout.journal(searching.ledger.run_dir(line["run_id"]))).records
        assert [r.step for r in records] == list(range(1, len(records) + 1))


@pytest.mark.slow
def test_killed_at_each_write_of_a_trial_that_is_pruned_it_prunes_it(tmp_path: Path) -> None:
    options = {"sampler": "random", "pruner": MedianPruner(**MEDIAN)}
    undisturbed = complete(tmp_path / "undisturbed", **options)
    last = [row[1] for row in undisturbed].index("PRUNED")
    complete(tmp_path / "before", n_trials=last, **options)
    lives, unjudged, ended = 0, 0, False
    while not ended:
        lives += 1
        home = tmp_path / str(lives)
        shutil.copytree(tmp_path / "before", home)
        ended = in_a_child(lambda: complete(home, n_trials=last + 1, **options), lives)  # noqa: B023
        left = search(home, **options).trials(TrialState.RUNNING)
        unjudged += any(t.intermediate_values and "pruned" not in t.user_attrs for t in left)
        assert complete(home, n_trials=last + 1, **options) == undisturbed[: last + 1]
    assert unjudged > 0  # killed after a value was reported, before the pruner was asked
    assert lives > 20


@pytest.mark.slow
def test_killed_with_several_trials_at_work_it_loses_and_doubles_none(tmp_path: Path) -> None:
    lives = 1
    while not in_a_child(lambda: complete(tmp_path, at_once=3), 37 + lives):
        lives += 1
        assert lives < 100
    assert lives > 2
    searching = search(tmp_path)
    assert Counter(row[1] for row in rows(searching)) == {"COMPLETE": 8}
    finished = [s for s in searching.ledger.states(searching.ledger.runs()) if s.state == "finished"]
    assert {s.run_id for s in finished} == {t.user_attrs["run_id"] for t in searching.trials()}
    assert len(finished) == 8


def test_a_damaged_journal_is_named_and_without_it_nothing_is_trained_again(tmp_path: Path) -> None:
    undisturbed = complete(tmp_path)
    path = tmp_path / "runs/sweeps/s/optuna.journal"
    lines = path.read_bytes().splitlines(keepends=True)
    of_no_study = lines[2].replace(b"op_code", b"op_bode")  # JSON still, but no line of a study
    for bad in (b'{"op_code":\x07}\n', b'{"op_code":"\xff"}\n', of_no_study, b"[]\n"):
        for place in (2, len(lines)):  # Optuna itself passes over the last line, until it has written the next
            path.write_bytes(b"".join([*lines[:place], bad, *lines[place + 1 :]]))
            with pytest.raises(ValueError, match=f"{path} is damaged. Move it away"):
                search(tmp_path)
    path.unlink()
    assert complete(tmp_path) == undisturbed
    ledger = search(tmp_path).ledger
    assert {state.attempt for state in ledger.states(ledger.runs())} == {1}


def test_the_outcome_of_a_command_counts_the_runs_of_its_trials(tmp_path: Path) -> None:
    """Eight points and, with twelve trials, four more; the runs of the first eight had finished before."""
    first, second = LaunchOutcome(), LaunchOutcome()
    for outcome, n_trials in ((first, 8), (second, 12)):
        searching = search(tmp_path, "random", n_trials=n_trials)
        searching.run(Here(searching.ledger), at_once=2)
        searching.record_runs(outcome)
    assert (len(first.finished), len(first.skipped)) == (8, 0)
    assert second.summary() == "12 of 12 runs finished (8 before). 0s"
    assert set(second.skipped) == set(first.finished)


def test_more_trials_go_on_from_those_there_are_also_after_a_full_disk_has_torn_a_line(tmp_path: Path) -> None:
    first = complete(tmp_path, n_trials=4)
    with (tmp_path / "runs/sweeps/s/optuna.journal").open("a") as file:
        file.write('{"op_code":4,"worker_id"')
    assert first + complete(tmp_path, n_trials=9)[4:] == complete(tmp_path / "b", n_trials=9)


def test_a_pruned_trial_ends_frees_its_place_and_keeps_its_metrics(tmp_path: Path) -> None:
    """Worse at a step than the median of the trials that were complete then: by hand, from x alone."""
    searching = search(tmp_path, sampler="random", pruner=MedianPruner(**MEDIAN), n_trials=12)
    runs = Here(searching.ledger)
    searching.run(runs, at_once=1)
    complete = list[float]()
    for trial in searching.trials():
        value = 1 - (trial.params["x"] - 0.3) ** 2
        # Trials stand in the same order at every step, so that each is judged at its first.
        pruned = len(complete) >= MEDIAN["n_startup_trials"] and value < statistics.median(complete)
        assert (trial.state == TrialState.PRUNED) == pruned
        state = searching.ledger.state(trial.user_attrs["run_id"])
        records = journal.read(layout.journal(searching.ledger.run_dir(state.run_id))).records
        if pruned:
            why = f"MedianPruner, by the value of step 1: trial {trial.number} of search s"
            assert (state.state, state.message, [r.step for r in records]) == ("pruned", why, [1])
        else:
            complete.append(value)
            assert (state.state, [r.step for r in records]) == ("finished", list(range(1, STEPS + 1)))
    assert 2 < len(complete) < 10
    assert not runs.at_work


def test_a_pareto_front_is_that_of_brute_force(tmp_path: Path) -> None:
    searching = search(tmp_path, sampler="nsgaii", metrics=PARETO, n_trials=20)
    searching.run(Here(searching.ledger), at_once=3)
    points = {t.user_attrs["run_id"]: (1 - (t.params["x"] - 0.3) ** 2, t.params["x"]) for t in searching.trials()}
    front = {
        run_id
        for run_id, (up, down) in points.items()
        if not any(u >= up and d <= down and (u, d) != (up, down) for u, d in points.values())
    }
    assert 2 < len(front) < len(points)
    best = report(searching)
    assert {trial["run_id"]: tuple(trial["values"]) for trial in best} == {run_id: points[run_id] for run_id in front}
    target = searching.ledger.sweep_dir("s")
    private = [target / name for name in ("best.md", "trials.csv", "optuna.journal")]
    assert [oct(file.stat().st_mode & 0o777) for file in private] == ["0o600"] * 3
    text = (target / "best.md").read_text()
    assert "Pareto front (maximize up, minimize down)" in text
    assert text.count("python -m rlvr.run") == len(front)


def test_a_trial_whose_node_is_gone_fails_and_is_tried_again_as_often_as_asked(tmp_path: Path) -> None:
    trials_told = complete(tmp_path, lost=2, retries=2, n_trials=3)
    assert Counter(row[1] for row in trials_told) == {"FAIL": 6, "COMPLETE": 3}
    searching = search(tmp_path)
    of = {t.number: t.user_attrs.get("retry_of") for t in searching.trials()}
    for trial in searching.trials(TrialState.COMPLETE):
        first = of[of[trial.number] or 0]
        assert first is not None
        assert trial.params == searching.trials()[first].params
        assert searching.ledger.state(trial.user_attrs["run_id"]).attempt == 3
    assert {t.user_attrs["cause"] for t in searching.trials(TrialState.FAIL)} == {"node"}
    assert Counter(row[1] for row in complete(tmp_path / "b", lost=2, n_trials=3)) == {"FAIL": 3}


def test_the_same_point_again_is_not_run_again(tmp_path: Path) -> None:
    searching = search(tmp_path, n_trials=2)
    for _ in range(2):
        searching.study.enqueue_trial({"x": 0.25, "y": 2, "kind": "one"})
    searching.run(Here(searching.ledger), at_once=1)
    assert [row[3] for row in rows(searching)] == [[1 - (0.25 - 0.3) ** 2]] * 2
    assert searching.ledger.state(searching.trials()[0].user_attrs["run_id"]).attempt == 1
    assert len(searching.ledger.runs()) == 1
    (line,) = searching.ledger.sweep("s").runs  # as in any sweep, with the words that all its runs share
    assert set(line["overrides"]) == {"x=0.25", "y=2", "kind=one", "lr=0.1"}


def test_an_unknown_metric_of_a_training_step_is_named_at_the_first(tmp_path: Path) -> None:
    searching = search(tmp_path, metrics={"upp": "maximize"})
    with pytest.raises(ValueError, match="no metric upp: a training step has down, up"):
        searching.run(Here(searching.ledger), at_once=1)


def test_patience_counts_evaluations_since_the_best(tmp_path: Path) -> None:
    """`up` rises from the first step, so when it is minimised the steps 2 and 3 are one more than a patience of 1."""
    trials_told = complete(tmp_path, metrics={"up": "minimize"}, pruner=PatientPruner(None, patience=1), n_trials=2)
    assert [(row[1], list(row[4])) for row in trials_told] == [("PRUNED", [1, 2, 3])] * 2
