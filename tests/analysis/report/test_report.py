import base64
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest
from matplotlib.figure import Figure

from analysis.command import main
from analysis.frames.load import load
from analysis.paper.printed import as_published
from analysis.paper.printed import tables as printed_tables
from analysis.report import report
from analysis.report.looks import looks_of
from analysis.report.style import encode
from analysis.report.table import Table
from analysis.scores.arm import arms
from analysis.scores.claim import Claim, Outcome, Verdict
from tests.analysis.ledger_factory import BASE, config, write_bandit, write_run, write_study

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    home = tmp_path_factory.mktemp("report")
    write_study(home, grpo=False, spoil=True)
    return home


@pytest.fixture(scope="module")
def content(home) -> report.Content:
    return report.build(load(home))


class Page(HTMLParser):
    """Collects the addresses that a page would fetch, its images, links and tags."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.images: list[str] = []
        self.links: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        for name, value in attrs:
            if name == "src" and (value or "").startswith("data:image/png;base64,"):
                self.images.append(value)
            elif name in ("src", "srcset", "data", "poster", "action") or (tag == "link" and name == "href"):
                self.fetched.append(value or "")
            elif name == "href":
                self.links.append(value or "")


@pytest.mark.slow
def test_the_report_holds_every_file_and_a_self_contained_page(home, content, tmp_path):
    frames = load(home)
    files = report.write(frames, content, tmp_path / "reports" / "default")
    names = {str(f.relative_to(tmp_path / "reports" / "default")) for f in files}
    assert names == {"index.html"} | {
        f"tables/{t}.{s}" for t in ("comparison", "eta", "divergence") for s in ("md", "csv", "tex")
    } | {f"figures/{f}.{s}" for f in ("eta", "divergence", "training") for s in ("png", "pdf")}
    text = files[0].read_text(encoding="utf-8")
    page = Page()
    page.feed(text)
    assert page.fetched == []  # scripts are in the page
    assert "@import" not in text
    assert "url(" not in text
    assert all(not link.startswith(("http", "//")) for link in page.links)
    images = {base64.b64decode(i.partition(",")[2]) for i in page.images}
    assert images == {f.read_bytes() for f in files if f.suffix == ".png"}
    for table in content.tables:
        shown = text.partition(f'id="table-{table.name}"')[2].partition("</section>")[0]
        assert set(table.cells["row"]) <= set(re.findall(r'<th scope="row" title="(.*?)">', shown)), table.name
    states = ("host_oom", "out of memory", "0123456789ab", "mlflow ui --backend-store-uri")
    for needed in ("python -m rlvr.run -m loss=grpo seed=0", "Published beside ours", "86.40", *states):
        assert needed in text


def test_text_from_runs_cannot_become_markup(tmp_path):
    write_run(tmp_path, config(), {0: BASE}, cause="error", message="<script>alert(1)</script>")
    frames = load(tmp_path)
    assert "<script>alert" not in report.page(frames, report.build(frames, with_figures=False), {})


def test_the_reference_is_black_in_figures_and_not_in_mlflow_which_may_be_dark(tmp_path):
    run_id = write_run(tmp_path, config("grpo"), {0: BASE})
    frames = load(tmp_path)
    assert [look.colour for look in looks_of(arms(frames), "")] == ["#000000"]
    content = report.build(frames, with_figures=False)
    assert report.summary(frames, content)["colours"] == {run_id: "#767676"}


@pytest.mark.slow
def test_a_page_shows_no_password_of_the_tracking_server(home, content):
    for origin, expected in (
        ("http://ann:secret@tracking:5000", "http://***@tracking:5000"),
        ("postgresql://ann:se@cret@db/mlflow", "mlflow ui --backend-store-uri 'postgresql://***@db/mlflow'"),
        ("postgresql://db/m?password=x", "mlflow ui --backend-store-uri 'postgresql://db/m?password=***'"),
        ("sqlite:////data/mlflow.db", "mlflow ui --backend-store-uri sqlite:////data/mlflow.db"),
        ("sqlite:////my data/mlflow.db", "mlflow ui --backend-store-uri 'sqlite:////my data/mlflow.db'"),
        ("ledger", "mlflow ui --backend-store-uri sqlite:///mlflow.db"),
    ):
        frames = replace(load(home), origin=origin)
        assert report.browse_command(replace(frames, home=None)) == expected
        assert "cret" not in report.page(frames, replace(content, figures=(), tables=()), {})


def test_the_page_gives_the_reasons_of_each_verdict(home, content):
    claim = Claim("It wins.", "avg", "loss=lad", ">", printed="48.1")
    verdict = Verdict(claim, Outcome.UNDECIDED, measured="+6.6 points", basis="3 seeds", note="9 seeds would decide")
    text = report.page(load(home), replace(content, figures=(), tables=(), claims=(verdict,)), {})
    section = text.partition('<section id="claims">')[2].partition("</section>")[0]
    for words in ("undecided", "It wins.", "+6.6 points", "3 seeds", "9 seeds would decide", "Printed: 48.1"):
        assert words in section


def test_a_grid_without_a_title_has_no_heading(home, content):
    paper = as_published(printed_tables()["dph_rl_table_2"])
    untitled = Table("t", "T", "?", pd.DataFrame(), (), published=(paper,))
    text = report.page(load(home), replace(content, figures=(), tables=(untitled,)), {})
    assert "Spider greedy" in text
    assert "<h3></h3>" not in text


def test_a_report_is_replaced_whole(home, content, tmp_path):
    content = replace(content, figures=())
    out = tmp_path / "r"
    out.mkdir()
    (out / "stale.txt").write_text("old")
    report.write(load(home), content, out)
    assert not (out / "stale.txt").exists()
    assert [p.name for p in tmp_path.iterdir()] == ["r"]  # nothing is left beside it


def test_a_failed_report_leaves_the_old_one(home, content, tmp_path, monkeypatch):
    content = replace(content, figures=())
    out = tmp_path / "r"
    report.write(load(home), content, out)
    before = (out / "index.html").read_bytes()
    monkeypatch.setattr(report, "PAGE", tmp_path / "gone.html")
    with pytest.raises(Exception, match=r"gone\.html"):
        report.write(load(home), content, out)
    assert ((out / "index.html").read_bytes(), [p.name for p in tmp_path.iterdir()]) == (before, ["r"])


@pytest.mark.slow
def test_the_same_data_gives_the_same_bytes(home, tmp_path):
    first, second = (
        report.write(load(home), report.build(load(home)), tmp_path / name / "default") for name in ("a", "b")
    )
    for file, repeated in zip(first, second, strict=True):
        assert file.read_bytes() == repeated.read_bytes(), file.name


def test_figures_are_drawn_from_the_frames(home, content):
    eta = next(d.figure for d in content.figures if d.name == "eta")
    assert [a.get_title(loc="left") for a in eta.axes] == ["avg@8", "pass@8"]
    assert eta.legends[0].get_title().get_text() == "band: 95 % interval over seeds and problems, as ± in the tables"
    labels = {t.get_text() for t in eta.legends[0].get_texts()}
    assert {"tv", "hd", "js", "grpo: missing", "base policy", "no result"} == labels
    js = next(line for line in eta.axes[0].lines if len(line.get_xdata()) == 4 and line.get_color() == "#0072B2")
    assert list(js.get_xdata()) == [0.25, 0.5, 1, 2]
    # (maze7 + maze9)/2 in %: (10 + 9)/64, (14 + 13)/64, (20 + 19)/64, (20 + 19)/64
    assert list(js.get_ydata()) == pytest.approx([1900 / 64, 2700 / 64, 3900 / 64, 3900 / 64])


def test_a_name_with_dollar_signs_is_drawn_as_it_is_and_a_formula_as_a_formula():
    drawn = Figure(layout="constrained")
    axes = drawn.subplots()
    name, formula = axes.set_title("m$\\frac{$z\nsecond line"), axes.set_xlabel(r"$\eta$")
    axes.set_xscale("log")
    axes.plot([1, 1000], [0, 1], label="$^{$")
    axes.legend()
    assert encode(drawn, "png")[:4] == b"\x89PNG"
    assert (name.get_parse_math(), formula.get_parse_math()) == (False, True)


@pytest.mark.slow
def test_divergence_bars_are_the_means_of_the_table(tmp_path):
    write_study(tmp_path)
    drawn = {d.name: d.figure for d in report.build(load(tmp_path)).figures}["divergence"]
    assert drawn.legends[0].get_title().get_text().startswith("whiskers, band of grpo: 95 % interval")
    heights = [patch.get_height() for patch in drawn.axes[0].patches[:3]]  # then the band
    # tv, hd, js over η, (maze7 + maze9)/2: maze9 is one sample of 32 lower in every arm
    assert heights == pytest.approx([(x - 0.5) / 32 * 100 for x in (13.5, 14, 16)])


def test_the_bandit_figure_prints_distance_and_modes(tmp_path):
    write_bandit(tmp_path, "js", "target", seeds=(0, 1))
    write_bandit(tmp_path, "grpo", "first mode", seeds=(0,))
    figure = {d.name: d.figure for d in report.build(load(tmp_path)).figures}["bandit"]
    texts = [a.texts[0].get_text() for a in figure.axes]
    assert texts == ["TV 0.000 (worst 0.000)\nmodes 3 of 3\n2 seeds", "TV 0.678\nmodes 1 of 3\n1 seed"]
    assert encode(figure, "png").startswith(b"\x89PNG")


def test_only_the_named_tables_are_written_and_of_one_that_does_not_apply_the_reason_is_given(home, tmp_path, capsys):
    def typed(tables: str) -> int:
        return main(["--home", str(home), "--out", str(tmp_path), "--no-figures", "--tables", tables])

    assert typed("beta, eta,eta") == 0
    assert sorted(p.name for p in tmp_path.rglob("tables/*")) == ["eta.csv", "eta.md", "eta.tex"]
    reason = "Not shown: beta needs two values of β of PACS, evaluated on problems."
    assert reason in capsys.readouterr().out
    page = (tmp_path / "default-part" / "index.html").read_text(encoding="utf-8")
    assert f"<li>{reason}" in page
    assert page.count('id="table-eta"') == 1
    before = list(tmp_path.rglob("*"))
    assert typed("etta") == 2
    assert re.search(r"no such table\. Tables: .*bandit, .*divergence, .*eta", capsys.readouterr().err)
    assert typed("beta,pacs_table_1") == 2
    error = capsys.readouterr().err
    assert "--tables: beta needs two values of β of PACS, evaluated on problems; pacs_table_1 needs" in error
    assert error.endswith("Tables of these runs: comparison, divergence, eta.\n")
    assert list(tmp_path.rglob("*")) == before


def test_nothing_found_is_one_line_and_exit_2(tmp_path, capsys):
    for arguments, needed in (
        ([], "Start one: python -m rlvr.run"),
        (["--study", "x"], "no run in"),
        (["--sweep", "x"], "no run in"),
        (["--source", "mlflow"], "there is no such database"),
    ):
        assert main(["--home", str(tmp_path), *arguments]) == 2
        shown = capsys.readouterr()
        assert (shown.out, len(shown.err.splitlines()), needed in shown.err) == ("", 1, True), arguments


@pytest.mark.slow
def test_every_table_can_be_asked_for_by_its_name(home):
    frames = load(home)
    for name in report.available(report.table_package):
        if name in ("comparison", "divergence", "eta"):
            assert [table.name for table in report.build(frames, only=[name], with_figures=False).tables] == [name]
        else:
            needs = f"^--tables: {name} needs .*[^.]\\. Tables of these runs: comparison"
            with pytest.raises(LookupError, match=needs):
                report.build(frames, only=[name], with_figures=False)


def test_help_needs_no_pandas(tmp_path):
    code = "import sys, analysis.command as m; m.parser().format_help(); print('pandas' in sys.modules)"
    completed = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert completed.stdout.strip() == "False"
