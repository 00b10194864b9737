"""A study's report: tables, figures and one self-contained page, put in place in one step."""

from __future__ import annotations

import base64
import importlib
import math
import pkgutil
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FileSystemLoader

from analysis import figures as figure_room
from analysis import tables as table_room
from analysis.frames.frame import records
from analysis.frames.frames import Frames
from analysis.report.grid import grids, published_grids
from analysis.report.render import latex, markdown, to_csv
from analysis.report.table import Table
from analysis.scores.arm import arms, describe, differing
from analysis.scores.claim import Verdict
from analysis.scores.verdict import verdicts
from analysis.tables.comparison import Ask
from rlvr.ledger import layout
from rlvr.ledger.cause import State
from rlvr.ledger.files import whole

FIRST = "comparison"  # the table that is always made
PAGE = Path(__file__).parent / "page.html"


if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Drawn:
    name: str
    question: str
    figure: Figure


@dataclass(frozen=True)
class Content:
    """What a report holds: verdicts on the study's claims, tables, figures."""

    verdicts: tuple[Verdict, ...]
    tables: tuple[Table, ...]
    figures: tuple[Drawn, ...]


def available(room: Any) -> dict[str, ModuleType]:
    """The tables or figures there are: every module of the folder. Adding one is adding a file."""
    names = sorted(m.name for m in pkgutil.iter_modules(room.__path__))
    return {name: importlib.import_module(f"{room.__name__}.{name}") for name in names}


def build(
    frames: Frames, *, only: Sequence[str] | None = None, with_figures: bool = True, ask: Ask | None = None
) -> Content:
    """Make every table (`only`: those named) and figure that has runs, the comparison first.

    ask: of the comparison. Raises LookupError for an unknown table, metric, arm or knob.
    """
    known = available(table_room)
    for name in only or ():
        if name not in known:
            raise LookupError(f"--tables {name}: there is no such table. Tables: {', '.join(known)}.")
    tables, drawn = [], []
    for name in only or sorted(known, key=lambda name: (name != FIRST, name)):
        found = known[name].table(frames, ask) if name == FIRST and ask else known[name].table(frames)
        tables += [found] if found is not None else []
    for name, module in (available(figure_room) if with_figures else {}).items():
        figure = module.figure(frames)
        drawn += [Drawn(name, module.QUESTION, figure)] if figure is not None else []
    return Content(tuple(verdicts(frames)), tuple(tables), tuple(drawn))


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
        from analysis.report import style  # matplotlib takes a third of a second, and only figures need it

        png = style.encode(drawn.figure, "png")
        images[drawn.name] = base64.b64encode(png).decode()
        files |= {f"figures/{drawn.name}.png": png, f"figures/{drawn.name}.pdf": style.encode(drawn.figure, "pdf")}
    files = {"index.html": page(frames, content, images).encode(), **files}
    for name, data in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)
    return [folder / name for name in files]


def folder_name(study: str) -> str:
    """A study's name as one folder name."""
    return re.sub(r"[^\w.-]+", "-", study).strip("-.") or "study"


def page(frames: Frames, content: Content, images: dict[str, str]) -> str:
    """The self-contained HTML page; `images`: figure name to base64 PNG."""
    environment = Environment(
        loader=FileSystemLoader(PAGE.parent), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["code"] = _pieces
    return environment.get_template(PAGE.name).render(
        title=frames.title,
        question=frames.question,
        commands=frames.commands,
        shas=_shas(frames),
        origin=frames.origin,
        states=[(s, int((frames.runs["state"] == s).sum())) for s in State if (frames.runs["state"] == s).any()],
        runs=list(_run_rows(frames)),
        tables=[(t, grids(t), [(p, published_grids(p)) for p in t.published]) for t in content.tables],
        figures={d.name: (d, images.get(d.name, "")) for d in content.figures},
        unplaced=[d.name for d in content.figures if d.name not in {t.name for t in content.tables}],
        notes=frames.notes,
        verdicts=content.verdicts,
        browse=browse_command(replace(frames, home=None)),  # a page names no path of a machine
    )


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


# Of these keys the table of runs has columns, or they say nothing.
_IN_COLUMNS = ("choices.", "seed", "eta", "loss.eta", "divergence", "loss.divergence", "loss._", "beta", "loss.beta")


def _run_rows(frames: Frames) -> Iterator[dict[str, Any]]:
    keys = differing(frames, _IN_COLUMNS)
    method = {i: a.method for a in arms(frames) for i in a.run_ids}
    for run, row in zip(frames.rows, records(frames.runs), strict=True):
        state = run.state if row["cause"] in ("", "ok") else f"{run.state}: {row['cause']}"
        planned = f"/{row['steps']:.0f}" if math.isfinite(row["steps"]) else ""
        yield {
            "name": run.name + (f" (study {run.study})" if run.borrowed else ""),
            "run_id": run.run_id,
            "method": method.get(run.run_id, run.loss),
            "eta": _said(run.eta),
            "seed": _said(row["seed"]),
            "state": run.state,
            "told": state,
            "message": str(row["message"])[:300],
            "step": f"{frames.digest.last(run.run_id)}{planned}",
            "differs": describe(run, keys),
        }


def _said(value: float) -> str:
    return f"{value:g}" if math.isfinite(value) else ""
