"""Right answers of two policies in the plane of their principal components (PACS, arXiv:2509.02522, Figure 5b).

Each problem has its own plane, fitted to the right answers of all policies together after the mean of each policy was
subtracted: the figure shows how far apart the answers of a policy are, not how far apart the policies are.
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.figure import Figure
from numpy.typing import NDArray

from analysis.frames.frames import Frames
from analysis.report import style
from analysis.report.lines import legend
from analysis.report.looks import numbered
from analysis.scores.policy_evaluations import evaluations, label
from rlvr.ledger import layout

QUESTION = "How far apart do the right answers of a policy lie?"
PANELS, LEAST = 6, 4  # problems shown, and right answers of each policy that a problem is shown with

Array = NDArray[np.float64]


def figure(frames: Frames) -> Figure | None:
    """None unless the right answers of some problem were embedded."""
    embeddings = _embeddings(frames)
    shown = _problems(embeddings)
    return style.with_style(lambda: _draw(embeddings, shown)) if shown else None


def _embeddings(frames: Frames) -> dict[str, pd.DataFrame]:
    """By policy, the embeddings of its first seed that has some, all of the same embedder."""
    by_policy: dict[str, pd.DataFrame] = {}
    embedder_file = ""
    if frames.home is None:
        return by_policy
    for arm in evaluations(frames):
        for run in arm.runs:
            files = {file.name: file for file in layout.all_embeddings(layout.run(frames.home, run.run_id))}
            embedder_file = embedder_file or next(iter(files), "")  # the file is named after its embedder
            if embedder_file in files and label(arm) not in by_policy:
                by_policy[label(arm)] = pd.read_parquet(files[embedder_file])
    return by_policy


def _problems(embeddings: Mapping[str, pd.DataFrame]) -> list[tuple[str, str]]:
    """The first PANELS problems, as (source, id), to which every policy has at least LEAST right answers."""
    if not embeddings:
        return []
    sizes = [frame.groupby(["source", "problem_id"], sort=False).size() for frame in embeddings.values()]
    enough = [{key for key, size in policy_sizes.items() if size >= LEAST} for policy_sizes in sizes]
    return [key for key in sizes[0].index if all(key in keys for keys in enough)][:PANELS]


def projected(groups: Mapping[str, Array]) -> dict[str, Array]:
    """By policy, [n, 2]: its centred embeddings [n, d] along the two directions in which those of all vary most."""
    centred = {name: rows - rows.mean(0) for name, rows in groups.items()}
    _, _, directions = np.linalg.svd(np.concatenate(list(centred.values())), full_matrices=False)
    return {name: rows @ directions[:2].T for name, rows in centred.items()}


def _draw(embeddings: Mapping[str, pd.DataFrame], shown: list[tuple[str, str]]) -> Figure:
    drawing, grid = style.sheet(len(shown), min(3, len(shown)), height=2.3, more=0.35)
    handles: dict[str, Artist] = {}
    for axes, (source, problem) in zip(grid, shown, strict=True):
        groups = {
            name: np.array(
                frame.loc[(frame["source"] == source) & (frame["problem_id"] == problem), "embedding"].tolist(), float
            )
            for name, frame in embeddings.items()
        }
        for number, (name, points) in enumerate(projected(groups).items()):
            look = numbered(number)
            handles[name] = axes.scatter(
                points[:, 0], points[:, 1], color=look.colour, marker=look.marker, s=12, alpha=0.7
            )
        axes.set_title(problem, loc="left")
        # Otherwise rounding errors fill an axis along which nothing varies.
        axes.set_aspect("equal", adjustable="datalim")
    legend(drawing, handles)
    return drawing
