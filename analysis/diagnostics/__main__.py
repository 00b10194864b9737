"""`python -m analysis.diagnostics NAME FOLDER`: draw what a command of rlvr.diagnostics measured.

NAME is weights, replay or bandit_landscape. FOLDER holds its CSV files; NAME.png and NAME.pdf are put beside them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from analysis.diagnostics import landscape, replay, weights
from analysis.report.style import encode


def _weights(read: Callable[[str], pd.DataFrame]) -> Figure:
    return weights.drawn(read("weights"))


def _replay(read: Callable[[str], pd.DataFrame]) -> Figure:
    return replay.draw(read("cosines").set_index("objective"), read("weights"), read("prompts"))


def _landscape(read: Callable[[str], pd.DataFrame]) -> Figure:
    return landscape.draw(*(read(table) for table in ("arms", "landscape", "paths", "ends")))


DRAWN = {"weights": _weights, "replay": _replay, "bandit_landscape": _landscape}


def main(arguments: Sequence[str]) -> int:
    """Exit codes: 0 done, 2 bad input."""
    if len(arguments) != 2 or arguments[0] not in DRAWN:
        print(__doc__)
        return 2
    name, folder = arguments[0], Path(arguments[1])

    def read(table: str) -> pd.DataFrame:
        return pd.read_csv(folder / f"{table}.csv", float_precision="round_trip")

    figure = DRAWN[name](read)
    for kind in ("png", "pdf"):
        (folder / f"{name}.{kind}").write_bytes(encode(figure, kind))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
