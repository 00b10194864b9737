"""What a home contains, for tests that look while a launch still writes into it."""

import json
from pathlib import Path

from rlvr.ledger import layout


def runs(home: Path) -> dict[str, Path]:
    """The directories of the runs by their names, sorted; without those that are being written."""
    run_dirs = (layout.run(home, run_id) for run_id in layout.run_ids(home))
    by_name = {
        json.loads(layout.info(path).read_text())["name"]: path for path in run_dirs if layout.info(path).exists()
    }
    return dict(sorted(by_name.items()))
