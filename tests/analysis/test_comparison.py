import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.frames.frames import Frames
from analysis.frames.load import load
from analysis.report.cells import costs
from analysis.report.grid import Grid, grids, text_of
from analysis.report.render import latex, markdown
from analysis.report.summary import headlines
from analysis.report.table import Format, Table
from analysis.scores.arm import arms
from analysis.scores.cell import Cell, cell, combine
from analysis.scores.comparison import compare
from analysis.scores.contrast import Scores
from analysis.scores.metric import avg, default_metrics, parse
from analysis.tables.comparison import ComparisonOptions, table
from tests.analysis.ledger_factory import config, counts, write_planned, write_run, write_study

TRAINING = {"policy/entropy": [9.0] * 38 + [0.25, 0.75], "response/length": [20.0] * 40, "time/step_s": [36.0] * 40}
PROBLEMS = 40


def correct(rate: float, problems: int = PROBLEMS, shift: int = 0) -> dict[str, Any]:
    """maze7: problem i has round(8·rate) of 8 right, one more on every third and one fewer on the next."""
    base = round(8 * rate)
    wave = [(0, 1, -1)[(i + shift) % 3] for i in range(problems)]
    return {"maze7": counts(*(min(8, max(0, base + w)) for w in wave))}


def sweep(home: Path, rates: dict[float, tuple[float, ...]], loss: str = "grpo") -> Frames:
    """An arm per learning rate, a seed per rate of success."""
    ends_of = {
        f"loss={loss} lr={lr:g} seed={seed}": {0: correct(0.25), 40: correct(rate, shift=seed)}
        for lr, of_seeds in rates.items()
        for seed, rate in enumerate(of_seeds)
    }
    write_planned(home, ends_of, fate={"training": TRAINING})
    return load(home)


@pytest.fixture(scope="module")
def one(tmp_path_factory) -> Frames:
    """Two arms of one seed; responses of nine words."""
    return sweep(tmp_path_factory.mktemp("one"), {1e-5: (0.5,), 1e-3: (0.75,)})


@pytest.fixture(scope="module")
def three(tmp_path_factory) -> Frames:
    return sweep(tmp_path_factory.mktemp("three"), {1e-5: (0.5, 0.5, 0.5), 1e-3: (0.75, 0.625, 0.75)})


def comparison(frames: Frames, **ask: str) -> Table:
    return table(frames, ComparisonOptions(**ask))


def cell_at(compared: Table, row: str, metric: str, column: str = "") -> pd.Series:
    c = compared.cells
    matching = c[(c["row"] == row) & (c["metric"] == metric) & (c["column"] == column)]
    assert len(matching) == 1
    return matching.iloc[0]


def titled(compared: Table, start: str, width: int = 200) -> Grid:
    return next(g for g in grids(compared, width=width) if g.title.startswith(start))


def test_any_sweep_gets_rows_by_what_was_swept_and_the_usual_columns(three):
    compared = comparison(three)
    grid = grids(compared, width=200)[0]
    assert grid.header == ("", "avg@8, %", "pass@8, %", "entropy, nats", "length, tokens", "hours", "seeds")
    assert [row[0] for row in grid.rows] == ["base policy (step 0)", "lr = 1e-05", "lr = 0.001"]
    assert titled(compared, "maze7: difference").header[1:3] == ("avg@8, points", "pass@8, points")
    # 4 of 8 on average, and the wave of ± 1 on every third problem
    low = cell_at(compared, "lr = 1e-05", "avg@8")["mean"]
    assert low == pytest.approx(sum(c for s in range(3) for _, c, _ in correct(0.5, shift=s)["maze7"]) / (3 * 40 * 8))
    # the last tenth of 40 steps is 37 … 40: (9 + 9 + 0.25 + 0.75)/4; 40 steps of 36 s are 0.4 hours
    assert cell_at(compared, "lr = 1e-05", "entropy")["mean"] == 19 / 4
    assert cell_at(compared, "lr = 1e-05", "hours")["mean"] == pytest.approx(0.4)
    assert [row[-1] for row in grid.rows] == ["3", "3", "3"]
    assert any(note == "All arms: loss=grpo." for note in compared.notes)


def test_differences_are_paired_with_the_reference_and_the_note_counts_seeds_and_problems(three):
    compared = comparison(three)
    arm_cell = cell_at(compared, "lr = 0.001", "avg@8")
    # Seed by seed the same wave: 2/8, 1/8 and 2/8 more on every problem.
    assert arm_cell["difference"] == pytest.approx((2 + 1 + 2) / 3 / 8)
    assert arm_cell["per_seed"] == "0.25 0.125 0.25"
    paired = arm_cell[["reference", "paired_seeds", "paired_problems", "family"]]
    assert list(paired) == ["lr = 1e-05", 3, 40, 1]
    # Nothing but seeds varies: t with 2 degrees of freedom on (0.25, 0.125, 0.25), half 4.3027·0.07217/√3
    half = 4.30265 * 0.0721688 / 3**0.5
    assert arm_cell["difference_high"] - arm_cell["difference_low"] == pytest.approx(2 * half, rel=1e-4)
    assert (arm_cell["verdict"], arm_cell["improvement"]) == ("▲", 1)
    assert any("paired over 3 seeds and 40 problems, 95 %, simultaneous over 1 arm" in note for note in compared.notes)
    grid = titled(compared, "maze7: difference to lr = 1e-05")
    assert grid.rows[0][1] == "+20.8 [2.9, 38.8] ▲"


@pytest.mark.parametrize(
    ("second", "third", "direction"),
    [(0.75, 0.875, "above"), (0.25, 0.125, "below"), (0.75, 0.25, ""), (0.5, 0.5, "undecided")],
)
def test_a_headline_has_the_direction_of_all_that_is_decided(tmp_path, second, third, direction):
    (headline, *_) = headlines(comparison(sweep(tmp_path, {1e-5: (0.5,) * 3, 1e-4: (second,) * 3, 1e-3: (third,) * 3})))
    assert (headline.title, headline.direction) == ("avg@8", direction)


def test_the_notes_name_the_fewest_and_the_most_seeds_and_the_families_that_follow(tmp_path):
    frames = sweep(tmp_path, {1e-5: (0.5,) * 3, 1e-4: (0.5,) * 2, 1e-3: (0.75,)})
    notes = comparison(frames).notes
    (on_intervals,) = [note for note in notes if note.startswith("± is half")]
    assert "over 1 to 3 seeds and their problems. 1 seed: it covers the choice of problems and" in on_intervals
    assert on_intervals.endswith("Two seeds show little of the luck of training: such intervals cover about 90 %.")
    families = "Differences over 1 seed and over several are two families, each with a chance of 5 % of a false ▲ or ▼."
    assert families in notes
    assert families not in comparison(sweep(tmp_path / "alike", {1e-5: (0.5,) * 2, 1e-4: (0.5,) * 2})).notes


def test_the_best_of_each_column_is_marked_where_more_or_less_is_better(one):
    compared = comparison(one)
    grid = grids(compared, width=200)[0]
    assert grid.best == {(2, 1)}  # avg@8; pass@8, hours are alike; entropy is neither good nor bad
    assert re.findall(r"\| \*\*(\S+) ", markdown(compared)) == ["75.0"]
    assert re.findall(r"& \\textbf{(\S+) ", latex(compared)) == ["75.0"]


def test_the_base_policy_is_never_the_best(tmp_path):
    compared = comparison(sweep(tmp_path, {1e-5: (0.125,), 1e-3: (0.0,)}))
    assert {row for row, _ in grids(compared, width=200)[0].best} == {1}
    assert any("Bold: the best of the arms, not counting the base policy" in note for note in compared.notes)


def test_missing_and_diverged_seeds_are_counted(tmp_path):
    for seed, cause in ((0, "ok"), (1, "diverged"), (2, "ok")):
        end = {0: correct(0.25), 40: correct(0.5)} if cause == "ok" else {0: correct(0.25)}
        write_run(tmp_path, config("grpo", seed=seed), end, cause=cause)
    write_run(tmp_path, config("pacs"), END)
    grid = grids(comparison(load(tmp_path)), width=200)[0]
    assert {row[0]: row[-1] for row in grid.rows}["loss=grpo"] == "2 of 3 (1 diverged)"


def test_a_seed_that_one_arm_lacks_is_left_out_and_named(tmp_path):
    compared = comparison(sweep(tmp_path, {1e-5: (0.5, 0.5), 1e-3: (0.75, 0.625, 0.75)}))
    arm_cell = cell_at(compared, "lr = 0.001", "avg@8")
    assert (arm_cell["paired_seeds"], arm_cell["unpaired_seeds"]) == (2, "2")
    assert any("Left out of differences, for want of a partner: seeds 2" in note for note in compared.notes)


END = {0: correct(0.25), 40: correct(0.5)}


def arms_with(home: Path, seeds_of: dict[str, tuple[int, ...]], **about: Any) -> Frames:
    typed = [f"loss={loss} seed={seed}" for loss, seeds in seeds_of.items() for seed in seeds]
    write_planned(home, dict.fromkeys(typed, END), **about)
    return load(home)


def test_arms_without_a_common_seed_are_not_compared_and_a_note_says_so(tmp_path):
    compared = comparison(arms_with(tmp_path, {"grpo": (0, 1), "pacs": (2, 3)}))
    assert compared.cells["difference"].isna().all()
    note = "Not compared, for want of a common seed or problem: loss=pacs and loss=grpo (avg@8, pass@8)."
    assert note in compared.notes
    for loss, seed in (("grpo", 2), ("pacs", 0)):  # from here on seeds 0 and 2 are common
        write_run(tmp_path, config(loss, seed=seed), END)
    assert not any(note.startswith("Not compared") for note in comparison(load(tmp_path)).notes)


def test_that_the_noise_floor_has_other_seeds_than_the_reference_needs_no_note(tmp_path):
    again = {"lossgrpo-seed7": "seeds", "lossgrpo-seed8": "seeds"}
    compared = comparison(arms_with(tmp_path, {"grpo": (0, 1, 7, 8), "pacs": (0, 1)}, control=again))
    assert "loss=grpo control=seeds" in set(compared.cells["row"])
    assert not any(note.startswith("Not compared") for note in compared.notes)


def test_two_runs_of_one_arm_and_seed_are_not_averaged_as_if_one_were_two(tmp_path):
    for name, rate in (("first", 0.5), ("second", 0.75)):
        write_run(tmp_path, config("grpo"), {0: correct(0.25), 40: correct(rate)}, name=name)
    with pytest.raises(LookupError, match=r"first \(id-first\) and second \(id-second\) are both of seed 0 of one arm"):
        comparison(load(tmp_path))


def test_against_names_another_reference_or_the_base_policy(tmp_path):
    frames = sweep(tmp_path, {1e-5: (0.5,), 1e-4: (0.5,), 1e-3: (0.75,)})
    assert set(comparison(frames, against="lr=0.001").cells["reference"]) == {"", "lr = 0.001"}
    against_base = comparison(frames, against="base")
    assert cell_at(against_base, "lr = 0.001", "avg@8")["difference"] == pytest.approx((6 - 2) / 8)
    with pytest.raises(LookupError, match=r"no such arm\. Arms: 'lr=0.0001', 'lr=0.001', 'lr=1e-05'\."):
        comparison(frames, against="lr=7")
    with pytest.raises(LookupError, match="names no arm"):
        comparison(frames, against="grpo")


def test_a_reference_that_several_arms_could_be_is_refused_with_what_to_type(tmp_path):
    write_planned(tmp_path, dict.fromkeys(("loss=grpo", "loss=lad eta=0.5", "loss=lad eta=1"), END))
    frames = load(tmp_path)
    several = r"^--against loss=lad: 2 arms are that, .* Type one of 'loss=lad eta=1', 'loss=lad eta=0.5'\."
    with pytest.raises(LookupError, match=several):
        comparison(frames, against="loss=lad")
    assert set(comparison(frames, against="loss=lad eta=0.5").cells["difference"].notna()) == {True, False}
    with pytest.raises(LookupError, match="every arm is one, and there is none to compare to it"):
        comparison(frames, against="task.size=7")


def test_arms_of_a_swept_model_are_compared_to_the_base_policy_of_their_own_model(tmp_path):
    """Two layers go from 2 to 4 of 8, three from 4 to 6: 25 points each."""
    starts = {"loss=grpo model.layers=2": 0.25, "loss=grpo model.layers=3": 0.5}
    write_planned(tmp_path, {words: {0: correct(at), 40: correct(at + 0.25)} for words, at in starts.items()})
    compared = comparison(load(tmp_path), against="base")
    differences = compared.cells[(compared.cells["metric"] == "avg@8") & ~compared.cells["base"]]["difference"]
    assert list(differences) == pytest.approx([0.25, 0.25])


def test_a_single_run_is_compared_to_its_base_policy(tmp_path):
    write_run(tmp_path, config("grpo"), {0: correct(0.25), 40: correct(0.75)}, training=TRAINING)
    compared = comparison(load(tmp_path))
    arm_cell = cell_at(compared, "loss=grpo", "avg@8")
    assert (arm_cell["reference"], arm_cell["difference"]) == ("base policy (step 0)", pytest.approx(0.5))


def test_the_requested_metrics_are_the_columns(one):
    compared = comparison(one, metrics="pass,response/length,avg@8")
    assert grids(compared, width=200)[0].header == ("", "pass@8, %", "response/length", "avg@8, %", "seeds")
    twice = comparison(one, metrics="avg,avg@8, distinct-3,distinct-03")
    assert grids(twice, width=200)[0].header == ("", "avg@8", "distinct-3", "seeds")
    with pytest.raises(LookupError, match=r"no run measured it\. Did you mean pass@8 or pass@1 or pass\?"):
        comparison(one, metrics="pass@9")


def test_a_metric_of_which_no_run_has_a_value_is_refused_with_what_it_is_measured_on(one):
    comparison(one, metrics="distinct-9")
    with pytest.raises(LookupError, match=r"distinct-10: no run has a value .* stored responses of 10 words or more"):
        comparison(one, metrics="avg,distinct-10")
    with pytest.raises(LookupError, match="--metrics distinct-0: no run measured it"):  # of no words
        comparison(one, metrics="distinct-0")
    with pytest.raises(LookupError, match="modes covered: no run has a value .* policies of a bandit"):
        comparison(one, metrics="modes covered")
    with pytest.raises(LookupError, match="Measured: avg, pass, avg@8, pass@1, pass@8, .*distinct-3") as refusal:
        comparison(one, metrics="nonsense")
    assert "modes covered" not in str(refusal.value)
    with pytest.raises(LookupError, match="right answers: no run measured it"):  # of one answer texts count spellings
        comparison(one, metrics="right answers")


def test_each_setting_has_the_widest_metrics_that_it_measured(tmp_path):
    """Of 4 of 8, and of 12 of 16 right answers."""
    wide = {40: {"evaluation/maze7/avg_at_16": 0.75, "evaluation/maze7/pass_at_16": 1.0}}
    for samples, right, extra in ((8, 4, {}), (16, 12, wide)):
        ends = {f"loss={x} evaluation.samples={samples}": {40: {"maze7": counts(right, n=samples)}} for x in ("a", "b")}
        write_planned(tmp_path, ends, f"{samples}", fate={"logged_at": extra})
    compared = comparison(load(tmp_path))
    cells = compared.cells[compared.cells["row"] == "loss=a"][["block", "metric", "mean"]].to_numpy().tolist()
    narrow = [["evaluation.samples=8, maze7", "avg@8", 0.5], ["evaluation.samples=8, maze7", "pass@8", 1.0]]
    assert [cell for cell in cells if cell not in narrow] == [
        ["evaluation.samples=16, maze7", "avg@16", 0.75],
        ["evaluation.samples=16, maze7", "pass@16", 1.0],
    ]
    assert len(cells) == 4
    assert compared.shown == ("avg@8", "avg@16", "pass@8", "pass@16")


def test_an_evaluated_arm_without_a_value_of_a_metric_is_not_measured(tmp_path):
    for seed, extra in enumerate(({}, {40: {"evaluation/maze7/depth": 3.0}})):
        frozen = config("grpo", lr=10.0**-seed)
        write_run(tmp_path, frozen, {0: correct(0.25), 40: correct(0.5)}, name=f"r{seed}", logged_at=extra)
    cells = comparison(load(tmp_path), metrics="maze7/depth,evaluation/maze7/depth").cells
    by_arm = cells[~cells["base"]].set_index("row")[["state", "mean"]].T.to_dict("list")
    assert (by_arm["lr = 0.1"], by_arm["lr = 1"][0]) == (["ok", 3.0], "not measured")


def test_what_explains_an_evaluation_is_a_column_only_if_it_is_asked_for(tmp_path):
    shares = {f"evaluation/maze7/{name}": 0.5 for name in ("error", "unparsable", "finished", "length", "depth")}
    write_run(tmp_path, config("grpo"), {0: correct(0.25), 40: correct(0.5)}, logged_at={40: shares})
    frames = load(tmp_path)
    usual = [str(metric) for metric in default_metrics(frames, [run.run_id for run in frames.rows])]
    assert [name for name in usual if name.startswith("maze7/")] == ["maze7/depth"]
    asked = comparison(frames, metrics="maze7/unparsable,maze7/length")
    assert asked.shown == ("maze7/unparsable", "maze7/length")


def test_pass_at_any_k_up_to_the_samples_drawn_is_a_column(one):
    compared = comparison(one, metrics="pass@2")
    # 4 of 8 right: 1 - C(4, 2)/C(8, 2) = 22/28; 5: 25/28; 3: 18/28; of 40 problems 14, 13 and 13.
    assert cell_at(compared, "lr = 1e-05", "pass@2")["mean"] == pytest.approx((14 * 22 + 13 * 25 + 13 * 18) / 28 / 40)


def test_problems_without_enough_samples_are_not_counted_and_a_note_says_so(tmp_path):
    few, enough = counts(*[1] * 10, n=4), counts(2, 4)
    for lr in (1e-5, 1e-3):
        frozen = config("grpo", lr=lr)
        write_run(tmp_path, frozen, {0: correct(0.25), 40: {"maze7": [*few, *enough]}}, name=f"lr={lr:g}")
    compared = comparison(load(tmp_path), metrics="pass@4,pass@8")
    cells = compared.cells[~compared.cells["base"].astype(bool)]
    assert set(zip(cells["metric"], cells["problems"], strict=True)) == {("pass@4", 12), ("pass@8", 2)}
    assert [note for note in compared.notes if "pass@8" in note] == [
        "Left out of means, for want of a value, as with too few judged samples: at most 10 of 12 problems (pass@8)."
    ]


def test_two_knobs_are_rows_and_columns(tmp_path):
    write_study(tmp_path)
    compared = comparison(load(tmp_path), metrics="avg", across="eta")
    grid = grids(compared)[0]
    lad = [f"loss=lad divergence={d}" for d in ("tv", "hd", "js")]
    assert [row[0] for row in grid.rows] == ["base policy (step 0)", "loss=grpo", *lad]
    average = [h for h in grid.header if h.startswith("Average")]
    etas = (("0.5", "2"), ("1", "1"), ("2", "1/2"), ("4", "1/4"))
    assert average == [f"Average eta = {e} (1/η = {i})" for e, i in etas]
    js = dict(zip(grid.header, next(r for r in grid.rows if "js" in r[0]), strict=True))
    assert js[average[0]].startswith("60.9")  # 39/64
    with pytest.raises(LookupError, match="it was not swept. Swept here: loss, divergence, eta"):
        comparison(load(tmp_path), across="lr")


@pytest.mark.parametrize(
    ("key", "typed", "head"), [("lr", "1e-3", "lr = 1e-06"), ("trainer.critic", "own", "trainer.critic=null")]
)
def test_an_arm_with_the_default_of_the_knob_across_has_a_column_of_its_own(tmp_path, key, typed, head):
    """GRPO has 4 of 8 right by default and 6 with the typed value; PACS 2 and 1."""
    rates = {"loss=grpo": 0.5, "loss=pacs": 0.25, f"loss=grpo {key}={typed}": 0.75, f"loss=pacs {key}={typed}": 0.125}
    write_planned(tmp_path, {words: {0: correct(0.25), 40: correct(rate)} for words, rate in rates.items()})
    frames = load(tmp_path)
    cells = comparison(frames, metrics="avg", across=key).cells
    means = {(cell["row"], cell["column"]): cell["mean"] for _, cell in cells[~cells["base"]].iterrows()}
    other = "lr = 1e-3" if key == "lr" else "trainer.critic=own"
    expected = comparison(frames, metrics="avg").cells.set_index("row")["mean"]
    assert means == {
        (loss, column): expected[row]
        for loss in ("loss=grpo", "loss=pacs")
        for column, row in ((head, loss), (other, f"{loss} {other}"))
    }


def test_a_setting_that_did_not_sweep_the_knob_across_stays_as_it_is(tmp_path):
    for size, arms_of_size in ((7, ("lr=1e-5", "lr=1e-3")), (9, ("loss=grpo", "loss=pacs"))):
        for number, typed in enumerate(arms_of_size):
            about = {"frozen": {"task": {"size": size}, "loss": typed.partition("loss=")[2] or "grpo"}, "study": "st"}
            write_planned(tmp_path, {typed: END}, f"s{size}{number}", fate={"name": f"{size}-{typed}"}, **about)
    cells = comparison(load(tmp_path, study="st"), metrics="avg", across="lr").cells
    places = {(cell["block"], cell["row"], cell["column"]) for _, cell in cells[~cells["base"]].iterrows()}
    assert places == {
        ("task.size=7, maze7", "loss=all", "lr = 1e-5"),
        ("task.size=7, maze7", "loss=all", "lr = 1e-3"),
        ("task.size=9, maze7", "loss=grpo", ""),
        ("task.size=9, maze7", "loss=pacs", ""),
    }


@pytest.mark.slow
def test_a_family_is_all_arms_of_a_setting_however_a_table_divides_them_into_blocks(tmp_path):
    write_study(tmp_path)
    frames = load(tmp_path)
    from analysis.tables import eta

    ours, papers = comparison(frames).cells, eta.table(frames).cells
    assert set(ours["family"].dropna()) == set(papers["family"].dropna()) == {12}
    js = papers[papers["block"].str.endswith("js") & (papers["row"] == "1/η = 2")]
    arm_cell = js[(js["metric"] == "avg@8") & (js["column"] == "Average")].iloc[0]
    same = cell_at(comparison(frames), "loss=lad divergence=js eta = 0.5 (1/η = 2)", "avg@8", "Average")
    assert arm_cell["difference_low"] == same["difference_low"]


def test_the_best_by_validation_gets_no_verdict_either(tmp_path):
    """η = 2 is better on the test problems (28/32 against 20/32), worse on the validation split, and not chosen.

    Under the seeds that it was chosen by the best looks better than it is: of equal arms it was 1 to 2 points above
    GRPO in a simulation."""
    from analysis.tables import divergence

    for eta, correct, validation in ((0.5, (5, 5, 5, 5), 0.75), (2.0, (7, 7, 7, 7), 0.5)):
        evaluations = {0: {"maze7": counts(4, 4, 4, 4)}, 40: {"maze7": counts(*correct)}}
        write_run(tmp_path, config(eta=eta), evaluations, validation=validation)
    evaluations = {0: {"maze7": counts(4, 4, 4, 4)}, 40: {"maze7": counts(4, 4, 4, 4)}}
    write_run(tmp_path, config(loss="grpo"), evaluations, validation=0.25)
    cells = divergence.table(load(tmp_path)).cells
    title = "Best 1/η of each (chosen by avg@n on the validation split, under these very seeds: optimistic, no verdict)"
    best = cells[(cells["block"] == title) & (cells["metric"] == "avg@8")]
    js = best[best["row"].str.startswith("js")]
    assert (list(js["row"]), list(js["mean"])) == (["js (1/η = 2)"], [0.625])
    assert best["difference"].isna().all()


def test_the_cheapest_way_to_decide_follows_from_the_measured_hours(tmp_path):
    """A run trains for 40 · 36 s = 0.4 h; its evaluations at 0 and 40 take 30 s and 42 s, 0.01 h each."""
    ends = [("grpo", seed, 4) for seed in range(4)] + [("pacs", seed, right) for seed, right in enumerate((4, 6, 4, 5))]
    spent = {step: {"time/evaluation_s": seconds} for step, seconds in ((0, 30.0), (40, 42.0))}
    ends_of = {f"loss={loss} seed={seed}": {0: correct(0.25), 40: correct(n / 8)} for loss, seed, n in ends}
    write_planned(tmp_path, ends_of, fate={"training": TRAINING, "logged_at": spent})
    frames = load(tmp_path)
    assert costs(frames, arms(frames)) == pytest.approx((0.4, 0.01))
    # Alike on all problems, unlike between seeds: more seeds alone would decide it.
    assert cell_at(comparison(frames), "loss=pacs", "avg@8")["cheapest"] == "seeds"


@pytest.mark.parametrize(
    ("task", "evaluation", "more"), [({"test_problems": 8}, {}, True), ({}, {"problems": 8}, True), ({}, {}, False)]
)
def test_more_problems_are_advised_to_tasks_that_have_more(tmp_path, task, evaluation, more):
    """Eight problems, on two of which the second arm is better by an eighth. A task whose problems are a file, all of
    which were measured, has no others, however many would decide."""
    base, better = [4] * PROBLEMS, [5, 5, *[4] * (PROBLEMS - 2)]
    arms_of = (("grpo", base), ("rloo", better))
    ends_of = {f"loss={loss} seed=0": {0: correct(0.5), 40: {"maze7": counts(*n)}} for loss, n in arms_of}
    frozen = {"task": {"test_problems": None, **task}, "evaluation": evaluation}
    write_planned(tmp_path, ends_of, frozen=frozen)
    found = cell_at(comparison(load(tmp_path)), "loss=rloo", "avg@8")
    assert (found["needed_problems"] > PROBLEMS, found["cheapest"] == "problems") == (more, False)


def test_a_mean_over_arms_keeps_what_they_share(tmp_path):
    """Seeds move both arms alike, so the mean of two arms varies as much as each of them."""
    frames = sweep(tmp_path, {1e-5: (0.5, 0.25, 0.75), 1e-3: (0.5, 0.25, 0.75)})
    (metric,) = parse("avg@8", frames, [run.run_id for run in frames.rows])
    cells = [cell(frames, arm, metric, ("maze7",)) for arm in arms(frames)]
    together = combine(cells)
    assert (together.mean, together.interval()) == (cells[0].mean, pytest.approx(cells[0].interval()))


def test_intervals_end_where_what_is_possible_ends_and_verdicts_stay():
    """Two problems have one degree of freedom, so that t is 12.71: 12.71 times the standard error 0.25 is 3.18."""
    benchmark = np.zeros(2, np.int64)

    def cell_of(*values: float) -> Cell:
        return Cell.of(Scores((0,), (("s", "a"), ("s", "b")), np.array([values]), benchmark), 1)

    free, shares = cell_of(0.5, 1.0), replace(cell_of(0.5, 1.0), possible=avg(8).possible)
    assert free.interval() == pytest.approx((0.75 - 3.1766, 0.75 + 3.1766), abs=1e-3)
    assert shares.interval() == (0, 1)
    assert text_of({**shares.record(), "verdict": ""}, Format()) == "75.0 [0, 100]"
    reference = replace(cell_of(0.0, 0.75), possible=(0.0, 1.0))
    (cut,) = compare({"x": shares}, {"x": reference}).values()
    (whole,) = compare({"x": free}, {"x": reference}).values()
    assert whole.record()["difference_low"] == pytest.approx(0.375 - 12.7062 * 0.125, abs=1e-3)
    assert (cut.record()["difference_low"], cut.record()["difference_high"]) == (-1, 1)
    assert cut.record()["p"] == whole.record()["p"]
    assert cut.mark == whole.mark == ""


def test_a_half_width_that_would_be_printed_as_zero_has_more_decimals():
    scored = {"state": "", "verdict": ""}
    assert text_of({"mean": 0.9998, "low": 0.99945, "high": 1.0, **scored}, Format()) == "99.98 [99.94, 100]"
    assert text_of({"mean": 0.9996, "low": 0.9992, "high": 1.0, **scored}, Format()) == "99.96 ± 0.04"
    assert text_of({"mean": 0.5, "low": 0.1, "high": 0.9, **scored}, Format()) == "50.0 ± 40.0"


def test_programs_with_policies_of_their_own_have_no_base_policy_in_common(tmp_path):
    """What the first of them was before training is no start of the others; that of a single one is its own."""
    ends = {
        f"program.width={width} seed=0": {0: correct(rate), 40: correct(0.5)} for width, rate in ((2, 0.25), (3, 0))
    }
    program = {"choices": {"program": "mine", "model": None}}
    for home, typed, base in ((tmp_path / "two", list(ends), False), (tmp_path / "one", list(ends)[:1], True)):
        write_planned(home, {word: ends[word] for word in typed}, frozen=program)
        assert comparison(load(home)).cells["base"].any() == base
    write_planned(tmp_path / "reading", ends, frozen={"choices": {"program": "mine"}})  # the model of the others
    assert comparison(load(tmp_path / "reading")).cells["base"].any()
