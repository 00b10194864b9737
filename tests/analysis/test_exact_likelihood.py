from pathlib import Path

import pytest

from analysis.diagnostics import weights as weights_figure
from analysis.figures import exact_likelihood as figure
from analysis.frames.load import load
from analysis.report.grid import grids
from analysis.report.style import encode
from analysis.scores import objective
from analysis.scores.exact_likelihood import contests
from analysis.tables import exact_likelihood
from tests.analysis.ledger_factory import config, counts, write_run, write_sweep


def write_arm(
    home: Path,
    loss: str,
    G: int,
    right: int,
    *,
    advantage: str | None = None,
    temperature: float = 1.0,
    seed: int = 0,
    diverged: bool = False,
    lr: float = 1e-6,
) -> str:
    """A run on `classes`: nothing right of 16 at step 0, then `right` of 16, and eight steps of training."""
    frozen = {**config(loss, lr=lr, evaluation={"temperature": temperature}), "rollout": {"samples": G}, "seed": seed}
    frozen["choices"] |= {"advantage": advantage or loss, "task": "classes"}
    training = {"reward/accuracy": [right / 16] * 8, "optim/grad_norm": [0.5] * 8}
    first, last = ({"classes": counts(c, c)} for c in (0, right // 2))
    name = f"{loss}-samples{G}{f'-t{temperature}' * (temperature != 1)}{f'-lr{lr}' * (lr != 1e-6)}-s{seed}"
    cause = "diverged" if diverged else "ok"
    return write_run(home, frozen, {0: first, 40: last}, training=training, name=name, cause=cause)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    write_arm(tmp_path, "cross_entropy", 4, 16, advantage="none")
    for G, right in ((4, 2), (16, 8), (64, 14)):
        write_arm(tmp_path, "maxrl", G, right)
    write_arm(tmp_path, "reinforce", 16, 0)
    return tmp_path


def test_rows_are_objectives_by_rollouts_with_accuracy_by_hand(home: Path) -> None:
    table = exact_likelihood.table(load(home))
    cells = table.cells[table.cells["metric"] == "avg@8"]
    accuracies = dict(zip(cells["row"], cells["mean"], strict=True))
    assert list(accuracies) == [
        *("base policy (step 0)", "cross_entropy", "maxrl, G = 4", "maxrl, G = 16", "maxrl, G = 64"),
        "reinforce, G = 16",
    ]
    assert list(accuracies.values()) == pytest.approx([0, 1, 2 / 16, 8 / 16, 14 / 16, 0])


def test_two_settings_of_one_task_keep_their_rows_apart(home: Path) -> None:
    """Where blocks had one title, the rows of the second setting replaced those of the first."""
    write_arm(home, "cross_entropy", 4, 12, advantage="none", temperature=0.6)
    write_arm(home, "maxrl", 4, 4, temperature=0.6)
    frames = load(home)
    table = exact_likelihood.table(frames)
    titles = list(dict.fromkeys(table.cells["block"]))
    assert titles == ["classes, evaluation.temperature=0.6", "classes, evaluation.temperature=1"]
    assert [len(grid.rows) for grid in grids(table)] == [3, 6]
    drawn = figure.figure(frames)
    first, second = (drawn.axes[i].get_title(loc="left") for i in (0, 3))
    assert " ".join(first.split()) == f"{titles[0]}: training"
    assert " ".join(second.split()) == f"{titles[1]}: training"


def test_a_planned_run_without_a_result_keeps_its_row(home: Path) -> None:
    plan = [("id-maxrl-samples4-s0", "maxrl-samples4-s0", ["loss=maxrl", "rollout.samples=4"])]
    plan += [("gone", "maxrl-samples256-s0", ["loss=maxrl", "rollout.samples=256"])]
    write_sweep(home, "sweep", plan)
    table = exact_likelihood.table(load(home))
    rows = table.cells[table.cells["row"] == "maxrl, G = 256"]
    assert set(rows["state"]) == {"missing"}


def test_without_exact_likelihood_there_is_no_contest(tmp_path: Path) -> None:
    write_arm(tmp_path, "maxrl", 4, 2)
    frames = load(tmp_path)
    assert contests(frames) == []
    assert exact_likelihood.table(frames) is None
    assert figure.figure(frames) is None


def test_the_figure_draws_every_learner_and_both_references(home: Path) -> None:
    frames = load(home)
    drawn = figure.figure(frames)
    training, scaling, gradients = drawn.axes
    assert len(training.lines) == 5
    lines = {tuple(line.get_xdata()): [round(float(y), 6) for y in line.get_ydata()] for line in scaling.lines[:2]}
    assert lines == {(4, 16, 64): [12.5, 50, 87.5], (16,): [0]}
    assert {float(line.get_ydata()[0]) for line in scaling.lines[2:]} == {100, 0}  # cross-entropy, base policy
    # REINFORCE never saw a success: it has no place on a logarithmic axis
    assert [len(line.get_xdata()) for line in gradients.lines] == [0, 8, 8]
    assert encode(drawn, "png")


def test_arms_of_another_rate_are_a_line_of_their_own_and_no_note_says_one_rate(home: Path) -> None:
    assert "One learning rate for all arms of a block" in exact_likelihood.table(load(home)).notes[2]
    write_arm(home, "maxrl", 4, 6, lr=1e-5)
    frames = load(home)
    assert not any("One learning rate" in note for note in exact_likelihood.table(frames).notes)
    lines = figure.figure(frames).axes[1].lines[:3]
    assert {tuple(line.get_xdata()): line.get_ydata()[0] for line in lines} == {(4, 16, 64): 12.5, (4,): 37.5, (16,): 0}


def test_an_objective_follows_from_the_loss_or_from_the_advantage_of_a_plain_gradient() -> None:
    assert objective.objective("reinforce", "maxrl") == objective.objective("maxrl", "maxrl") == "maxrl"
    assert objective.objective("maxrl", "") == "maxrl"
    assert objective.objective("cross_entropy", "none") == "cross_entropy"
    assert (objective.objective("lad", "grpo"), objective.objective("grpo", "pkpo")) == ("lad", "pkpo")
    assert objective.objective("grpo", "gae") == "grpo + gae"
    assert objective.ordered(["reinforce", "lad", "maxrl", "cross_entropy"]) == [
        "cross_entropy",
        "maxrl",
        "reinforce",
        "lad",
    ]


@pytest.mark.slow
def test_the_weights_figure_draws_points_and_closed_forms(tmp_path: Path) -> None:
    file = tmp_path / "weights.csv"
    rows = [("maxrl", 3, p, 1 + (1 - p) + (1 - p) ** 2) for p in (0.01, 0.5, 0.9)]
    rows += [("maxrl", 2, 0.5, 1.5), ("pkpo", 2, 0.25, 1.5), ("rloo", "", 0.5, 1.0)]
    lines = [f"{loss},{loss},{order},4,{p},{w},0.1" for loss, order, p, w in rows]
    file.write_text("\n".join(["loss,advantage,order,samples,pass_rate,weight,gradient_norm", *lines]))
    import pandas as pd

    drawn = weights_figure.drawn(pd.read_csv(file))
    lower, lower_theory, points, theory = drawn.axes[0].lines[:4]
    assert (list(lower.get_ydata()), list(lower_theory.get_ydata())) == ([1.5], [1.5])  # order 2 at p = ½
    assert list(points.get_ydata()) == pytest.approx([1 + 0.99 + 0.99**2, 1 + 0.1 + 0.01])
    # The closed form (1 − (1 − p)³)/p is the same sum.
    assert list(theory.get_ydata()) == pytest.approx([1 + 0.99 + 0.99**2, 1.75, 1.11])
    names = [t.get_text() for t in drawn.legends[0].get_texts()]
    assert names[:4] == ["maxrl, T = 2", "maxrl, T = 3", "rloo", "pkpo, k = 2"]
    pkpo = drawn.axes[0].lines[7]
    assert list(pkpo.get_ydata()) == pytest.approx([1.5])  # 2(1 − p) at a quarter
    assert encode(drawn, "pdf")


def test_a_diverged_run_is_not_in_the_curve_of_its_arm(home: Path) -> None:
    """As in the other curves. MaxRL, G = 4: two finished runs with 2 of 16, and a diverged one with all right."""
    write_arm(home, "maxrl", 4, 2, seed=1)
    run_id = write_arm(home, "maxrl", 4, 16, seed=2, diverged=True)
    frames = load(home)
    assert frames.runs.set_index("run_id").loc[run_id, "state"] == "diverged"
    drawn = figure.figure(frames)
    lines = [list(line.get_ydata()) for line in drawn.axes[0].lines]
    assert [0, 12.5] in [[round(float(y), 6) for y in line] for line in lines]
