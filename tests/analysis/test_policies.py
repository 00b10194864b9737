import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.figures import policies as policies_figure
from analysis.frames.counts import ProblemCounts
from analysis.frames.load import load
from analysis.report.style import encode
from analysis.report.summary import run_table
from analysis.scores.arm import arms
from analysis.scores.cell import cell
from analysis.scores.metric import pass_at
from analysis.scores.policy_evaluations import evaluations
from analysis.scores.selection import no_reference
from analysis.tables import comparison, policies
from analysis.tables.comparison import ComparisonOptions
from tests.analysis.ledger_factory import config, counts, write_run, write_sweep


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A base policy that solves problems 0 and 1, and one that was trained from it and solves 0 and 2."""
    return evaluated(tmp_path, {"base": (4, 2, 0, 0), "lad@40": (8, 0, 2, 0)})


def evaluated(tmp_path: Path, policies: Mapping[str, Sequence[int]], baseline: str | None = "", **launch: Any) -> Path:
    """How many of 8 samples of each problem are right."""
    return judged(tmp_path, {name: counts(*correct) for name, correct in policies.items()}, baseline, **launch)


def judged(
    tmp_path: Path,
    policies: Mapping[str, Sequence[tuple[int, int, int]]],
    baseline: str | None = "",
    sweep_id: str = "abcd1234",
    created: float = 1000.0,
) -> Path:
    """By policy, of each problem: judged samples, right ones, and samples that could not be judged."""
    planned = []
    for name, problem_counts in policies.items():
        frozen = {**config("grpo"), "policy": {"name": name, "digest": name, "step": 0, "path": "/x"}, "steps": 1}
        frozen = {**frozen, "loss": None, "choices": {"task": "maze"}}
        run_id = write_run(tmp_path, frozen, {1: {"maze7": problem_counts}}, name=f"{name}-s0", study="evaluation")
        planned.append((run_id, f"{name}-s0", [f"policy={name}", "seed=0"]))
    write_sweep(tmp_path, sweep_id, planned, study="evaluation", baseline=baseline, created=created)
    return tmp_path


def test_what_is_kept_newly_solved_and_reached_is_counted_against_the_base_policy(home: Path) -> None:
    frames = load(home, study="evaluation")
    table = policies.table(frames)
    cells = {
        (row, column): mean for row, column, mean in table.cells[["row", "column", "mean"]].itertuples(index=False)
    }
    assert (cells["base", "avg@8"], cells["lad@40", "avg@8"]) == (pytest.approx(6 / 32), pytest.approx(10 / 32))
    assert cells["lad@40", "pass@8"] == 0.5
    assert cells["lad@40", policies.KEEP] == 0.5  # of problems 0 and 1, the first
    assert cells["lad@40", policies.EXPLORE] == 0.5  # of 2 and 3, the first
    # The base policy covers 1/2. (1 + x)/4 is 1/2 where x = 1 - C(6, k)/C(8, k) is 1: from k = 7 on.
    assert cells["lad@40", policies.REACH] == 7
    assert ("base", policies.KEEP) not in cells


def test_samples_to_reach_are_also_counted_against_the_reference(tmp_path: Path) -> None:
    right = {"base": (1, 1, 1, 1), "grpo@40": (8, 1, 0, 0), "lad@40": (8, 4, 0, 0), "tb@40": (8, 0, 0, 0)}
    home = evaluated(tmp_path, right, baseline="policy=base")
    reached = samples_to_reach(home, ComparisonOptions(against="policy=grpo@40"))
    # All 8 samples of GRPO cover 1/2. (1 + x)/4 is 1/2 where x = 1 - C(4, k)/C(8, k) is 1: from k = 5 on.
    assert reached["lad@40"] == 5
    # (4 x)/4 with x = 1 - C(7, k)/C(8, k) = k/8: from k = 4 on.
    assert reached["base"] == 4
    assert math.isnan(reached["tb@40"])  # covers 1/4
    assert set(reached) == {"base", "lad@40", "tb@40"}
    assert samples_to_reach(home) == {}  # the study's reference is the base policy, which has a column of its own
    assert samples_to_reach(home, ComparisonOptions(against="base")) == {}


def test_the_reference_is_the_baseline_of_the_study(tmp_path: Path) -> None:
    home = evaluated(tmp_path, {"lad@40": (8, 4), "grpo@40": (8, 1)}, baseline="policy=grpo@40")
    assert samples_to_reach(home) == {"lad@40": 5}


def samples_to_reach(home: Path, ask: ComparisonOptions | None = None) -> dict[str, float]:
    table = policies.table(load(home, study="evaluation"), ask)
    rows = table.cells[table.cells["column"] == policies.REACH_REFERENCE]
    assert (len(rows) > 0) == any("the reference" in note for note in table.notes)
    return dict(zip(rows["row"], rows["mean"], strict=True))


def test_the_curve_ends_at_coverage(home: Path) -> None:
    frames = load(home, study="evaluation")
    figure = policies_figure.figure(frames)
    (axes,) = [axes for axes in figure.axes if axes.get_visible()]
    ends = {np.asarray(line.get_ydata())[-1] for line in axes.get_lines()}
    assert ends == {50.0}
    arm = evaluations(frames)[0]
    assert cell(frames, arm, pass_at(8), ("maze7",)).mean == 0.5
    assert encode(figure, "png").startswith(b"\x89PNG")


def test_a_mean_of_samples_to_reach_leaves_nobody_out() -> None:
    """The base policy covers 1/2. One seed reaches that with one sample; one that covers 1/4 never does."""
    problems = tuple(("b", str(i)) for i in range(4))
    base, good, never = (
        ProblemCounts(problems, np.full(4, 8), np.array(c), 0) for c in ((1, 1, 0, 0), (8, 8, 0, 0), (8, 0, 0, 0))
    )
    for of_seeds, mean, state in (
        ((good, good, good), 1.0, "ok"),
        ((good, never, never), math.nan, "reached by 1 of 3"),
        ((never, never, never), math.nan, "not reached"),
    ):
        reached = policies._reached([policies.Pair(seed, base, now) for seed, now in enumerate(of_seeds)], 3)
        assert (reached.mean, reached.state) == (pytest.approx(mean, nan_ok=True), state)


def test_the_table_says_of_how_many_problems_nothing_could_be_judged(tmp_path: Path) -> None:
    judged(tmp_path, {"base": counts(8, 8, 0), "lad@40": [*counts(8, 4), (0, 0, 8)]})
    table = policies.table(load(tmp_path, study="evaluation"))
    assert "maze7: these rates leave out 1 of 3 problems, of which some policy has no judged sample." in table.notes
    rates = table.cells.set_index(["row", "column"])["mean"]
    assert rates["lad@40", policies.KEEP] == 1
    assert rates["lad@40", policies.REACH] == 5  # both of the others, in 5 of 8 samples of which 4 are right


def test_a_policy_that_was_evaluated_alone_has_its_name(tmp_path: Path) -> None:
    """It has no loss to be called by."""
    alone = load(evaluated(tmp_path, {"lad@40": (8, 0)}), study="evaluation")
    assert [arm.label for arm in arms(alone)] == ["policy=lad@40"]
    table = comparison.table(alone)
    assert set(table.cells["row"]) == {"policy=lad@40"}


def test_against_base_is_the_base_policy_among_the_evaluated_ones(tmp_path: Path) -> None:
    right = {"base": (4, 2, 0, 0), "grpo@40": (8, 4, 0, 0), "lad@40": (8, 0, 2, 0)}
    table = comparison.table(load(evaluated(tmp_path, right), study="evaluation"), ComparisonOptions(against="base"))
    differences = table.cells[table.cells["metric"] == "avg@8"].set_index("row")["difference"].dropna()
    assert differences.to_dict() == {"policy=grpo@40": pytest.approx(6 / 32), "policy=lad@40": pytest.approx(4 / 32)}


def test_against_base_is_refused_where_it_was_not_evaluated(tmp_path: Path) -> None:
    frames = load(evaluated(tmp_path, {"grpo@40": (8, 4), "lad@40": (8, 0)}), study="evaluation")
    with pytest.raises(LookupError, match=r"^--against base: there is no such arm\. Arms: 'policy=grpo@40', 'pol"):
        comparison.table(frames, ComparisonOptions(against="base"))


def test_an_arm_of_two_settings_is_listed_once(home: Path) -> None:
    of_both = 2 * evaluations(load(home, study="evaluation"))
    assert no_reference(of_both, "policy=x") == "there is no such arm. Arms: 'policy=base', 'policy=lad@40'."


def test_the_base_policy_stays_the_reference_when_a_later_launch_leaves_it_out(tmp_path: Path) -> None:
    evaluated(tmp_path, {"a2c@40": (8, 4, 0, 0), "base": (4, 2, 0, 0)}, baseline="policy=base")
    evaluated(tmp_path, {"lad@40": (8, 0, 2, 0)}, None, sweep_id="later", created=2000.0)
    table = comparison.table(load(tmp_path, study="evaluation"))
    assert set(table.cells["reference"]) == {"", "policy=base"}


def test_a_panel_is_titled_by_what_differs_between_panels() -> None:
    """`evaluation.k` follows from the number of samples, and is a title only where nothing else differs."""
    tasks = [f"evaluation.k={k}, evaluation.samples={n}, task.size=7" for k, n in (("[1,2,4]", 4), ("[1,2]", 2))]
    titles = policies_figure._titles([("maze7", setting) for setting in tasks])
    assert titles == ["maze7, evaluation.samples=4", "maze7, evaluation.samples=2"]
    only_k = policies_figure._titles([("m", "evaluation.k=[1,2]"), ("m", "evaluation.k=[1,4]")])
    assert only_k == ["m, evaluation.k=[1,2]", "m, evaluation.k=[1,4]"]
    long = policies_figure._titles([("maze7", "evaluation.temperature=0.5"), ("maze7", "evaluation.temperature=1")])
    assert long[0] == "maze7,\nevaluation.temperature=0.5"


def test_bands_end_at_all_and_at_none(home: Path) -> None:
    figure = policies_figure.figure(load(home, study="evaluation"))
    ends = [y for axes in figure.axes for band in axes.collections for y in band.get_paths()[0].vertices[:, 1]]
    assert (min(ends), max(ends)) == (0, 100)  # with four problems ± is wider than the scale


def test_the_runs_of_evaluations_have_columns_only_for_what_is_known_and_differs(home: Path) -> None:
    header, rows = run_table(load(home, study="evaluation"))
    names = [name for name, _ in header]
    assert names == ["run", "seed", "avg@8", "pass@8", "step", "state", "id", "links"]
    assert {row["differs"] for row in rows} == {""}  # the digests, which say no more than the names
    assert all(len(row["results"]) == 2 for row in rows)
