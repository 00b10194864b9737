"""From runs that logged what a paper prints, its table shows the same numbers in our rows."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from analysis.frames.load import load
from analysis.paper import counterparts
from analysis.paper.counterparts import BASE, MEASURES
from analysis.paper.printed import AVERAGE, MINUS, RAW, PaperTable, PrintedCell, tables
from analysis.report.grid import Grid, grids
from rlvr.ledger import layout
from tests.analysis.ledger_factory import config, group_of, write_run, write_sweep

EVALUATED = ("greedy", "majority")  # what evaluations of policies alone measure


def config_of(arm: str) -> dict[str, Any]:
    """A frozen config that matches a selector."""
    words = dict(word.replace("!=0", "=0.01").split("=") for word in arm.split() if word != BASE)
    frozen = config(words.get("loss", "sft"), words.get("divergence", ""), float(words.pop("loss.eta", 1)))
    model = words.pop("model")
    frozen["choices"] |= {"task": words.pop("task"), "model": "maze_3m" if model == "maze_3m" else "hf"}
    frozen["model"] = {"path": f"somebody/{model}"}
    for key in ("loss", "divergence"):
        words.pop(key, None)
    for key, value in words.items():
        group, _, knob = key.partition(".")
        frozen.setdefault(group, {})[knob] = float(value) if value[0].isdigit() else value
    return frozen


def metrics_of(cells: list[PrintedCell], printed: PaperTable) -> dict[str, float]:
    """The metrics that a run with these scores logs."""
    logged = {}
    for cell in cells:
        kind, _, k = cell.metric.partition("@")
        if cell.number is None or cell.benchmark == AVERAGE or kind in MEASURES:
            continue
        kind = {"pass": "pass", "score": "pass", "majority": "maj"}.get(kind, "avg")
        for source in printed.benchmarks[cell.benchmark]:
            logged[f"evaluation/{source}/{kind}_at_{k or 1}"] = cell.number / 100
    return logged


def write_published(home: Path, printed: PaperTable) -> None:
    """A run for every arm of the table, and evaluations of its policy where the paper frozen them."""
    by_arm: dict[str, list[PrintedCell]] = defaultdict(list)
    for cell in printed.cells:
        if cell.arm and MINUS not in cell.arm:
            by_arm[cell.arm].append(cell)
    planned = []
    bases = {frozenset({*arm.split()} - {BASE}): cells for arm, cells in by_arm.items() if BASE in arm.split()}
    for number, (arm, cells) in enumerate(by_arm.items()):
        of_evaluations = [cell for cell in cells if cell.metric.startswith(EVALUATED)]
        measured = [cell for cell in cells if cell.metric in MEASURES]
        base = next((base_cells for setting, base_cells in bases.items() if setting <= {*arm.split()}), [])
        policy = {"name": config_of(arm)["model"]["path"], "group": "abcd"}
        if BASE not in arm.split():
            of_training = [cell for cell in cells if cell not in of_evaluations]
            at_start = [cell for cell in base if not cell.metric.startswith(EVALUATED)]
            steps = {
                0: metrics_of(at_start, printed),
                40: metrics_of(of_training, printed) or {"evaluation/x/error": 0.0},
            }
            write_run(home, config_of(arm), {}, logged_at=steps, name=f"arm{number}-s0")
            policy = {"name": f"arm{number}@40", "group": f"{group_of(config_of(arm))}@40"}
        for greedy in (True, False):
            part = [cell for cell in of_evaluations if (cell.metric == "greedy") == greedy]
            if part or (measured and not greedy):
                frozen = evaluation_config(policy, greedy=greedy)
                name = f"e{number}-{greedy:d}-s0"
                run_id = write_evaluation(home, frozen, name, part, printed, measured)
                planned.append((run_id, name, [f"policy={policy['name']}"]))
    if planned:
        write_sweep(home, "abcd1234", planned)


def evaluation_config(policy: dict[str, str], *, greedy: bool) -> dict[str, Any]:
    frozen = config("grpo", evaluation={"temperature": 0.0 if greedy else 0.6})
    return frozen | {
        "steps": 1,
        "policy": {"digest": policy["name"], **policy},
        "loss": None,
        "choices": {"task": "math"},
    }


def write_evaluation(
    home: Path,
    frozen: dict[str, Any],
    name: str,
    cells: list[PrintedCell],
    printed: PaperTable,
    measured: list[PrintedCell],
) -> str:
    metrics = metrics_of(cells, printed) or {"evaluation/x/error": 0.0}
    run_id = write_run(home, frozen, {}, logged_at={1: metrics}, name=name)
    rows = [
        {
            "source": source,
            "problem_id": "",
            "measure": f"{MEASURES[cell.metric]} 16",
            "value": (cell.number or 0) / (1 if cell.metric in RAW else 100),
        }
        for cell in measured
        for source in printed.benchmarks[cell.benchmark]
    ]
    if rows:
        file = layout.diversity(layout.run(home, run_id))
        file.parent.mkdir(exist_ok=True)
        pd.DataFrame(rows).to_parquet(file)
    return run_id


def rows_of_ours(panel_grids: list[Grid], panels: list[str]) -> dict[tuple[str, str], dict[str, tuple[str, str]]]:
    """By panel and printed line, {head: (text, mark)} of the row of ours below it."""
    rows = {}
    for panel, grid in zip(panels, panel_grids, strict=True):
        for number, (label, *texts) in enumerate(grid.rows):
            if label == "· ours":
                marks = [grid.mark(number, column) for column in range(1, len(grid.header))]
                above = grid.rows[number - 1][0]
                rows[panel, above] = dict(zip(grid.header[1:], zip(texts, marks, strict=True), strict=True))
    return rows


@pytest.mark.parametrize("name", tables())
def test_fed_with_the_published_numbers_a_table_returns_them_cell_by_cell(name: str, tmp_path: Path) -> None:
    printed = tables()[name]
    write_published(tmp_path, printed)
    with_ours = counterparts.of_runs(load(tmp_path))[name]
    assert with_ours.name == name
    panels = list(dict.fromkeys(cell.panel for cell in printed.cells))
    shown = rows_of_ours(grids(with_ours), panels)
    corresponding = [cell for cell in printed.cells if cell.arm]
    assert shown.keys() == {(cell.panel, cell.line) for cell in corresponding}
    for cell in corresponding:
        text, mark = shown[cell.panel, cell.line][cell.head]
        if cell.number is None:
            assert text == "–"
            continue
        if cell.benchmark == AVERAGE or MINUS in cell.arm:  # computed: of the printed columns, to half their last digit
            assert float(text) == pytest.approx(float(cell.mean or cell.text), abs=0.0101)
            continue
        assert float(text) == cell.number, cell
        if cell.mark and printed.paper == "LAD":
            assert mark == cell.mark
    others = [cell for cell in printed.cells if not cell.arm]
    assert {cell.row for cell in others} <= UNTRAINED


# Models of others in PACS's table 1.
UNTRAINED = {
    *("Claude Opus 4.1", "Gemini 2.5 pro", "Qwen3-14B", "Deepthought-8B", "Eurus-2-7B-PRIME", "LIMO", "Marco-o1"),
    *("OpenThinker3-7B", "Sky-T1-7B"),
}


def test_runs_of_another_model_task_or_knob_stand_in_no_row(tmp_path: Path) -> None:
    arm = "model=Qwen2.5-7B task=math loss=lad divergence=js loss.eta=0.25"
    logged = {40: {"evaluation/math500/avg_at_32": 0.5}}
    changed = {"Qwen2.5-7B": "Qwen2.5-7B-Instruct", "math ": "code ", "js": "hd", "0.25": "0.5"}
    for number, (old, new) in enumerate(changed.items()):
        write_run(tmp_path, config_of(arm.replace(old, new)), {}, logged_at=logged, name=f"other{number}-s0")
    assert "lad_table_1" not in counterparts.of_runs(load(tmp_path))
    write_run(tmp_path, config_of(arm), {}, logged_at=logged, name="right-s0")
    (grid,) = grids(counterparts.of_runs(load(tmp_path))["lad_table_1"])
    assert [row[:3] for row in grid.rows[-2:]] == [("LAD", "77.66", "41.25"), ("· ours", "50.00", "–")]


@pytest.mark.parametrize(
    ("key", "values", "names"),
    [
        ("lr", (1e-6, 1e-5), ["lr = 1e-05", "lr = 1e-06"]),
        ("steps", (20, 40), ["loss=maxrl, steps=20", "loss=maxrl, steps=40"]),  # two settings
    ],
)
def test_several_arms_of_one_row_are_named_and_seeds_have_their_interval(tmp_path: Path, key, values, names) -> None:
    for at in values:
        for seed, value in enumerate((0.5, 0.6)):
            frozen = {**config_of("model=maze_3m task=maze loss=maxrl"), key: at, "seed": seed}
            logged = {40: {"evaluation/maze_17x17/pass_at_128": value}}
            write_run(tmp_path, frozen, {}, logged_at=logged, name=f"m{at}-s{seed}")
    (grid,) = grids(counterparts.of_runs(load(tmp_path))["maxrl_table_3"])
    below = [row for row in grid.rows if row[0].startswith("·")]
    assert [row[0] for row in below] == [f"· ours ({name})" for name in names]
    # Mean 55, standard deviation 7.07, t(0.975, 1) = 12.706: ± 63.5, more than is possible.
    assert {row[2] for row in below} == {"55.0 [0, 100]"}


def test_a_base_policy_is_known_by_its_model_or_by_the_policies_beside_it(tmp_path: Path) -> None:
    """One sweep evaluates a policy and its base; where two bases stand in it, which is whose is not known."""
    for model, value in (("Llama-3.1-8B-Instruct", 0.4), ("OmniSQL-32B", 0.6)):
        trained = config_of(f"model={model} task=sql loss=grpo")
        write_run(tmp_path, trained, {}, logged_at={40: {"evaluation/x/error": 0.0}}, name=f"{model}-s0")
        ids = []
        for policy in ({"name": "grpo@40", "group": f"{group_of(trained)}@40"}, {"name": "base", "group": model}):
            frozen = evaluation_config(policy, greedy=True) | {"policy": {"digest": model + policy["name"], **policy}}
            name = f"{model}-{policy['name']}"
            logged = {1: {"evaluation/bird/avg_at_1": value}}
            ids.append(
                (write_run(tmp_path, frozen, {}, logged_at=logged, name=name), name, [f"policy={policy['name']}"])
            )
        write_sweep(tmp_path, f"sweep{value}", ids)
    everything = load(tmp_path)
    for name, first in (("dph_rl_table_2", "40.0"), ("dph_rl_table_7", "60.0")):
        (grid,) = grids(counterparts.of_runs(everything)[name])
        assert [row[:2] for row in grid.rows[:4]] == [
            grid.rows[0][:2],
            ("· ours", first),
            grid.rows[2][:2],
            ("· ours", first),
        ]


def test_an_evaluation_of_best_checkpoints_stands_in_no_row(tmp_path: Path) -> None:
    """Its policy has the group `GROUP@best`, without a step. Rows are of last evaluations."""
    trained = config_of("model=Llama-3.1-8B-Instruct task=sql loss=grpo")
    write_run(tmp_path, trained, {}, logged_at={40: {"evaluation/x/error": 0.0}}, name="grpo-s0")
    for checkpoint, value in (("40", 0.4), ("best", 0.6)):
        policy = {"name": f"grpo@{checkpoint}", "group": f"{group_of(trained)}@{checkpoint}"}
        logged = {1: {"evaluation/bird/avg_at_1": value}}
        write_run(tmp_path, evaluation_config(policy, greedy=True), {}, logged_at=logged, name=f"e-{checkpoint}-s0")
    (grid,) = grids(counterparts.of_runs(load(tmp_path))["dph_rl_table_2"])
    assert [row[1] for row in grid.rows if row[0] == "· ours"] == ["40.0"]
