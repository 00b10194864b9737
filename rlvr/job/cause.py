"""The cause (rlvr/ledger/cause.py) of an exception: the one it carries, or one by its class or message."""

import re
from collections.abc import Mapping

import torch
import torch.distributed as dist

from rlvr.config.checks import component_error
from rlvr.ledger import cause
from rlvr.ledger.cause import Cause

# Classes of torch and Python, which carry no cause. The first match in the exception's `__mro__` counts: a UnicodeError
# is a ValueError.
_CAUSES: Mapping[type[BaseException], Cause] = {
    torch.OutOfMemoryError: Cause.GPU_OOM,
    MemoryError: Cause.HOST_OOM,
    FloatingPointError: Cause.DIVERGED,
    ValueError: Cause.USER_ERROR,
}
# Messages of GPU libraries for a lack of GPU memory, in errors of other classes.
_NO_GPU_MEMORY = re.compile(
    r"(CUDA|Cuda|NCCL|cuDNN).*out of memory|(CUBLAS|CUDNN|CUSOLVER)_STATUS_ALLOC_FAILED"
    r"|CUBLAS_STATUS_NOT_INITIALIZED.*cublasCreate",  # a thread's first handle found no room
    re.DOTALL,
)
_OF_A_GPU = (torch.AcceleratorError, dist.DistBackendError)


def cause_of(error: BaseException) -> Cause:
    """The cause of an exception; ERROR if it neither carries a cause nor is of a class above.

    Hydra wraps the error that a component raises while it is built: the component's error counts.
    """
    error = component_error(error)
    carried = cause.cause_of(error)
    if carried is not Cause.ERROR:
        return carried
    if (type(error) is RuntimeError or isinstance(error, _OF_A_GPU)) and _NO_GPU_MEMORY.search(str(error)):
        return Cause.GPU_OOM
    return next((_CAUSES[cls] for cls in type(error).__mro__ if cls in _CAUSES), Cause.ERROR)
