"""The report of a study: tables, figures and one self-contained page, written in one step."""

from __future__ import annotations

import base64
import importlib.util
import pkgutil
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from analysis import figures as figure_package
from analysis import tables as table_package
from analysis.frames.frames import Frames
from analysis.frames.runs import BROWSE
from analysis.paper import printed
from analysis.paper.counterparts import of_runs
from analysis.paper.printed import figures
from analysis.report.grid import grids, published_grids
from analysis.report.interactive import interactive, script
from analysis.report.looks import GRPO, NEUTRAL, looks_of
from analysis.report.record import states
from analysis.report.render import latex, markdown, to_csv
from analysis.report.summary import Headline, headlines, run_table, scores
from analysis.report.table import Table
from analysis.scores.arm import arms
from analysis.scores.claim import Verdict
from analysis.scores.findings import findings
from analysis.scores.selection import ordered
from analysis.scores.verdict import verdicts
from analysis.tables.comparison import ComparisonOptions
from rlvr.ledger import layout
from rlvr.ledger.files import read_json, write_atomically, write_json
from rlvr.ledger.tags import redact

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COMPARISON = "comparison"  # the table that every study has
TAKE_ASK = (COMPARISON, "policies")  # the tables that take the options of the comparison
PAGE = Path(__file__).parent / "page.html"
PAGE_WIDE = 190  # characters of a table that fit in its width


@dataclass
class RenderedFigure:
    """A figure of a report. files: encoded so far, by kind."""

    name: str
    question: str
    figure: Figure
    files: dict[str, bytes] = field(default_factory=dict[str, bytes])

    def encoded(self, kind: str) -> bytes:
        """The bytes of the figure as "png" or "pdf", encoded once."""
        if kind not in self.files:
            from analysis.report import style  # matplotlib takes a third of a second, and only figures need it

            self.files[kind] = style.encode(self.figure, kind)
        return self.files[kind]


def available(package: Any) -> dict[str, Any]:
    """Every table or figure of a package, by name, names sorted. A new file is a new one, or those that it names in
    SEVERAL; each has QUESTION and `table` or `figure`. One with ASKED is made only if it is named."""
    known: dict[str, Any] = {}
    for name in (m.name for m in pkgutil.iter_modules(package.__path__)):
        module = importlib.import_module(f"{package.__name__}.{name}")
        known |= vars(module).get("SEVERAL", {name: module})
    return dict(sorted(known.items()))


def add(folder: Path) -> None:
    """Add the tables and figures of a directory: DIR/tables/NAME.py and DIR/figures/NAME.py, which may import what else
    lies in DIR. Raises LookupError for a name that is taken, and for a directory with neither."""
    own = {package: folder / package.__name__.rpartition(".")[2] for package in (table_package, figure_package)}
    files = [(package, file) for package, place in own.items() for file in sorted(place.glob("*.py"))]
    if not files:
        raise LookupError(f"--config-dir {folder}: it has no tables/NAME.py and no figures/NAME.py.")
    for package, file in files:
        if spec := importlib.util.find_spec(f"{package.__name__}.{file.stem}"):
            raise LookupError(f"{file} has the name of another one, {spec.origin}. Give it another name.")
    for package, place in own.items():
        package.__path__.append(str(place))
    sys.path.append(str(folder))


def _asked(module: Any) -> bool:
    return vars(module).get("ASKED", False)


def draw(frames: Frames, named: Sequence[str] = ()) -> list[RenderedFigure]:
    """The figures that have runs, in the order of their names. named: tables whose figures are drawn if asked for."""
    usual = {name: m for name, m in available(figure_package).items() if name in named or not _asked(m)}
    drawn = {name: (module.QUESTION, module.figure(frames)) for name, module in usual.items()}
    return [RenderedFigure(name, question, figure) for name, (question, figure) in drawn.items() if figure is not None]


@dataclass(frozen=True)
class Content:
    """What a report holds. claims: the verdicts on the claims of the study; findings: other findings, in the same form;
    data: what the scripts of the page draw; absent: why a table that was asked for is not there."""

    claims: tuple[Verdict, ...]
    findings: tuple[Verdict, ...]
    tables: tuple[Table, ...]
    figures: tuple[RenderedFigure, ...]
    data: Mapping[str, Any]
    absent: tuple[str, ...] = ()

    @property
    def not_shown(self) -> tuple[str, ...]:
        return tuple(f"Not shown: {reason}." for reason in self.absent)

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        return (*self.claims, *self.findings)

    @property
    def headlines(self) -> list[Headline]:
        """What the comparison decided, metric by metric."""
        return [headline for table in self.tables if table.name == COMPARISON for headline in headlines(table)]


def build(
    frames: Frames,
    *,
    only: Sequence[str] | None = None,
    with_figures: bool = True,
    ask: ComparisonOptions | None = None,
) -> Content:
    """Build every table and figure that has runs, the comparison first.

    only: the names of the tables to build. ask: the options of the comparison, whose reference the table of policies
    takes too. LookupError for an unknown table, metric, arm or knob, and if none of the named tables applies to these
    runs.
    """
    chosen = list(dict.fromkeys(only or ()))
    known = _names()
    for name in chosen:
        if name not in known:
            raise LookupError(f"--tables {name}: there is no such table. Tables: {', '.join(known)}.")
    of_ours = available(table_package)
    usual = [name for name in known if name not in of_ours or not _asked(of_ours[name])]
    tables = _tables(frames, chosen or usual, ask)
    shown = {table.name for table in tables}
    row = "a run like one of its rows (`python -m analysis paper {name}` shows them)"  # of a table of a paper
    needs = {name: row.format(name=name) for name in chosen}
    needs |= {name: module.NEEDS for name, module in of_ours.items()}
    absent = tuple(f"{name} needs {needs[name]}" for name in chosen if name not in shown)
    if chosen and not tables:
        applicable = ", ".join(table.name for table in _tables(frames, known, ask)) or "none yet"
        raise LookupError(f"--tables: {'; '.join(absent)}. Tables of these runs: {applicable}.")
    claims, others = tuple(verdicts(frames)), tuple(findings(frames))
    drawn = (*draw(frames, chosen), *of_papers(tables)) if with_figures else ()
    return Content(claims, others, tuple(tables), drawn, interactive(frames), absent)


def _names() -> list[str]:
    return [*sorted(available(table_package), key=lambda name: (name != COMPARISON, name)), *printed.tables()]


def _tables(frames: Frames, names: Sequence[str], ask: ComparisonOptions | None) -> list[Table]:
    """Those of the named tables that apply to the runs: ours in the order of the names, then those of papers."""
    known = available(table_package)
    tables: list[Table] = []
    for name in (name for name in names if name in known):
        table = known[name].table(frames, ask) if name in TAKE_ASK and ask else known[name].table(frames)
        tables += [table] if table is not None else []
    return [*tables, *(table for name, table in of_runs(frames).items() if name in names)]


def of_papers(tables: Sequence[Table]) -> list[RenderedFigure]:
    """The figures of papers that show a printed table of `tables` in which some run of ours has a row."""
    known = {table.name: table for table in tables}
    printed_ones = [(drawn, drawn.printed.name) for drawn in figures().values() if drawn.printed]
    with_table = [(drawn, known[name]) for drawn, name in printed_ones if name in known]
    if not with_table:
        return []
    from analysis.paper.draw import figure, has_ours  # matplotlib takes a third of a second

    shown = [(drawn, table) for drawn, table in with_table if has_ours(drawn, table)]
    return [RenderedFigure(drawn.name, drawn.says, figure(drawn, table)) for drawn, table in shown]


def write(frames: Frames, content: Content, out: Path) -> list[Path]:
    """Write the report to the folder `out` in place of any older one; returns the files, index.html first.

    Everything is written to a temporary folder that is then renamed: a reader sees the old report or the new one, never
    a part of either.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    with write_atomically(out, durable=False) as temporary:
        temporary.mkdir()
        names = [path.relative_to(temporary) for path in _write(frames, content, temporary)]
    return [out / name for name in names]


def _write(frames: Frames, content: Content, folder: Path) -> list[Path]:
    files: dict[str, bytes] = {}
    images: dict[str, str] = {}
    for table in content.tables:
        for suffix, render in (("md", markdown), ("csv", to_csv), ("tex", latex)):
            files[f"tables/{table.name}.{suffix}"] = render(table).encode()
    for drawn in content.figures:
        images[drawn.name] = base64.b64encode(drawn.encoded("png")).decode()
        files |= {f"figures/{drawn.name}.{kind}": drawn.encoded(kind) for kind in ("png", "pdf")}
    files = {"index.html": page(frames, content, images, files).encode(), **files}
    for name, data in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)
    write_json(layout.report_summary(folder), summary(frames, content))
    return [folder / name for name in files]


def summary(frames: Frames, content: Content) -> dict[str, Any]:
    """What other programs read of a report; MLflow shows it with the sweep."""
    comparisons = [table for table in content.tables if table.name == COMPARISON]
    shown = ordered(arms(frames), frames.swept)
    looks = zip(shown, looks_of(shown, frames.baseline), strict=True)
    verdicts = [{"outcome": str(v.outcome), "says": v.claim.says, "found": v.measured} for v in content.verdicts]
    return {
        "title": frames.title,
        "sweeps": [sweep.sweep_id for sweep in frames.sweeps],
        "verdicts": verdicts,
        "headlines": [" ".join([f"{h.title}: {h.text}", "; ".join(h.arms)]).strip() for h in content.headlines],
        "scores": {name: value for table in comparisons for name, value in scores(table).items()},
        # MLflow may be dark, where black is not seen.
        "colours": {i: NEUTRAL if look.colour == GRPO else look.colour for arm, look in looks for i in arm.run_ids},
    }


def page(frames: Frames, content: Content, images: Mapping[str, str], files: Mapping[str, bytes] | None = None) -> str:
    """The self-contained HTML page. images: base64 PNG by name of figure; files: offered for download, by path."""
    loader = FileSystemLoader(PAGE.parent)
    environment = Environment(
        loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined
    )
    # A note split at its `code`, as (is code, text): the template escapes both.
    environment.filters["code"] = lambda text: [(i % 2 == 1, part) for i, part in enumerate(text.split("`")) if part]
    environment.filters["short"] = partial(_in_short, {arm.label: arm.short for arm in arms(frames)})
    columns, runs = run_table(frames)
    return environment.get_template(PAGE.name).render(
        title=frames.title,
        question=frames.question,
        commands=frames.commands,
        shas=_commits(frames),
        origin=frames.origin,
        next_look=frames.next_look,
        states=list(states(frames).items()),
        run_columns=columns,
        runs=runs,
        tables=[
            (t, grids(t, width=PAGE_WIDE, side_by_side=True), [(p, published_grids(p)) for p in t.published_apart])
            for t in content.tables
        ],
        figures={d.name: (d, images.get(d.name, "")) for d in content.figures},
        unplaced=[d.name for d in content.figures if d.name not in {t.name for t in content.tables}],
        notes=(*content.not_shown, *frames.notes),
        verdicts=content.verdicts,
        headlines=content.headlines,
        browse=browse_command(replace(frames, home=None)),  # the page must not contain a path of this machine
        files={name: _as_link(name, content) for name, content in (files or {}).items()},
        data=content.data,
        script=Markup(script(content.data)),
        styles=Markup(_asset("uplot/uPlot.min.css") + _asset("page.css")),
        library=Markup(_asset("uplot/uPlot.iife.min.js")),
        code_of_page=Markup(_asset("page.js")),
    )


def _asset(name: str) -> str:
    return (PAGE.parent / name).read_text(encoding="utf-8")


def _as_link(name: str, content: bytes) -> str:
    kind = {"csv": "text/csv", "pdf": "application/pdf", "png": "image/png"}.get(name.rpartition(".")[2], "text/plain")
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def browse_command(frames: Frames) -> str:
    """The command, or the address, that shows the runs in MLflow; a user and password in it are replaced by ***."""
    origin = frames.origin
    if origin.startswith("http"):
        return redact(origin)
    if ":" not in origin:
        origin = f"sqlite:///{layout.mlflow_database(frames.home)}" if frames.home else "sqlite:///mlflow.db"
    return f"mlflow ui --backend-store-uri {shlex.quote(redact(origin))}"


def browse_address(frames: Frames) -> str:
    """The saved view of the study, as that command shows it for the store in the home; "" if it is not there."""
    own_store = f"sqlite:///{layout.mlflow_database(Path()).name}"
    folders = [layout.sweep(frames.home, sweep.sweep_id) for sweep in frames.sweeps] if frames.home else []
    cursors = [(read_json(layout.cursor(folder)) or {}).get(own_store) or {} for folder in folders]
    experiments = {cursor["experiment_id"] for cursor in cursors if cursor.get("experiment_id")}
    if len(experiments) != 1 or ":" in frames.origin:
        return ""
    return f"{BROWSE}/#/experiments/{experiments.pop()}/runs?viewStateShareKey=rlvr"


def _in_short(shorts: Mapping[str, str], text: str) -> str:
    """A text that begins or ends with the label of an arm, with its short one in that place."""
    begins = (text, *text.rsplit(": ", 1)[:1], *text.rsplit(", at ", 1)[:1])
    label = next((label for label in begins if label in shorts), "")
    if not label and (end := text.rpartition(" to ")[2]) in shorts:
        return text.removesuffix(end) + shorts[end]
    return shorts[label] + text[len(label) :] if label else text


def _commits(frames: Frames) -> list[str]:
    pairs = frames.runs[["git_sha", "git_dirty"]].drop_duplicates()
    return sorted(
        f"{sha[:12]}{' with uncommitted changes' if dirty else ''}"
        for sha, dirty in pairs.itertuples(index=False)
        if sha
    )
