import csv
import io
import math
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from analysis.figures import divergence as divergence_figure
from analysis.figures import eta as eta_figure
from analysis.frames.frames import Frames
from analysis.frames.load import load
from analysis.paper.printed import as_published
from analysis.paper.printed import tables as printed_tables
from analysis.report import style
from analysis.report.grid import grids
from analysis.report.render import latex, markdown, tex, to_csv
from analysis.report.table import Table
from analysis.scores.arm import arms
from analysis.tables import bandit, comparison, divergence, eta
from rlvr.ledger.sweeps import Sweep
from tests.analysis.ledger_factory import (
    BASE,
    change_sweep,
    config,
    config_of,
    counts,
    final,
    write_bandit,
    write_planned,
    write_run,
    write_study,
    write_sweep,
)

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture(scope="module")
def complete(tmp_path_factory) -> Frames:
    home = tmp_path_factory.mktemp("complete")
    write_study(home)
    return load(home)


@pytest.fixture(scope="module")
def spoilt(tmp_path_factory) -> Frames:
    home = tmp_path_factory.mktemp("spoilt")
    write_study(home, grpo=False, spoil=True)
    return load(home)


def value(table: Table, row: str, column: str, metric: str = "avg@8", block: str = "") -> pd.Series:
    c = table.cells
    matching = c[(c["row"] == row) & (c["column"] == column) & (c["metric"] == metric) & c["block"].str.contains(block)]
    assert len(matching) == 1
    return matching.iloc[0]


def write_controlled(home: Path) -> None:
    """js at two η and GRPO, of three seeds each; js with random rewards too, and GRPO under other seeds."""
    plan, control = [], {}
    for arm, seeds, right in (
        *(("loss=grpo", (0, 1, 2), 4), ("loss=lad eta=0.5", (0, 1, 2), 5), ("loss=lad eta=1", (0, 1, 2), 6)),
        *(("loss=grpo", (3, 4, 5), 1), ("loss=lad eta=0.5 rollout.reward=random", (0, 1, 2), 2)),
        ("loss=lad eta=1 rollout.reward=random", (0, 1, 2), 2),
    ):
        for seed in seeds:
            name = f"{arm} seed={seed}"
            ends = {0: {"maze7": counts(1, 1, 1, 1)}, 40: {"maze7": counts(*[right] * 4)}}
            plan.append((write_run(home, config_of(name), ends, name=name.replace(" ", "-")), name, name.split()))
            control |= {name: "seeds"} if seed > 2 else {}
    write_sweep(home, "s", plan, control=control)


def test_a_control_is_not_in_the_row_of_its_arm(tmp_path):
    write_controlled(tmp_path)
    frames = load(tmp_path)
    assert {arm.control for arm in arms(frames)} == {"", "seeds", "random"}
    rows = [(r["row"], r["mean"], r["seeds"]) for _, r in eta.table(frames).cells.iterrows() if r["metric"] == "avg@8"]
    expected = [("base policy (step 0)", 1), ("grpo", 4), ("1/η = 1", 6), ("1/η = 2", 5)]
    assert rows == [(row, right / 8, 3 if row != "base policy (step 0)" else rows[0][2]) for row, right in expected]
    divergence_cells = divergence.table(frames).cells
    means = divergence_cells[(divergence_cells["row"] == "js") & (divergence_cells["metric"] == "avg@8")]
    assert (list(means["mean"]), list(means["difference"])) == ([5.5 / 8], [1.5 / 8])


def test_eta_cells_by_hand(complete):
    table = eta.table(complete)
    # js at η = 1/2: maze7 (8, 8, 4, 0) of 8 -> 20/32; maze9 (7, 8, 4, 0) -> 19/32; average 39/64
    js = {"block": "js"}
    assert value(table, "1/η = 2", "maze7", **js)["mean"] == 20 / 32
    assert value(table, "1/η = 2", "maze9", **js)["mean"] == 19 / 32
    assert value(table, "1/η = 2", "Average", **js)["mean"] == 39 / 64
    # pass@8 with 8 samples: solved at least once -> 3/4; pass@1 is avg@8
    assert value(table, "1/η = 2", "maze7", "pass@8", **js)["mean"] == 3 / 4
    assert value(table, "1/η = 2", "maze7", "pass@1", **js)["mean"] == pytest.approx(20 / 32)
    # the base policy: (4, 2, 0, 0) -> 6/32; GRPO: (8, 4, 4, 0) -> 16/32
    assert value(table, "base policy (step 0)", "maze7", **js)["mean"] == 6 / 32
    assert value(table, "grpo", "maze7", **js)["mean"] == 16 / 32
    assert value(table, "1/η = 1/4", "maze7", **js)["mean"] == 10 / 32


def test_divergence_means_and_bests_by_hand(complete):
    table = divergence.table(complete)
    # js over η: (20 + 20 + 14 + 10)/4/32 = 16/32; hd: (18 + 18 + 12 + 8)/4/32 = 14/32; tv: (16 + 18 + 12 + 8)/4/32
    assert value(table, "js", "maze7", block="Mean")["mean"] == 16 / 32
    assert value(table, "hd", "maze7", block="Mean")["mean"] == 14 / 32
    assert value(table, "tv", "maze7", block="Mean")["mean"] == 13.5 / 32
    family = value(table, "strict mean (tv, hd, js)", "maze7", block="Mean")
    assert family["mean"] == pytest.approx((16 + 14 + 13.5) / 3 / 32)
    # js ties at η = 1/2 and 1 on maze7 and maze9 (39/64): the larger η, met first, is named
    assert value(table, "js (1/η = 1)", "Average", block="Best")["mean"] == 39 / 64
    assert not table.cells["row"].str.startswith("weak").any()
    assert any("kl, rkl, jf (weak family)" in note for note in table.notes)


def test_arms_whose_rate_was_tuned_are_one_divergence_over_its_eta(tmp_path):
    """js gets 2 and 4, hd 3 and 7 of 8, each at the best of its own rates."""
    typed = {"js eta=1 lr=1e-4": 2, "js eta=2 lr=4e-4": 4, "hd eta=1 lr=4e-4": 3, "hd eta=2 lr=1e-4": 7}
    write_planned(tmp_path, {f"loss=lad divergence={k}": {40: {"maze7": counts(n)}} for k, n in typed.items()})
    change_sweep(tmp_path, tune={"keys": ["lr"]})
    frames = load(tmp_path)
    table = divergence.table(frames)
    assert [value(table, row, "maze7", block="Mean")["mean"] for row in ("js", "hd")] == [3 / 8, 5 / 8]
    assert value(table, "js (1/η = 1/2)", "maze7", block="Best")["mean"] == 4 / 8
    drawn = {text.get_text() for text in eta_figure.figure(frames).legends[0].get_texts()}
    assert {"hd", "js"} <= drawn
    assert not any("lr" in text for text in drawn)


def test_missing_runs_are_shown_with_their_reason_and_never_dropped(spoilt):
    table = eta.table(spoilt)
    assert value(table, "1/η = 1/4", "Average", block="tv")["state"] == "missing"
    assert value(table, "1/η = 1/2", "Average", block="tv")["state"] == "running"
    assert value(table, "1/η = 1/4", "Average", block="hd")["state"] == "failed"
    grpo = value(table, "grpo", "Average", block="js")
    assert (grpo["state"], grpo["hint"]) == ("missing", "python -m rlvr.run -m loss=grpo seed=0")
    over = divergence.table(spoilt)
    assert value(over, "hd", "Average", block="Mean")["state"] == "failed"  # a mean over fewer η is another quantity
    assert value(over, "hd (1/η = 1, best of 3 of 4)", "Average", block="Best")["mean"] > 0


TYPED = ("task=coins", "steps=40", "loss=lad", "divergence=js")


def commands_that_add(home: Path, overrides: Sequence[str], **about: str) -> tuple[str, str]:
    """(the command for further divergences, that for GRPO) beside LAD at two η and under two seeds."""
    plan = []
    for eta_, seed in ((0.5, 0), (0.5, 1), (1.0, 0), (1.0, 1)):
        run_id = write_run(home, config(eta=eta_, seed=seed), {0: BASE, 40: BASE}, study=about["study"])
        plan.append((run_id, f"{run_id}-s{seed}", (*overrides, f"eta={eta_:g}", f"seed={seed}")))
    write_sweep(home, "s", plan, **about)
    table = divergence.table(load(home, study=about["study"]))
    (command,) = [line.partition("Add them: ")[2] for line in table.notes if "Add them" in line]
    (of_grpo,) = set(eta.table(load(home, study=about["study"])).cells["hint"]) - {""}
    return command.strip("`"), of_grpo


def test_the_commands_that_add_runs_keep_the_setting_and_the_seeds(tmp_path):
    """grpo takes over neither the knobs of LAD nor the study, whose axes are LAD's."""
    added = "loss=lad divergence=tv,hd,kl,rkl,jf eta=0.5,1 seed=0,1"
    for study, own in (("main", ()), ("divergence", ("study=divergence",))):
        of_lad, of_grpo = commands_that_add(tmp_path / study, (*TYPED, *own, "loss.ratio=sequence"), study=study)
        assert of_lad == " ".join(["python -m rlvr.run -m task=coins steps=40", *own, "loss.ratio=sequence", added])
        assert of_grpo == "python -m rlvr.run -m task=coins steps=40 loss=grpo seed=0,1"


def test_the_commands_that_add_runs_to_a_named_sweep_contain_that_sweep(tmp_path):
    """The launcher refuses a name that another sweep has, unless the new sweep has all of its runs."""
    typed = "python -m rlvr.run -m task=coins steps=40 loss=lad eta=0.5,1 seed=0,1 name=kk"
    added = "loss=lad divergence=tv,hd,kl,rkl,jf eta=0.5,1"
    commands = commands_that_add(tmp_path / "1", TYPED, study="kk", name="kk", command=typed)
    expected = [[*typed.split(), f'also=["{words}"]'] for words in (added, "loss=grpo")]
    assert [shlex.split(command) for command in commands] == expected
    with_arms = f"{typed} 'also=[\"loss=maxrl\"]'"
    commands = commands_that_add(tmp_path / "2", TYPED, study="kk", name="kk", command=with_arms)
    expected = [[*typed.split(), f'also=["loss=maxrl","{words}"]'] for words in (added, "loss=grpo")]
    assert [shlex.split(command) for command in commands] == expected


def test_the_commands_that_add_runs_to_a_named_search_search_nothing(tmp_path, monkeypatch):
    """A search takes no `also`."""
    monkeypatch.setattr(Sweep, "trials", {"a run": 0})
    typed = "python -m rlvr.run -m hydra/sweeper=optuna task=coins steps=40 loss=lad 'eta=interval(0.5,1)' name=kk"
    _, of_grpo = commands_that_add(tmp_path, TYPED, study="kk", name="kk", command=typed)
    assert of_grpo == "python -m rlvr.run -m task=coins steps=40 loss=grpo seed=0,1"


def test_seeds_are_averaged_and_an_unfinished_one_is_marked(tmp_path):
    for seed, correct in ((0, (8, 8)), (1, (4, 0))):
        write_run(tmp_path, config(seed=seed), {0: {"m": counts(0, 0)}, 40: {"m": counts(*correct)}})
    write_run(tmp_path, config(seed=2), {0: {"m": counts(0, 0)}}, cause=None)
    table = divergence.table(load(tmp_path))
    cell = value(table, "js", "m")
    assert cell["mean"] == (16 / 16 + 4 / 16) / 2
    assert (cell["seeds"], cell["planned"], cell["state"]) == (2, 3, "partial")
    marked = [text.split() for grid in grids(table) for row in grid.rows for text in row if "†" in text]
    assert {(text[0], text[-1]) for text in marked} == {("62.5", "†2/3"), ("75.0", "†2/3")}  # avg@8, pass@8
    assert value(table, "base policy (step 0)", "m")["seeds"] == 3


GREEDY = {"filter": "greedy_fails"}


def test_an_arm_is_named_by_what_distinguishes_it(tmp_path):
    """An option that is off is not in the name, unless two arms would share it: one with a filter that is off, and one
    without any. A `none` of a loss is a choice like any other. What is the same within a setting is in no name."""
    off = {"trainer": {"entropy": 0.0}, "rollout": {"filter": "none"}}
    small = {"task": {"size": 7}, "lr": 1e-5}
    switched = [config(**{**off, **on}) for on in ({}, {"trainer": {"entropy": 0.003}}, {"rollout": GREEDY})]
    filtered = [config() | {"rollout": rollout} for rollout in ({}, {"filter": "none"}, GREEDY)]
    weighted = [config("pacs") | {"loss": {"weight": weight}} for weight in ("balanced", "none")]
    sized = [*(config(**small, trainer={"updates": n}) for n in (1, 2)), config(task={"size": 9}, lr=1e-6)]
    cases = [
        (switched, {("", ""), ("", "trainer.entropy=0.003"), ("", "rollout.filter=greedy_fails")}),
        (filtered, {("", ""), ("", "rollout.filter=none"), ("", "rollout.filter=greedy_fails")}),
        (weighted, {("", "loss.weight=balanced"), ("", "loss.weight=none")}),
        (sized, {("task.size=7", f"trainer.updates={n}") for n in (1, 2)} | {("task.size=9", "")}),
    ]
    for number, (configs, expected) in enumerate(cases):
        home = tmp_path / str(number)
        for i, frozen in enumerate(configs):
            write_run(home, frozen, {0: BASE, 40: {"maze7": counts(4)}}, name=f"{i}")
        assert {(arm.setting, arm.variant) for arm in arms(load(home))} == expected
    rows = set(divergence.table(load(tmp_path / "0")).cells["row"])
    assert {"js", "js (trainer.entropy=0.003)", "js (rollout.filter=greedy_fails)"} <= rows


def test_a_setting_is_a_block_of_its_own_benchmarks_only(tmp_path):
    write_run(tmp_path, config(), {0: {"maze7": counts(1)}, 40: {"maze7": counts(2)}})
    other = config(task={"size": 9})
    write_run(tmp_path, other, {0: {"maze9": counts(1)}, 40: {"maze9": counts(4)}}, name="lad-js-size9-s0")
    cells = divergence.table(load(tmp_path)).cells
    columns = cells.groupby("block")["column"].unique().map(list).to_dict()
    assert columns == {"1/η = 1, task.size=7": ["maze7"], "1/η = 1, task.size=9": ["maze9"]}


def test_a_finished_run_without_evaluation_is_marked_as_not_evaluated(tmp_path):
    write_run(tmp_path, config(), {0: BASE}, training={"reward/mean": [0.5] * 40})
    assert value(divergence.table(load(tmp_path)), "js", "maze7")["state"] == "not evaluated"


def test_notes_speak_of_samples_and_problems_only_where_there_are_some(tmp_path):
    exact, sampled = tmp_path / "exact", tmp_path / "sampled"
    rewards = {0: (0.25, 0.25), 1: (0.5, 0.75)}  # by seed: at step 0, at step 40
    for seed, (before, after) in rewards.items():
        values = {step: {"evaluation/bandit/expected_reward": v} for step, v in ((0, before), (40, after))}
        write_run(exact, config("grpo", seed=seed), {}, logged_at=values)
        write_run(sampled, config("grpo", seed=seed), {0: BASE, 40: final((8, 4, 4, 0))})
    for file in sampled.rglob("*.parquet"):
        file.unlink()
    notes = " ".join(comparison.table(load(exact)).notes)
    assert "95 % t interval over 2 seeds; its ends are in the CSV." in notes
    assert "sample" not in notes
    assert "problem" not in notes
    lost = " ".join(comparison.table(load(sampled)).notes)
    assert "95 % t interval over 2 seeds" in lost
    assert "The samples of these runs are not at hand: cells are logged means, intervals span seeds only." in lost


def test_tables_without_runs_are_none(tmp_path):
    write_run(tmp_path, config(loss="grpo"), {0: BASE, 40: BASE})
    frames = load(tmp_path)
    assert [module.table(frames) for module in (eta, divergence, bandit)] == [None, None, None]


@pytest.mark.parametrize(("module", "table"), [(eta, "lad_table_6"), (divergence, "lad_table_8")])
def test_the_published_table_is_that_of_the_paper(complete, module, table):
    (shown,) = module.table(complete).published
    printed = as_published(printed_tables()[table])
    assert shown.label == printed.label
    pd.testing.assert_frame_equal(shown.cells, printed.cells)


# --- renderings -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "module", "fixture"),
    [
        *(("eta", eta, "complete"), ("divergence", divergence, "complete")),
        *(("eta-missing", eta, "spoilt"), ("divergence-missing", divergence, "spoilt")),
    ],
)
def test_markdown_is_the_reviewed_one(name, module, fixture, request):
    table = module.table(request.getfixturevalue(fixture))
    golden = GOLDEN / f"{name}.md"
    assert golden.exists(), f"no reviewed table {golden.name}"
    assert markdown(table) == golden.read_text(encoding="utf-8")


def test_csv_keeps_every_cell_at_full_precision(spoilt):
    table = eta.table(spoilt)
    rows = list(csv.DictReader(io.StringIO(to_csv(table))))
    assert len(rows) == len(table.cells)
    for row, cell in zip(rows, table.cells.to_dict("records"), strict=True):
        for name in ("mean", "low", "high"):
            assert (row[name] == "") == math.isnan(cell[name])
            assert row[name] == "" or float(row[name]) == cell[name]
        assert row["state"] == cell["state"]


def test_names_are_text_in_every_format_not_formulas_commands_or_tags(complete):
    """Names come from data sets, and from bundles of strangers."""
    hostile = {"js": "=cmd|' /C calc'!A0", "hd": "-2+cmd()", "tv": "@SUM(1)", "jf": "<img src=x>\n\\input{/etc/passwd}"}
    table = divergence.table(complete)
    cells = table.cells.assign(row=table.cells["row"].replace(hostile), per_seed="-0.5 1e-05")
    note = f"Against {hostile['jf']}: 3 seeds."
    table = replace(table, cells=cells, notes=(note,), published=(), beside=False)
    written = list(csv.DictReader(io.StringIO(to_csv(table))))
    assert {f"'{hostile[name]}" for name in ("js", "hd", "tv")} <= {row["row"] for row in written}
    assert {row.get("per_seed", "-0.5 1e-05") for row in written} == {"-0.5 1e-05"}  # no formula, but numbers
    assert not [line for line in latex(table).splitlines() if line.startswith("\\input")]
    assert "<img" not in markdown(table).replace(r"\<img", "")
    assert r"- Against \<img src=x> \input{/etc/passwd}: 3 seeds." in markdown(table).splitlines()


def test_special_characters_of_latex_are_escaped():
    assert tex("a_b & 50 % ± 1/η `x_y`") == r"a\_b \& 50 \% $\pm$ 1/$\eta$ \texttt{x\_y}"
    assert tex("α = 0.5, δ ≥ Ω") == r"$\alpha$ = 0.5, $\delta$ $\ge$ $\Omega$"


def test_latex_has_a_booktabs_tabular_per_grid(spoilt):
    text = latex(eta.table(spoilt))
    assert text.count(r"\begin{tabular}") == text.count(r"\toprule") == text.count(r"\bottomrule") == 8
    assert r"1/$\eta$ = 1/4 & --- (missing)" in text
    assert not [line for line in text.splitlines() if "%" in line.replace(r"\%", "") and not line.startswith("%")]


# --- the bandit -----------------------------------------------------------------------------------


def test_bandit_distances_by_hand(tmp_path):
    """Two policies with a known distance: one on target, one with all its mass on the first of three modes."""
    write_bandit(tmp_path, "js", "target", seeds=(0, 1))
    write_bandit(tmp_path, "grpo", "first mode", seeds=(0,))
    table = bandit.table(load(tmp_path))
    on = {c["column"]: c for c in table.cells[table.cells["row"] == "lad-js"].to_dict("records")}
    assert (on["total variation"]["mean"], on["modes covered"]["mean"]) == (pytest.approx(0, abs=1e-12), 3)
    assert on["total variation"]["seeds"] == 2
    off = {c["column"]: c["mean"] for c in table.cells[table.cells["row"] == "grpo + KL"].to_dict("records")}
    # Advantages 1, 1, 1 on three arms and 0 on the other six, η = 1/4: P_A of a mode is e^4/(3 e^4 + 6) = 0.32156;
    # P_π is 1 on the first, so TV = 1 − 0.32156.
    share = math.exp(4) / (3 * math.exp(4) + 6)
    assert (off["total variation"], off["modes covered"]) == (pytest.approx(1 - share), 1)


def test_bandit_arms_that_differ_in_beta_alone_are_rows_of_their_own(tmp_path):
    write_bandit(tmp_path, "js", "target", seeds=(0,))
    write_bandit(tmp_path, "grpo", "first mode", seeds=(0, 1))
    frames = load(tmp_path)
    of_grpo = frames.runs["loss"] == "grpo"
    beta = (4.0 * (1 + frames.runs["seed"])).where(of_grpo)
    runs = frames.runs.assign(beta=beta, group_id=frames.runs["group_id"].mask(of_grpo, beta.astype(str)))
    rows = bandit.table(replace(frames, runs=runs, cache={})).cells["row"]
    assert set(rows) == {"lad-js", "grpo + KL (beta=4)", "grpo + KL (beta=8)"}


def test_a_bandit_run_without_a_policy_is_shown(tmp_path):
    write_bandit(tmp_path, "js", "target", seeds=(0,))
    frozen = config(divergence="hd", eta=0.25, task={"_target_": "b"})
    frozen["choices"]["task"] = "bandit"
    write_run(tmp_path, frozen, {0: BASE}, cause="diverged")
    cells = bandit.table(load(tmp_path)).cells
    assert set(cells.loc[cells["row"] == "lad-hd", "state"]) == {"diverged"}


def test_bandit_runs_that_are_all_at_work_are_shown(tmp_path):
    write_bandit(tmp_path, "js", "target", seeds=(0,))
    (run_dir,) = (tmp_path / "runs").glob("*/attempts")
    (run_dir / "1" / "exit.json").unlink()  # it has stored a policy, and has not ended
    table = bandit.table(load(tmp_path))
    assert set(table.cells["state"]) == {"lost"}
    assert table.notes[1].startswith("A mode is covered")
    assert table.notes[2] == "Mean over 0 seeds."


@pytest.mark.slow
def test_every_reference_is_a_line_and_a_legend_entry_of_its_own_within_the_page(tmp_path):
    write_study(tmp_path, grpo=False)
    for low, high in ((0.2, 0.2), (1.0, 1000.0)):
        frozen = config(loss="grpo")
        frozen["loss"] |= {"clip_low": low, "clip_high": high}
        write_run(tmp_path, frozen, {0: BASE, 40: final((8, 4, 4, 0))}, name=f"grpo-{low}")
    for room in (eta_figure, divergence_figure):
        drawn = room.figure(load(tmp_path))
        style.encode(drawn, "png")
        extent = drawn.legends[0].get_window_extent()
        assert 0 <= extent.x0 < extent.x1 <= drawn.bbox.width
        assert extent.y0 >= 0
        lines = [line for line in drawn.axes[0].lines if line.get_color() == style.GRPO and len(line.get_xdata()) == 2]
        assert len({str(line._dash_pattern) for line in lines}) == 2


def test_one_divergence_is_no_comparison_of_divergences(tmp_path):
    for temperature in (0.5, 1.0):
        write_run(tmp_path, config(eta=temperature), {0: BASE, 40: final((8, 4, 4, 0))})
    assert divergence_figure.figure(load(tmp_path)) is None
    write_run(tmp_path, config(divergence="tv"), {0: BASE, 40: final((8, 4, 4, 0))})
    assert divergence_figure.figure(load(tmp_path)) is not None


def test_grpo_of_the_same_setting_fills_the_row(tmp_path):
    for e in (0.5, 1.0):
        write_run(tmp_path, config(eta=e), {0: BASE, 40: final((8, 8, 4, 0))}, study="eta", created=5.0)
    write_run(tmp_path, config(loss="grpo"), {0: BASE, 40: final((8, 4, 4, 0))}, created=1.0)
    table = eta.table(load(tmp_path, study="eta"))
    assert value(table, "grpo", "maze7")["mean"] == 16 / 32
    assert any("GRPO runs come from the study default" in note for note in table.notes)
