"""`python -m rlvr.job`: see rlvr/job/process.py."""

import gc
import sys

# transformers imports both if they are installed, for features that no policy uses (assisted generation, losses of
# object detection). Importing them takes a fifth of the time to start a run.
UNUSED = ("sklearn", "scipy")


def _main() -> None:
    gc.disable()  # imported modules are never freed: collections would take an eighth of the remaining time
    sys.modules.update(dict.fromkeys(UNUSED))  # type: ignore[arg-type] - None: an import raises ImportError
    try:
        from rlvr.job.process import main
    finally:
        gc.enable()
        gc.freeze()  # later collections skip the modules, too
        for name in UNUSED:
            del sys.modules[name]  # so that a task can import them
    main()


if __name__ == "__main__":
    _main()
