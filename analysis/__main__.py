"""`python -m analysis`: see analysis/command.py."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path


def main(arguments: list[str] | None = None) -> int:
    """Exit codes: those of analysis/command.py; 2 if Python imports another `rlvr` than the one beside this package."""
    spec, expected = find_spec("rlvr"), Path(__file__).resolve().parents[1] / "rlvr"
    if spec is not None and spec.origin is not None and Path(spec.origin).resolve().parent != expected:
        print(
            f"analysis: `import rlvr` finds {spec.origin}, not {expected}. Rename that file, or use `rlvr report`, "
            "which does not search the working directory.",
            file=sys.stderr,
        )
        return 2
    from analysis import command  # after the check above, because it imports `rlvr`
    from analysis.serve import sweeps_process

    arguments = sys.argv[1:] if arguments is None else arguments
    code = command.main(arguments)
    if code != command.BAD_INPUT and arguments[:1] not in command.VERBS:  # the verbs only read or write files
        options = command.read_options(arguments)
        if not options.files:
            home = [] if options.home is None else ["--home", str(options.home)]
            silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            sweeps_process(["sync", "--background", *home], **silent)  # ended runs that MLflow lacks
    return code


if __name__ == "__main__":
    sys.exit(main())
