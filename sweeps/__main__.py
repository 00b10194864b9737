"""`python -m sweeps`: see sweeps/commands.py."""

import sys
from collections.abc import Sequence

from rlvr.config import imports


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit codes: those of sweeps/commands.py; 2 if Python finds another package by the name of one of ours."""
    if problem := imports.hidden_package_message():
        print(f"sweeps: {problem}", file=sys.stderr)
        return 2
    from sweeps import commands  # not above: it imports `slurm`

    return commands.main(arguments)


if __name__ == "__main__":
    sys.exit(main())
