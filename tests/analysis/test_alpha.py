import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from analysis.figures import alpha as alpha_figure
from analysis.figures import coefficient
from analysis.frames.load import load
from analysis.report.render import markdown
from analysis.report.style import encode
from analysis.scores.retention import retentions
from analysis.tables import alpha
from tests.analysis.ledger_factory import config, counts, write_run


def frozen_config(loss: str, seed: int = 0, task: str = "styles", **knobs: Any) -> dict[str, Any]:
    frozen = config(loss=f"dph_{loss}", seed=seed, choices={"task": task})
    return {**frozen, "loss": {**frozen["loss"], **knobs}}


def run(home: Path, frozen: dict[str, Any], correct: Sequence[int], openings: Sequence[str], **fate: Any) -> None:
    """Write a run. correct: of eight responses to each of four problems, 2 2 0 0 at step 0; openings: the first words
    of correct responses, in turn."""
    knobs = "-".join(f"{v}" for v in frozen["loss"].values())
    name = f"{frozen['choices']['loss']}-{knobs}-lr{frozen['lr']}-s{frozen['seed']}"
    evaluations = {0: {"styles": counts(2, 2, 0, 0)}, 40: {"styles": counts(*correct)}}
    run_id = write_run(home, frozen, evaluations, name=name.replace("/", "."), **fate)
    for step, words in ((0, ("plain", "boxed")), (40, openings)):
        file = home / "runs" / run_id / "samples" / f"test-{step:08d}.parquet"
        table = pd.read_parquet(file)
        right = (table["outcome"] == "correct").to_numpy()
        table["response"] = "nothing 1 2 3 end"  # a wrong answer's style does not count
        table.loc[right, "response"] = [f"{words[i % len(words)]} 1 2 3 end" for i in range(int(right.sum()))]
        table.to_parquet(file)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    # 8 + 0 + 4 + 0 of 32 right; of two solved problems one is kept, of two unsolved ones one is found
    run(tmp_path, frozen_config("none"), (8, 0, 4, 0), ["plain"])
    run(tmp_path, frozen_config("forward_kl", coef=0.01), (8, 8, 0, 0), ["plain", "boxed", "plain", "listed"])
    run(tmp_path, frozen_config("alpha", coef=1.0, alpha=0.5), (8, 8, 8, 8), ["plain"], cause="diverged")
    return tmp_path


def cell(home: Path, row: str, column: str) -> Any:
    table = alpha.table(load(home))
    matching = table.cells[(table.cells["row"] == row) & (table.cells["column"] == column)]
    return matching.iloc[0]


def test_problems_without_judged_samples_are_neither_kept_nor_lost(tmp_path: Path) -> None:
    """Of two problems that the base policy solves one is still solved, of two others one is now; the verifier failed on
    one of each kind: 1 of 1 and 1 of 1. Before, too: a problem that could not be judged then is of neither kind."""
    solved, failed = (8, 8, 0), (0, 0, 8)
    evaluations = {
        0: {"styles": [*counts(2, 2, 0, 0), failed]},
        40: {"styles": [solved, failed, solved, failed, solved]},
    }
    write_run(tmp_path, frozen_config("none"), evaluations, name="none")
    assert cell(tmp_path, "none", "keep rate")["mean"] == 1
    assert cell(tmp_path, "none", "exploration rate")["mean"] == 1


def test_a_run_whose_last_samples_are_lost_is_missing(tmp_path: Path) -> None:
    for seed, right in ((0, 4), (1, 8)):
        run(tmp_path, frozen_config("js", seed, coef=0.2), (right, right, 0, 0), ["plain"])
    (lost,) = (
        f
        for f in tmp_path.glob("runs/*/samples/test-00000040.parquet")
        if (pd.read_parquet(f)["outcome"] == "correct").sum() == 8
    )
    lost.unlink()
    of_arm = cell(tmp_path, "JS (coef 0.2)", "avg@8")
    assert (of_arm["mean"], of_arm["state"]) == (16 / 32, "partial")


def test_arms_of_one_divergence_and_coefficient_are_rows_of_their_own(tmp_path: Path) -> None:
    """At two learning rates, and a control that is left out."""
    for lr, right in ((1e-5, 4), (1e-4, 8)):
        run(tmp_path, {**frozen_config("js", coef=0.2), "lr": lr}, (right, right, 0, 0), ["plain"])
    random = {**frozen_config("js", coef=0.2), "lr": 1e-5, "rollout": {"reward": "random"}}
    write_run(tmp_path, random, {40: {"styles": counts(0, 0, 0, 0)}}, name="random")
    table = alpha.table(load(tmp_path))
    rows = table.cells[table.cells["column"] == "avg@8"].set_index("row")["mean"].to_dict()
    assert rows == {"base policy": 4 / 32, "JS, lr=1e-05 (coef 0.2)": 8 / 32, "JS, lr=0.0001 (coef 0.2)": 16 / 32}


def test_each_setting_has_its_own_base_policy_over_its_seeds(tmp_path: Path) -> None:
    """Of 40 answers 8 are right at first under seed 0 and 16 under seed 1, with three layers 24 and 24."""
    for layers, starts in ((2, (2, 4)), (3, (6, 6))):
        for seed, start in enumerate(starts):
            frozen = {**frozen_config("js", seed, coef=0.2), "model": {"layers": layers}}
            evaluations = {0: {"styles": counts(*[start] * 4, 0)}, 40: {"styles": counts(8, 8, 8, 8, 0)}}
            write_run(tmp_path, frozen, evaluations, name=f"{layers}-{seed}")
    cells = alpha.table(load(tmp_path)).cells.query("row == 'base policy' and column == 'avg@8'")
    by_block = dict(zip(cells["block"], zip(cells["mean"], cells["seeds"], strict=True), strict=True))
    size = "coefficients of the paper's size, model.layers="
    assert by_block == {f"{size}2": (pytest.approx(12 / 40), 2), f"{size}3": (pytest.approx(24 / 40), 2)}
    figure = alpha_figure.figure(load(tmp_path))
    rows = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    assert rows == [f"{row}, model.layers={n}" for n in (2, 3) for row in ("base policy", "JS, 0.2")]


def test_arms_that_were_not_evaluated_yet_have_neither_table_nor_figure(tmp_path: Path) -> None:
    """GRPO, which is no part of the table, was."""
    write_run(tmp_path, config("grpo"), {0: {"maze7": counts(1)}, 40: {"maze7": counts(2)}}, name="grpo")
    write_run(tmp_path, frozen_config("js", coef=0.2, task="maze"), {}, attempts=0, name="js")
    assert alpha.table(load(tmp_path)) is None
    assert alpha_figure.figure(load(tmp_path)) is None


def test_cells_by_hand(home: Path) -> None:
    means = alpha.table(load(home)).cells.set_index(["row", "column"])["mean"]
    for row, column, value in (
        ("none", "avg@8", 12 / 32),
        ("none", "pass@8", 0.5),
        ("none", "keep rate", 0.5),
        ("none", "exploration rate", 0.5),
        ("none", "styles surviving", 1),
        ("none", "styles, effective", 1),
        ("forward KL (coef 0.01)", "keep rate", 1.0),
        ("forward KL (coef 0.01)", "exploration rate", 0.0),
        ("forward KL (coef 0.01)", "styles surviving", 3),  # shares ½, ¼, ¼: H = 1.5·ln 2
        ("forward KL (coef 0.01)", "styles, effective", 2**1.5),
        ("base policy", "avg@8", 4 / 32),
        ("base policy", "styles surviving", 2),
    ):
        assert set(means[[(row, column)]].round(9)) == {round(value, 9)}, (row, column)  # of the base policy twice


def test_a_diverged_arm_keeps_its_row_and_the_base_policy_has_no_rates(home: Path) -> None:
    assert cell(home, "α = 0.5 (coef 1)", "keep rate")["state"] == "diverged"
    frame = alpha.table(load(home)).cells  # type: ignore[union-attr]
    assert not ((frame["row"] == "base policy") & (frame["column"] == "keep rate")).any()
    assert frame["block"].unique().tolist() == ["coefficients of the paper's size", "coefficient of 1 or more"]


def test_seeds_are_averaged_and_marked(tmp_path: Path) -> None:
    for seed, correct in ((0, (8, 0, 4, 0)), (1, (8, 8, 0, 0))):
        run(tmp_path, frozen_config("js", seed, coef=0.2), correct, ["plain"] if seed else ["boxed"])
    keep_rate = cell(tmp_path, "JS (coef 0.2)", "keep rate")
    assert (keep_rate["mean"], keep_rate["seeds"], keep_rate["state"]) == (0.75, 2, "ok")
    assert retentions(load(tmp_path))[1].shares == {"plain": 0.5, "boxed": 0.5}
    assert cell(tmp_path, "JS (coef 0.2)", "styles surviving")["mean"] == 1  # of each seed, not of their sum


def test_without_a_correct_response_at_hand_styles_are_no_number(tmp_path: Path) -> None:
    run(tmp_path, frozen_config("js", coef=0.2), (0, 0, 0, 0), ["plain"])
    for column in ("styles surviving", "styles, effective"):
        assert math.isnan(cell(tmp_path, "JS (coef 0.2)", column)["mean"])


def test_a_task_without_styles_has_rates_alone(tmp_path: Path) -> None:
    frozen = frozen_config("js", task="maze", coef=0.2)
    write_run(tmp_path, frozen, {0: {"maze7": counts(2, 0)}, 40: {"maze7": counts(0, 3)}}, name="js")
    frame = alpha.table(load(tmp_path)).cells  # type: ignore[union-attr]
    assert set(frame["column"]) == {"avg@8", "pass@8", "keep rate", "exploration rate"}
    assert cell(tmp_path, "JS (coef 0.2)", "keep rate")["mean"] == 0
    assert alpha_figure.figure(load(tmp_path)) is not None


def test_other_losses_have_neither_table_nor_figure(tmp_path: Path) -> None:
    write_run(tmp_path, config(), {0: {"maze7": counts(1)}, 40: {"maze7": counts(2)}})
    assert alpha.table(load(tmp_path)) is None
    assert alpha_figure.figure(load(tmp_path)) is None


@pytest.mark.slow
def test_the_figure_has_a_row_per_arm_and_stable_bytes(home: Path) -> None:
    first, second = (alpha_figure.figure(load(home)) for _ in range(2))
    assert first.legends[0].get_title().get_text().startswith("lines behind marks: 95 % interval")
    labels = [text.get_text() for text in first.axes[0].get_yticklabels()]
    assert labels == ["base policy", "none", "forward KL, 0.01", "α = 0.5, 1"]
    assert encode(first, "png") == encode(second, "png")
    assert first.legends[0].get_window_extent().y0 >= 0  # on the page, whole
    assert [text.get_text() for text in first.legends[0].get_texts()][:3] == ["boxed", "listed", "plain"]


def test_without_any_exploration_the_rate_is_empty(tmp_path: Path) -> None:
    frozen = frozen_config("none")
    write_run(tmp_path, frozen, {0: {"styles": counts(8, 8)}, 40: {"styles": counts(8, 0)}}, name="n")
    rate = cell(tmp_path, "none", "exploration rate")
    assert math.isnan(rate["mean"])
    assert rate["state"] == "not evaluated"


def test_arms_go_from_reverse_to_forward_and_both_reverse_ones_have_names_of_their_own(tmp_path: Path) -> None:
    for loss in ("forward_kl", "reverse_kl_pef", "reverse_kl"):
        run(tmp_path, frozen_config(loss, coef=0.01), (8, 0, 0, 0), ["plain"])
    labels = [retention.label for retention in retentions(load(tmp_path))]
    assert labels == ["base policy", "reverse KL", "reverse KL, D_pef", "forward KL"]


def test_grpo_with_a_penalty_is_an_arm_and_a_line_over_its_coefficients(tmp_path: Path) -> None:
    for coef, correct in ((0.01, (8, 8, 0, 0)), (1.0, (4, 4, 0, 0))):
        run(tmp_path, frozen_config("forward_kl", coef=coef), correct, ["plain"])
    for kl, correct in ((0.0, (8, 8, 8, 8)), (0.01, (8, 8, 8, 0)), (1.0, (8, 0, 0, 0))):
        frozen = config(loss="grpo", trainer={"kl": kl}, choices={"task": "styles"})
        evaluations = {0: {"styles": counts(2, 2, 0, 0)}, 40: {"styles": counts(*correct)}}
        write_run(tmp_path, frozen, evaluations, name=f"grpo-{kl}-s0")
    assert cell(tmp_path, "reverse KL (grpo) (coef 0.01)", "keep rate")["mean"] == 1
    assert cell(tmp_path, "reverse KL (grpo) (coef 0.01)", "exploration rate")["mean"] == 0.5
    assert cell(tmp_path, "reverse KL (grpo) (coef 1)", "keep rate")["mean"] == 0.5
    assert [(r.label, r.coef) for r in retentions(load(tmp_path))[1:]] == [
        ("reverse KL (grpo)", 0.01),
        ("forward KL", 0.01),
        ("reverse KL (grpo)", 1.0),
        ("forward KL", 1.0),
    ]
    drawn = coefficient.figure(load(tmp_path))
    names = [text.get_text() for text in drawn.legends[0].get_texts()]
    assert names == ["dph_forward_kl", "reverse KL (grpo, trainer.kl)", "grpo", "base policy"]
    penalised, without = drawn.axes[0].lines[1:3]
    assert (list(penalised.get_xdata()), list(penalised.get_ydata())) == ([0.01, 1.0], [75.0, 25.0])
    assert set(without.get_ydata()) == {100.0}


def test_the_published_table_stands_beside_ours(home: Path) -> None:
    text = " ".join(markdown(alpha.table(load(home))).split())  # columns are padded
    assert "table 2, SQL, Llama-3.1-8B-Instruct" in text
    weighted = "DPH-JS (Divergence Definition) (divergence loss weight 0.2)"
    assert f"| {weighted} | 62.4 | 70.1 | 71.9 | 78.6 | 85.2 | 86.7 |" in text


def test_the_figure_of_coefficients_has_a_line_per_divergence_and_objectives_without_one_across(tmp_path: Path) -> None:
    for coef, correct in ((0.01, (8, 8, 0, 0)), (1.0, (4, 4, 0, 0))):
        run(tmp_path, frozen_config("reverse_kl", coef=coef), correct, ["plain"])
    assert coefficient.figure(load(tmp_path)) is not None
    run(tmp_path, frozen_config("forward_kl", coef=0.1), (8, 8, 8, 8), ["plain"])  # one coefficient is no line
    dapo = config(loss="dapo", choices={"task": "styles"})
    write_run(tmp_path, dapo, {0: {"styles": counts(2, 2, 0, 0)}, 40: {"styles": counts(8, 0, 0, 0)}}, name="dapo-s0")
    drawn = coefficient.figure(load(tmp_path))
    averages = drawn.axes[0]
    line, others = averages.lines[0], averages.lines[1:]
    assert (list(line.get_xdata()), list(line.get_ydata())) == ([0.01, 1.0], [50.0, 25.0])
    assert [set(other.get_ydata()) for other in others] == [{25.0}, {12.5}]  # dapo 8 of 32, the base policy 4
    assert [text.get_text() for text in drawn.legends[0].get_texts()] == ["dph_reverse_kl", "dapo", "base policy"]
    assert [tick.get_text() for tick in averages.get_xticklabels()] == ["0.01", "1"]
