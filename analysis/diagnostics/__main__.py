"""`python -m analysis.diagnostics NAME FOLDER`: draw what a command of rlvr.diagnostics measured.

NAME is weights, replay or bandit_landscape. FOLDER holds its CSV files; NAME.png and NAME.pdf are put beside them.
"""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from analysis.diagnostics import landscape, replay, weights
from analysis.report.style import save

DRAWN: dict[str, Callable[[Callable[[str], pd.DataFrame]], Figure]] = {
    "weights": lambda read: weights.drawn(read("weights")),
    "replay": lambda read: replay.draw(read("cosines").set_index("objective"), read("weights"), read("prompts")),
    "bandit_landscape": lambda read: landscape.draw(*map(read, ("arms", "landscape", "paths", "ends"))),
}


def main(arguments: Sequence[str]) -> int:
    """Exit codes: 0 done, 2 bad input."""
    if len(arguments) != 2 or arguments[0] not in DRAWN:
        print(__doc__)
        return 2
    name, folder = arguments[0], Path(arguments[1])

    def read(table: str) -> pd.DataFrame:
        return pd.read_csv(folder / f"{table}.csv", float_precision="round_trip")

    save(DRAWN[name](read), folder / name)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
