"""`python -m tests.support.fake_cuda LIBRARY MODULE ARGUMENTS`: runs a module as a script, on the fake CUDA."""

from __future__ import annotations

import ctypes
import runpy
import sys
import warnings


def main() -> None:
    library, module, *arguments = sys.argv[1:]
    assert "torch" not in sys.modules, "torch looks for its devices once: the library must be loaded first"
    ctypes.CDLL(library)
    warnings.filterwarnings("ignore")
    from tests.support.fake_cuda import patches

    patches.install()
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
