"""`python -m rlvr.job`: see rlvr/job/process.py."""

import gc


def _main() -> None:
    gc.disable()  # imported modules are never freed: collections would take an eighth of the remaining time
    from rlvr.job.process import main

    gc.enable()
    gc.freeze()  # later collections skip the modules, too
    main()


if __name__ == "__main__":
    _main()
