"""A study's report: tables, figures and one self-contained page, put in place in one step."""

from __future__ import annotations

import base64
import importlib
import math
import pkgutil
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from jinja2 import Environment, FileSystemLoader
from matplotlib.figure import Figure

from analysis import figures as figure_room
from analysis import tables as table_room
from analysis.frames.load import Frames
from analysis.report import style
from analysis.report.grid import grids, published_grids
from analysis.report.render import latex, markdown, to_csv
from analysis.report.table import Table
from analysis.scores.arms import arms, describe, differing
from rlvr.ledger import layout
from rlvr.ledger.cause import State
from rlvr.ledger.files import whole

PAGE = Path(__file__).parent / "page.html"


@dataclass(frozen=True)
class Drawn:
    name: str
    question: str
    figure: Figure


@dataclass(frozen=True)
class Content:
    """What a report holds; `skipped` says which tables and figures had no run to show."""

    tables: tuple[Table, ...]
    figures: tuple[Drawn, ...]
    skipped: tuple[str, ...]


def available(room: Any) -> dict[str, ModuleType]:
    """The tables or figures there are: every module of the folder. Adding one is adding a file."""
    names = sorted(m.name for m in pkgutil.iter_modules(room.__path__))
    return {name: importlib.import_module(f"{room.__name__}.{name}") for name in names}


def build(frames: Frames, *, only: Sequence[str] | None = None, with_figures: bool = True) -> Content:
    """Make every table (`only`: those named) and figure that has runs. Raises LookupError for an unknown name."""
    known = available(table_room)
    for name in only or ():
        if name not in known:
            raise LookupError(f"--tables {name}: there is no such table. Tables: {', '.join(known)}.")
    tables, drawn, skipped = [], [], []
    for name in only or known:
        made = known[name].table(frames)
        tables += [made] if made is not None else []
        skipped += [] if made is not None else [f"table {name}: no run of this study belongs in it"]
    for name, module in (available(figure_room) if with_figures else {}).items():
        figure = module.figure(frames)
        drawn += [Drawn(name, module.QUESTION, figure)] if figure is not None else []
        skipped += [] if figure is not None else [f"figure {name}: no run of this study belongs in it"]
    return Content(tuple(tables), tuple(drawn), tuple(skipped))


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
        differences=_differences(frames),
        runs=list(_run_rows(frames)),
        tables=[(t, grids(t), [(p, published_grids(p)) for p in t.published]) for t in content.tables],
        figures={d.name: (d, images[d.name]) for d in content.figures},
        unplaced=[d.name for d in content.figures if d.name not in {t.name for t in content.tables}],
        notes=(*frames.notes, *content.skipped),
        browse=browse_command(frames),
    )


def browse_command(frames: Frames) -> str:
    """How to look at the runs in MLflow's own pages."""
    if frames.origin.startswith("http"):
        return frames.origin
    database = layout.mlflow_database((frames.home or Path()).resolve())
    where = frames.origin if ":" in frames.origin else f"sqlite:///{database}"
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


def _differences(frames: Frames) -> list[str]:
    """The config keys in which the runs differ, without those that the table of runs has columns for."""
    skip = (
        "config.choices.",
        "config.seed",
        "config.eta",
        "config.loss.eta",
        "config.divergence",
        "config.loss.divergence",
        "config.loss._",
        "config.beta",
        "config.loss.beta",
    )
    columns = [c for c in frames.runs.columns if c.startswith("config.") and not c.startswith(skip)]
    return differing(frames.runs, columns)


def _run_rows(frames: Frames) -> Iterator[dict[str, Any]]:
    columns = _differences(frames)
    method = {i: a.method for a in arms(frames.runs) for i in a.run_ids}
    steps = frames.metrics.groupby("run_id")["step"].max() if len(frames.metrics) else {}
    for run in frames.runs.to_dict("records"):
        state = run["state"] if run["cause"] in ("", "ok") else f"{run['state']}: {run['cause']}"
        planned = f"/{run['steps']:.0f}" if math.isfinite(run["steps"]) else ""
        yield {
            "name": run["name"] + (f" (study {run['study']})" if run["reference"] else ""),
            "run_id": run["run_id"],
            "method": method.get(run["run_id"], run["loss"]),
            "eta": _said(run["eta"]),
            "seed": _said(run["seed"]),
            "state": run["state"],
            "told": state,
            "message": str(run["message"])[:300],
            "step": f"{steps.get(run['run_id'], 0)}{planned}",
            "differs": describe(run, columns),
        }


def _said(value: float) -> str:
    return f"{value:g}" if math.isfinite(value) else ""
