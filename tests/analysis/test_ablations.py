import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from matplotlib.text import Text

from analysis.figures import ablations as ablation_figures
from analysis.figures import baselines as baselines_figure
from analysis.figures import evaluation as evaluation_figure
from analysis.figures import training as training_figure
from analysis.frames.frames import Frames
from analysis.frames.load import load
from analysis.report import style
from analysis.report.cells import Block, MetricColumn, Row, fill
from analysis.report.grid import grids, published_averages
from analysis.report.table import Table
from analysis.scores.arm import arms
from analysis.scores.comparable import by_setting
from analysis.tables import baselines
from analysis.tables.ablations import BETA, ROLLOUT_SCALING, SCORE_FUNCTION, WEIGHTING
from tests.analysis.ledger_factory import change_sweep, config, counts, write_planned, write_run, write_sweep

FIGURES = {**ablation_figures.SEVERAL, "baselines": baselines_figure}
START = {"maze7": counts(4, 2, 0, 0)}


def end(*correct: int) -> dict[str, Any]:
    return {0: START, 40: {"maze7": counts(*correct)}}


def cell(table: Table, row: str, column: str, block: str = "") -> pd.Series:
    c = table.cells
    matching = c[(c["row"] == row) & (c["column"] == column) & c["block"].str.contains(block)]
    assert len(matching) == 1
    return matching.iloc[0]


def responses(home: Path, run_id: str, step: int, texts: list[list[str]]) -> None:
    """Give the samples of a run these texts, problem by problem."""
    file = home / "runs" / run_id / "samples" / f"test-{step:08d}.parquet"
    frame = pd.read_parquet(file)
    frame["response"] = [text for problem in texts for text in problem]
    frame.to_parquet(file)


# --- arms of one objective ---


def swept(home: Path, *runs: tuple[str, int, dict[str, Any]]) -> Frames:
    """A sweep of one seed. runs: (loss, right answers to each of four problems, other knobs of the config)."""
    plan: list[tuple[str, str, list[str]]] = []
    for loss, right, knobs in runs:
        name = f"run{len(plan)}"
        frozen = config(loss=loss, **knobs)
        run_id = write_run(home, frozen, end(*[right] * 4), name=name, training={"policy/entropy": [0.5] * 40})
        plan.append((run_id, name, [f"loss={loss}", f"run={name}"]))
    write_sweep(home, "s", plan)
    return load(home)


@pytest.mark.slow
def test_two_arms_of_one_objective_are_two_rows_of_the_baselines(tmp_path: Path) -> None:
    """LAD at two η, PACS at two β: each row its own number."""
    plain, of_lad = (("grpo", 4, {}), ("rloo", 5, {})), (("lad", 2, {"eta": 0.5}), ("lad", 7, {"eta": 1.0}))
    frames = swept(tmp_path, *plain, *of_lad, ("pacs", 1, {"beta": 1.0}), ("pacs", 6, {"beta": 10.0}))
    rows = {row: cell(baselines.table(frames), row, "avg@8")["mean"] for row in baselines.table(frames).cells["row"]}
    right = {"grpo": 4, "rloo": 5, "lad-js (eta=0.5)": 2, "lad-js (eta=1)": 7, "pacs (beta=1)": 1, "pacs (beta=10)": 6}
    assert rows == {"base policy (step 0)": 6 / 32, **{row: count / 8 for row, count in right.items()}}


def test_arms_that_differ_in_another_scale_are_not_points_of_one_line(tmp_path: Path) -> None:
    """LAD at two η with 4 and with 16 rollouts: a line per η. A control is on none."""
    of_lad = ((4, 0.5, 1), (16, 0.5, 2), (4, 1.0, 6), (16, 1.0, 7))
    runs = [("lad", right, {"eta": eta, "rollout": {"samples": n}}) for n, eta, right in of_lad]
    controls = [("lad", 0, {"eta": 1.0, "rollout": {"samples": n, "reward": "random"}}) for n in (4, 16)]
    table = ROLLOUT_SCALING.table(swept(tmp_path, *runs, *controls))
    means = {
        (block.partition(",")[0], row): cell(table, row, "avg@8", re.escape(block))["mean"]
        for block, row in zip(table.cells["block"], table.cells["row"], strict=True)
        if row.startswith("N")
    }
    assert means == {(f"lad-js (eta={eta:g})", f"N = {n}"): right / 8 for n, eta, right in of_lad}


def test_the_best_value_of_each_arm_does_not_divide_a_line(tmp_path: Path) -> None:
    """Tuning picked another learning rate at 8 rollouts than at 16 and 32."""
    picked = {8: "1e-05", 16: "0.0001", 32: "0.0001"}
    write_planned(tmp_path, {f"loss=grpo rollout.samples={n} lr={lr}": end(n // 8) for n, lr in picked.items()})
    assert set(ROLLOUT_SCALING.table(load(tmp_path)).cells["row"]) == {"base policy (step 0)", "N = 16", "N = 32"}
    rule = {"keys": ["lr"], "values": ["lr=1e-05", "lr=0.0001"], "seeds": [1000], "picks": {}}
    change_sweep(tmp_path, tune=rule)
    table = ROLLOUT_SCALING.table(load(tmp_path))
    assert [cell(table, f"N = {n}", "avg@8")["mean"] for n in (8, 16, 32)] == [1 / 8, 2 / 8, 4 / 8]


def test_two_rows_of_one_name_are_refused(tmp_path: Path) -> None:
    """Otherwise the cells of one would be printed for both."""
    frames = swept(tmp_path, ("grpo", 4, {}), ("rloo", 5, {}))
    rows = tuple(Row("ours", (arm,)) for arm in arms(frames))
    columns = [MetricColumn(metric, ("maze7",), "maze7") for metric in by_setting(frames)[0].metrics[:1]]
    with pytest.raises(ValueError, match="two rows of a table have one name: .*'ours'"):
        fill(frames, [Block("", rows)], columns)


# --- rollouts per prompt ---


@pytest.fixture
def scaling(tmp_path: Path) -> Frames:
    for loss, at_four, at_sixteen in (("maxrl", (4, 4, 0, 0), (8, 8, 4, 2)), ("rloo", (4, 2, 0, 0), (8, 4, 0, 0))):
        for samples, correct in ((16, at_sixteen), (4, at_four)):
            frozen = config(loss=loss)
            frozen["rollout"] = {"samples": samples}
            write_run(tmp_path / "scaling", frozen, end(*correct), name=f"{loss}-{samples}")
    return load(tmp_path / "scaling")


def test_rollout_scaling_by_hand(scaling: Frames) -> None:
    table = ROLLOUT_SCALING.table(scaling)
    # maxrl at 16: (8 + 8 + 4 + 2)/32, every problem solved; at 4: (4 + 4)/32, two of four
    assert cell(table, "N = 16", "avg@8", "maxrl")["mean"] == 22 / 32
    assert cell(table, "N = 16", "pass@8", "maxrl")["mean"] == 1
    assert cell(table, "N = 4", "avg@8", "maxrl")["mean"] == 8 / 32
    assert cell(table, "N = 4", "pass@8", "rloo")["mean"] == 2 / 4
    assert cell(table, "base policy (step 0)", "avg@8", "rloo")["mean"] == 6 / 32
    rows = [g.rows for g in grids(table)]
    assert [[r[0] for r in block] for block in rows] == [["base policy (step 0)", "N = 4", "N = 16"]] * 2


# --- PACS ---


def pacs(home: Path, correct: tuple[int, ...], name: str, cause: str | None = "ok", **knobs: Any) -> str:
    frozen = config(loss="pacs")
    frozen["loss"] |= {"beta": 1.0, "score": "rloo", "weight": "balanced", **knobs}
    return write_run(home, frozen, end(*correct) if cause == "ok" else {0: START}, name=name, cause=cause)


def test_beta_by_hand_and_a_failed_run_is_seen(tmp_path: Path) -> None:
    pacs(tmp_path, (8, 8, 0, 0), "two", beta=2.0)
    pacs(tmp_path, (8, 4, 4, 0), "tenth", beta=0.1)
    pacs(tmp_path, (), "ten", "diverged", beta=10.0)
    table = BETA.table(load(tmp_path))
    assert cell(table, "β = 0.1", "avg@8")["mean"] == 16 / 32
    assert (cell(table, "β = 0.1", "pass@8")["mean"], cell(table, "β = 2", "pass@8")["mean"]) == (3 / 4, 2 / 4)
    assert cell(table, "β = 10", "avg@8")["state"] == "diverged"
    assert [r[0] for r in grids(table)[0].rows] == ["base policy (step 0)", "β = 0.1", "β = 2", "β = 10"]


def test_an_option_of_pacs_is_a_row(tmp_path: Path) -> None:
    options = {SCORE_FUNCTION: ("rloo", "naive"), WEIGHTING: ("balanced", "only_positive")}
    for ablation, (first, second) in options.items():
        home, knob = tmp_path / ablation.name, ablation.knob.removeprefix("loss.")
        pacs(home, (8, 8, 0, 0), "one", **{knob: first})
        pacs(home, (8, 0, 0, 0), "two", **{knob: second})
        table = ablation.table(load(home))
        assert cell(table, first, "avg@8")["mean"] == 16 / 32, ablation.name
        assert cell(table, second, "avg@8")["mean"] == 8 / 32, ablation.name
        for other in {SCORE_FUNCTION, WEIGHTING, BETA} - {ablation}:
            assert other.table(load(home)) is None, ablation.name


# --- all objectives ---


@pytest.fixture
def four(tmp_path: Path) -> Frames:
    home = tmp_path / "four"
    finals = {"grpo": (8, 4, 4, 0), "maxrl": (8, 8, 4, 2), "pacs": (4, 4, 0, 0), "rloo": (8, 4, 0, 0)}
    for loss, correct in finals.items():
        entropy = [9.0] * 38 + [0.25, 0.75]
        run_id = write_run(home, config(loss=loss), end(*correct), training={"policy/entropy": entropy})
        # 8 responses a problem. Alike: 16 trigrams of "a b c d", 2 of them different. Apart: 16, all different.
        alike, apart = ["a b c d"] * 8, [f"{i} b{i} c{i} d{i}" for i in range(8)]
        responses(home, run_id, 40, [alike, alike, apart, apart] if loss == "grpo" else [alike] * 4)
    return load(home)


def test_baselines_by_hand(four: Frames) -> None:
    table = baselines.table(four)
    assert cell(table, "maxrl", "avg@8")["mean"] == 22 / 32
    # grpo: two problems with 2/16 different trigrams and 1/8 different 4-grams, two with all
    assert cell(table, "grpo", "distinct-3")["mean"] == (2 / 16 + 2 / 16 + 1 + 1) / 4
    assert cell(table, "grpo", "distinct-4")["mean"] == (1 / 8 + 1 / 8 + 1 + 1) / 4
    assert cell(table, "pacs", "distinct-3")["mean"] == 2 / 16
    # the last tenth of 40 steps is 37 … 40: (9 + 9 + 0.25 + 0.75)/4
    assert cell(table, "rloo", "entropy, nats")["mean"] == 19 / 4
    assert cell(table, "base policy (step 0)", "avg@8")["mean"] == 6 / 32
    (grid,) = grids(table)
    assert [r[0] for r in grid.rows] == ["base policy (step 0)", "maxrl", "grpo", "rloo", "pacs"]
    assert grid.rows[1][-1] == "4.750"  # nats, not per cent


def test_three_objectives_give_no_table_of_baselines(tmp_path: Path) -> None:
    for loss in ("grpo", "rloo", "maxrl"):
        write_run(tmp_path, config(loss=loss), end(4, 4, 0, 0))
    assert baselines.table(load(tmp_path)) is None
    assert baselines_figure.figure(load(tmp_path)) is None


# --- figures, published numbers ---


@pytest.mark.slow
def test_every_figure_draws_and_repeats_its_bytes(tmp_path: Path, four: Frames, scaling: Frames) -> None:
    pacs(tmp_path / "p", (8, 8, 0, 0), "two", beta=2.0)
    pacs(tmp_path / "p", (8, 4, 4, 0), "tenth", beta=0.1)
    pacs(tmp_path / "p", (), "ten", "diverged", beta=10.0)
    pacs(tmp_path / "p", (8, 4, 4, 2), "naive", beta=2.0, score="naive")
    pacs(tmp_path / "p", (8, 4, 4, 4), "none", beta=2.0, weight="none")
    pacs_frames = load(tmp_path / "p")
    frames = {"baselines": four, "rollout_scaling": scaling}
    for name, figure in FIGURES.items():
        study_frames = frames.get(name, pacs_frames)
        once, again = (style.encode(figure.figure(study_frames), "png") for _ in range(2))
        assert once == again, name
    for name in ("baselines", "rollout_scaling", "score_function"):  # with bars or bands
        texts = [text.get_text() for text in FIGURES[name].figure(frames.get(name, pacs_frames)).findobj(Text)]
        assert any("95 % interval over seeds and problems" in text for text in texts), name


def test_the_published_tables_are_those_of_the_papers(scaling: Frames, tmp_path: Path) -> None:
    (shown,) = ROLLOUT_SCALING.table(scaling).published
    assert "table 3" in shown.label
    terminal = published_averages(shown)  # no Average is printed: its one column
    assert {r[0]: r[1:] for r in terminal.rows}["GRPO"] == ("39.6", "42.4", "43.0")
    pacs(tmp_path / "p", (8, 8, 0, 0), "one", score="rloo")
    pacs(tmp_path / "p", (8, 0, 0, 0), "two", score="naive")
    cells = SCORE_FUNCTION.table(load(tmp_path / "p")).published[0].cells.set_index(["row", "metric", "column"])["text"]
    assert cells["PACS (advantage estimator GRPO)", "pass@64", "BeyondAIME"] == "56.30"


# --- training curves ---


def test_the_training_curves_of_all_arms_have_names_and_looks_of_their_own(tmp_path: Path) -> None:
    """In two settings too, as all stand in the same panels. One that is known by its loss alone has the loss's look."""
    for temperature in (0.6, 1.0):
        for loss, kl in (("grpo", 0.0), ("grpo", 0.01), ("pacs", 0.0), ("lad", 0.0)):
            frozen = config(loss, "js", trainer={"kl": kl}, evaluation={"temperature": temperature})
            logged = {"policy/entropy": [1.0, temperature], "optim/grad_norm": [float("nan")] * 2}  # no line
            name = f"{loss}-{kl}-{temperature}"
            write_run(tmp_path, frozen, {2: {"maze7": counts(1)}}, training=logged, name=name)
    drawn = training_figure.figure(load(tmp_path))
    (legend,) = drawn.legends
    names = {text.get_text() for text in legend.get_texts()}
    labels = ("grpo kl=0", "grpo kl=0.01", "lad", "pacs")
    assert {name.partition(", ")[2] for name in names} == {"evaluation.temperature=0.6", "evaluation.temperature=1"}
    assert len(names) == 2 * len(labels)
    lines = drawn.axes[0].lines
    assert not drawn.axes[1].lines
    assert len({(line.get_color(), str(line._dash_pattern)) for line in lines}) == len(lines) == 2 * len(labels)


@pytest.mark.slow
def test_a_figure_grows_by_its_legend(tmp_path: Path) -> None:
    for size in range(24):
        knobs = {"temperature_of_the_reference": 100_000 + size, "another_knob_with_a_long_name": size}
        frozen = config(loss="grpo", rollout=knobs, evaluation={"every": 20})
        evaluations = {0: START, 20: {"maze7": counts(4, 4)}, 40: {"maze7": counts(8, 4)}}
        write_run(tmp_path, frozen, evaluations, name=f"grpo-{size}")
    drawn = evaluation_figure.figure(load(tmp_path))
    style.encode(drawn, "png")
    assert len(drawn.legends[0].get_texts()) == 24
    panel, legend = drawn.axes[0].get_window_extent(), drawn.legends[0].get_window_extent()
    assert panel.height > 1.5 * drawn.dpi
    assert 0 <= legend.y0 < legend.y1 < panel.y0


def test_the_legend_counts_the_arms_left_out_of_any_setting(tmp_path: Path) -> None:
    """Of 25 arms of the first setting 24 are drawn, of the second setting its only one."""
    sizes = [(7, 1e-6 * (1 + number)) for number in range(25)] + [(9, 1e-6)]
    evaluations = {0: START, 20: {"maze7": counts(4, 4)}, 40: {"maze7": counts(8, 4)}}
    for number, (size, lr) in enumerate(sizes):
        write_run(tmp_path, config(loss="grpo", task={"size": size}, lr=lr), evaluations, name=f"grpo-{number}")
    drawn = evaluation_figure.figure(load(tmp_path))
    assert drawn.legends[0].get_title().get_text() == "the first 24 of 25 arms"


def test_curves_of_evaluations_keep_their_band_where_it_is_defined(tmp_path: Path) -> None:
    """All seeds agree on the base policy, where there is no band. At step 20 they lie 12.5 points apart."""
    for seed in range(3):
        evaluations = {0: START, 20: {"maze7": counts(3 + seed, 3 + seed)}, 40: {"maze7": counts(3 + seed, 8)}}
        write_run(tmp_path, config(loss="grpo", seed=seed), evaluations)
    drawn = evaluation_figure.figure(load(tmp_path))
    (band,) = drawn.axes[0].collections
    corners = band.get_paths()[0].vertices
    assert {x for x, _ in corners} == {20, 40}
    half = 4.302653 * 12.5 / 3**0.5
    assert sorted({round(y, 4) for x, y in corners if x == 20}) == pytest.approx([50 - half, 50 + half], abs=1e-3)


def test_training_curves_have_a_band_over_seeds(tmp_path: Path) -> None:
    for seed, last in enumerate((0.4, 0.5, 0.6)):
        write_run(tmp_path, config(loss="grpo", seed=seed), {0: START}, training={"policy/entropy": [1.0, last]})
    drawn = training_figure.figure(load(tmp_path))
    axes = drawn.axes[0]
    assert list(axes.lines[0].get_ydata()) == pytest.approx([1.0, 0.5])
    corners = axes.collections[0].get_paths()[0].vertices
    # Standard deviation 0.1, t(0.975, 2) = 4.302653; all seeds alike at step 1.
    half = 4.302653 * 0.1 / 3**0.5
    assert sorted({round(y, 6) for x, y in corners if x == 2}) == pytest.approx([0.5 - half, 0.5 + half], abs=1e-5)
    assert {y for x, y in corners if x == 1} == {1.0}
