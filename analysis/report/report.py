"""A study's report: tables, figures and one self-contained page, put in place in one step."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup

from analysis import tables as table_room
from analysis.frames.frames import Frames
from analysis.paper import printed
from analysis.paper.figures import figures
from analysis.paper.ours import of_runs
from analysis.report.drawing import Beside, Drawn, available, draw
from analysis.report.grid import grids, published_grids
from analysis.report.interactive import interactive, script
from analysis.report.render import latex, markdown, to_csv
from analysis.report.summary import headlines, run_table
from analysis.report.table import Table
from analysis.scores.claim import Verdict
from analysis.scores.findings import findings
from analysis.scores.verdict import verdicts
from analysis.tables.comparison import Ask
from rlvr.ledger import layout
from rlvr.ledger.cause import State
from rlvr.ledger.files import whole, write_json

FIRST = "comparison"  # the table that is always made
ASKED = (FIRST, "policies")  # tables that are told what the user asks of the comparison
PAGE = Path(__file__).parent / "page.html"


@dataclass(frozen=True)
class Content:
    """What a report holds: verdicts on the study's claims, what else is to be said first, in their form; tables,
    figures; what the page's scripts draw."""

    claims: tuple[Verdict, ...]
    findings: tuple[Verdict, ...]
    tables: tuple[Table, ...]
    figures: tuple[Drawn, ...]
    data: Mapping[str, Any]

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        return (*self.claims, *self.findings)


def build(
    frames: Frames,
    *,
    only: Sequence[str] | None = None,
    with_figures: bool = True,
    ask: Ask | None = None,
    beside: Beside | None = None,
) -> Content:
    """Make every table (`only`: those named) and figure that has runs, the comparison first.

    ask: of the comparison, and whose reference policies are held against. beside: draws the figures already. Raises
    LookupError for an unknown table, metric, arm or knob.
    """
    known = available(table_room)
    for name in only or ():
        if name not in (*known, *printed.tables()):
            raise LookupError(
                f"--tables {name}: there is no such table. Tables: {', '.join(known)}, and of papers "
                f"{', '.join(printed.tables())}."
            )
    tables: list[Table] = []
    in_order = only or sorted(known, key=lambda name: (name != FIRST, name))
    for name in (name for name in in_order if name in known):
        found = known[name].table(frames, ask) if name in ASKED and ask else known[name].table(frames)
        tables += [found] if found is not None else []
    tables += [found for name, found in of_runs(frames).items() if not only or name in only]
    claims, others = tuple(verdicts(frames)), tuple(findings(frames))
    data = interactive(frames)  # before the figures are waited for
    drawn = () if not with_figures else beside.figures() if beside else draw(frames)
    return Content(claims, others, tuple(tables), (*drawn, *(of_papers(tables) if with_figures else ())), data)


def of_papers(tables: Sequence[Table]) -> list[Drawn]:
    """Figures of papers in which some run corresponds to a row of one of these tables."""
    known = {table.name: table for table in tables}
    numbered = [each for each in figures().values() if each.printed is not None and each.printed.name in known]
    if not numbered:
        return []
    from analysis.paper.draw import figure, has_ours  # matplotlib takes a third of a second

    shown = [(each, known[each.printed.name]) for each in numbered if each.printed is not None]
    return [Drawn(each.name, each.says, figure(each, table)) for each, table in shown if has_ours(each, table)]


def write(frames: Frames, content: Content, out: Path) -> list[Path]:
    """Write the report to the folder `out`, replacing what stood there; returns the files, index.html first.

    Everything is written aside and renamed: a reader sees the old report or the new one, never half of either.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    with whole(out, durable=False) as aside:
        aside.mkdir()
        written = [p.relative_to(aside) for p in _write(frames, content, aside)]
    return [out / p for p in written]


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
    """What other programs may want of a report: MLflow shows it with the sweep."""
    verdicts = [{"outcome": str(v.outcome), "says": v.claim.says, "found": v.found} for v in content.verdicts]
    found = [headline for table in content.tables if table.name == FIRST for headline in headlines(table)]
    return {
        "title": frames.title,
        "sweeps": [sweep.sweep_id for sweep in frames.sweeps],
        "verdicts": verdicts,
        "headlines": [" ".join([f"{each.title}: {each.text}", "; ".join(each.arms)]).strip() for each in found],
    }


def page(frames: Frames, content: Content, images: Mapping[str, str], files: Mapping[str, bytes] | None = None) -> str:
    """The self-contained HTML page. images: figure name to base64 PNG; files: what it carries to be saved, by path."""
    environment = Environment(
        loader=FileSystemLoader(PAGE.parent), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["code"] = _pieces
    columns, runs = run_table(frames)
    return environment.get_template(PAGE.name).render(
        title=frames.title,
        question=frames.question,
        commands=frames.commands,
        shas=_shas(frames),
        origin=frames.origin,
        states=[(s, int((frames.runs["state"] == s).sum())) for s in State if (frames.runs["state"] == s).any()],
        run_columns=columns,
        runs=runs,
        tables=[(t, grids(t), [(p, published_grids(p)) for p in t.apart]) for t in content.tables],
        figures={d.name: (d, images.get(d.name, "")) for d in content.figures},
        unplaced=[d.name for d in content.figures if d.name not in {t.name for t in content.tables}],
        notes=frames.notes,
        verdicts=content.verdicts,
        headlines=[headline for t in content.tables if t.name == FIRST for headline in headlines(t)],
        browse=browse_command(replace(frames, home=None)),  # a page names no path of a machine
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
    """A file inside the page."""
    kind = {"csv": "text/csv", "pdf": "application/pdf", "png": "image/png"}.get(name.rpartition(".")[2], "text/plain")
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def browse_command(frames: Frames) -> str:
    """How to look at the runs in MLflow's own pages."""
    if frames.origin.startswith("http"):
        return frames.origin
    where = frames.origin
    if ":" not in where:
        where = f"sqlite:///{layout.mlflow_database(frames.home)}" if frames.home else "sqlite:///mlflow.db"
    return f"mlflow ui --backend-store-uri {re.sub(r'//[^/@]+@', '//***@', where)}"


def _pieces(text: str) -> list[tuple[bool, str]]:
    """`code` in a note: (is code, text) pieces, so that the template escapes both."""
    return [(i % 2 == 1, piece) for i, piece in enumerate(text.split("`")) if piece]


def _shas(frames: Frames) -> list[str]:
    pairs = frames.runs[["git_sha", "git_dirty"]].drop_duplicates()
    return sorted(
        f"{sha[:12]}{' with uncommitted changes' if dirty else ''}"
        for sha, dirty in pairs.itertuples(index=False)
        if sha
    )
