"""`python -m rlvr.job`: see rlvr/job/process.py."""

import sys

# transformers imports both wherever they are installed, for what no policy does (assisted generation, losses of object
# detection): a fifth of what a run takes to start.
_UNUSED = dict.fromkeys(("sklearn", "scipy"))

sys.modules.update(_UNUSED)  # type: ignore[arg-type] - None: not to be had
try:
    from rlvr.job.process import main
finally:
    for _name in _UNUSED:
        del sys.modules[_name]  # a task may import them

if __name__ == "__main__":
    main()
