from pathlib import Path

import pytest
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from analysis.frames.load import load
from analysis.paper import draw
from analysis.paper.counterparts import of_runs, table
from analysis.paper.printed import figures, tables
from analysis.report.report import of_papers
from tests.analysis.ledger_factory import write_run
from tests.analysis.paper.test_counterparts import config_of, write_published


def bars(axes: Axes) -> dict[str, list[float]]:
    """Heights by group of x, printed and ours in the order in which they stand."""
    labels = [tick.get_text() for tick in axes.get_xticklabels()]
    heights: dict[str, list[float]] = {}
    for bar in sorted((b for b in axes.patches if isinstance(b, Rectangle)), key=Rectangle.get_x):
        heights.setdefault(labels[round(bar.get_x() + bar.get_width() / 2)], []).append(bar.get_height())
    return heights


def test_lines_stand_at_the_printed_numbers() -> None:
    drawing = draw.figure(figures()["lad_figure_3"], table(None, tables()["lad_table_6"]))
    averages, passes = drawing.axes
    (grpo, line) = averages.lines
    assert (set(grpo.get_ydata()), list(line.get_xdata())) == ({37.29}, [0.25, 0.5, 1, 2, 4, 8, 16, 32])
    assert list(line.get_ydata()) == [36.90, 38.38, 39.00, 38.54, 40.06, 38.47, 38.79, 37.63]
    assert [tick.get_text() for tick in passes.get_xticklabels()] == ["1/4", "1/2", "1", "2", "4", "8", "16", "32"]


def test_families_have_their_mean() -> None:
    """Of table 8, avg@32: (37.99 + 36.10 + 35.52) / 3 and (38.83 + 38.90 + 40.08) / 3."""
    axes = draw.figure(figures()["lad_figure_4"], table(None, tables()["lad_table_8"])).axes[0]
    assert bars(axes)["LAD-JS"] == [40.08]
    weak, strict = ([float(y) for y in line.get_ydata()] for line in axes.lines)
    assert (weak, strict) == (pytest.approx([36.536667] * 2), pytest.approx([39.27] * 2))


def test_ours_stand_beside_the_printed_rows_with_their_interval(tmp_path: Path) -> None:
    for seed, value in enumerate((0.8, 0.9)):
        frozen = config_of("model=maze_3m task=maze loss=maxrl") | {"seed": seed}
        write_run(tmp_path, frozen, {}, logged_at={40: {"evaluation/maze_17x17/pass_at_1": value}}, name=f"m-s{seed}")
    frames = load(tmp_path)
    (drawn,) = of_papers(list(of_runs(frames).values()))
    assert drawn.name == "maxrl_figure_18"
    (axes,) = drawn.figure.axes
    assert bars(axes)["pass@1"] == pytest.approx([39.6, 47.2, 74.5, 46.1, 50.0, 84.4, 85.0])
    marks = draw.marks(figures()["maxrl_figure_18"].layout, table(frames, tables()["maxrl_table_3"]))
    (ours,) = (mark for mark in marks if mark.ours)
    # Standard deviation 7.07 of 80 and 90, t(0.975, 1) = 12.706: 85 ± 63.5, which ends at 100.
    assert (ours.low, ours.high) == pytest.approx((85 - 63.53, 100), abs=0.01)


def test_several_arms_of_one_row_have_hatches_and_names_of_their_own(tmp_path: Path) -> None:
    for lr in (1e-6, 1e-5):
        frozen = config_of("model=maze_3m task=maze loss=maxrl") | {"lr": lr}
        write_run(tmp_path, frozen, {}, logged_at={40: {"evaluation/maze_17x17/pass_at_1": 0.5}}, name=f"m{lr}-s0")
    shown = table(load(tmp_path), tables()["maxrl_table_3"])
    drawing = draw.figure(figures()["maxrl_figure_18"], shown)
    hatches = [bar.get_hatch() for bar in drawing.axes[0].patches if bar.get_hatch()]
    assert len(hatches) == len(set(hatches)) == 2
    (legend,) = drawing.legends
    named = [text.get_text() for text in legend.get_texts()]
    assert named[-2:] == ["MaxRL, ours (lr = 1e-05)", "MaxRL, ours (lr = 1e-06)"]


@pytest.mark.parametrize("name", [name for name, paper_figure in figures().items() if paper_figure.printed])
def test_fed_with_the_published_numbers_ours_stand_where_theirs_do(name: str, tmp_path: Path) -> None:
    paper_figure = figures()[name]
    write_published(tmp_path, paper_figure.printed)
    marks = draw.marks(paper_figure.layout, table(load(tmp_path), paper_figure.printed))
    theirs = {(m.panel, m.series, m.x): m.value for m in marks if not m.ours}
    ours = {(m.panel, m.series.removesuffix(", ours"), m.x): m.value for m in marks if m.ours}
    assert ours.keys() == theirs.keys()
    for place, value in theirs.items():
        assert ours[place] == pytest.approx(value, abs=0.0101)  # averages are computed, of rounded columns
