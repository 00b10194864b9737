"""`python -m analysis`: see analysis/command.py."""

from __future__ import annotations

import os
import subprocess
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

    arguments = sys.argv[1:] if arguments is None else arguments
    code = command.main(arguments)
    if code != command.BAD_INPUT and arguments[:1] not in command.VERBS:  # those read or write files alone
        options = command.read_options(arguments)
        if not options.files:
            _ship_what_is_left(ours.parent, [] if options.home is None else ["--home", str(options.home)])
    return code


def _ship_what_is_left(root: Path, options: list[str]) -> None:
    """Ended runs that MLflow has not heard of are shipped, beside the report. root: where `sweeps` lies, as we do."""
    subprocess.Popen(
        [sys.executable, "-P", "-m", "sweeps", "sync", "--background", *options],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


if __name__ == "__main__":
    sys.exit(main())
