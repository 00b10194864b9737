import importlib
import re
import shlex

import pytest

from analysis import figures as figure_package
from analysis.paper.printed import PaperFigure, figures, part_of, series_of
from analysis.report.report import available
from rlvr.config.schema import CONF


def cells_of(paper_figure: PaperFigure) -> list[tuple[str, str, str, float]]:
    """(panel, series, x, number) of everything that is drawn."""
    layout = paper_figure.layout
    return [
        (part_of(c, layout.panel), series_of(c, layout), part_of(c, layout.x), c.number or 0.0) for c in layout.chosen()
    ]


def test_every_figure_with_data_is_there() -> None:
    numbers: dict[str, list[int]] = {}
    for name in figures():
        paper, _, number = name.rpartition("_figure_")
        numbers.setdefault(paper, []).append(int(number))
    assert numbers == {"lad": [*range(1, 7)], "dph_rl": [*range(1, 6)], "pacs": [3, 4, 5, 6], "maxrl": [*range(1, 19)]}


def test_figures_3_and_4_of_lad_are_the_averages_of_tables_6_and_8() -> None:
    by_eta = cells_of(figures()["lad_figure_3"])
    assert len(by_eta) == 2 * 9  # GRPO and eight η, of avg@16 and pass@16
    assert ("avg@16", "LAD-JS", "4", 40.06) in by_eta
    assert ("pass@16", "LAD-JS", "1/4", 58.76) in by_eta
    assert ("pass@16", "GRPO", "", 54.44) in by_eta
    by_divergence = cells_of(figures()["lad_figure_4"])
    assert len(by_divergence) == 2 * 6
    assert ("pass@32", "Average", "LAD-rKL", 65.45) in by_divergence
    assert ("avg@32", "Average", "LAD-HD", 38.90) in by_divergence


def test_figure_6_of_pacs_is_what_its_text_says() -> None:
    """003, section 6.1."""
    assert set(cells_of(figures()["pacs_figure_6"])) == {
        *(("score", "Base", "LiveCodeBench", 31.06), ("score", "PPO", "LiveCodeBench", 35.87)),
        *(("score", "GRPO", "LiveCodeBench", 38.01), ("score", "PACS", "LiveCodeBench", 45.96)),
        *(("score", "PPO", "GPQA", 48.48), ("score", "GRPO", "GPQA", 48.55), ("score", "PACS", "GPQA", 52.46)),
    }


def test_the_documentation_names_what_draws_each_figure() -> None:
    """The table of docs/papers.md: a row names what draws ours of all its figures, and no figure is left out."""
    rows = re.findall(
        r"^\| ([A-Z][\w-]+) ([\d, ]+) \| .* \| (.*) \|$", (CONF.parent / "docs/papers.md").read_text(), re.M
    )
    documented = {(paper, int(number)): ours for paper, numbers, ours in rows for number in numbers.split(", ")}
    for name, figure in figures().items():
        ours = documented.pop((figure.paper, int(name.rpartition("_")[2])))
        for word in (*figure.ours, *([figure.command] if figure.command else [])):
            assert f"`{word}`" in ours, name
    assert not documented


@pytest.mark.parametrize("name", figures())
def test_what_draws_a_figure_exists(name: str) -> None:
    paper_figure = figures()[name]
    assert paper_figure.printed or paper_figure.ours or paper_figure.command
    assert set(paper_figure.ours) <= set(available(figure_package))
    if paper_figure.command:
        python, option, module = shlex.split(paper_figure.command)
        assert (python, option) == ("python", "-m")
        importlib.import_module(module)
    if paper_figure.study:
        assert (CONF.parent / "sweeps" / f"{paper_figure.study}.yaml").is_file()
    if paper_figure.layout is not None:
        drawn = cells_of(paper_figure)
        assert len({cell[:3] for cell in drawn}) == len(drawn) > 0  # a place for every number
        for part, values in paper_figure.layout.only.items():
            assert {part_of(c, part) for c in paper_figure.layout.chosen()} == set(values)
