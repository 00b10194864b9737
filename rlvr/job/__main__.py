"""`python -m rlvr.job`: see rlvr/job/process.py."""

import gc
import sys

# transformers imports both wherever they are installed, for what no policy does (assisted generation, losses of object
# detection): a fifth of what a run takes to start.
UNUSED = ("sklearn", "scipy")


def _main() -> None:
    gc.disable()  # modules are no garbage: collections take an eighth of what is left
    sys.modules.update(dict.fromkeys(UNUSED))  # type: ignore[arg-type] - None: not to be had
    try:
        from rlvr.job.process import main
    finally:
        gc.enable()
        gc.freeze()  # later ones pass over them, too
        for name in UNUSED:
            del sys.modules[name]  # a task may import them
    main()


if __name__ == "__main__":
    _main()
