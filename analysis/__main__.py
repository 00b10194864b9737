"""`python -m analysis`: see analysis/command.py."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path


def main(arguments: list[str] | None = None) -> int:
    """Exit codes: those of analysis/command.py; 2 where Python finds another `rlvr` than the one beside us."""
    spec, ours = find_spec("rlvr"), Path(__file__).resolve().parents[1] / "rlvr"
    if spec is not None and spec.origin is not None and Path(spec.origin).resolve().parent != ours:
        print(
            f"analysis: `import rlvr` finds {spec.origin}, not {ours}. Rename that file, or use `rlvr report`, which "
            "does not search the working directory.",
            file=sys.stderr,
        )
        return 2
    from analysis import command  # not above: it imports `rlvr`

    return command.main(arguments)


if __name__ == "__main__":
    sys.exit(main())
