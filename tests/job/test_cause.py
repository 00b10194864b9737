"""Exceptions of torch and Python cannot carry a cause: it is derived from their class or message."""

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hydra.errors import InstantiationException
from hydra.utils import instantiate

from rlvr.job.cause import cause_of
from rlvr.rollout.child import EngineLost
from rlvr.trainer.diverged import Diverged


def test_an_exception_has_the_cause_of_its_nearest_named_class_but_not_of_a_mere_namesake() -> None:
    own = type("OutOfMemoryError", (torch.OutOfMemoryError,), {})
    namesake = type("OutOfMemoryError", (RuntimeError,), {})
    raised = [own(), MemoryError(), Diverged(), UnicodeError(), ZeroDivisionError(), KeyboardInterrupt(), namesake()]
    actual = [cause_of(error).value for error in raised]
    assert actual == ["gpu_oom", "host_oom", "diverged", "user_error", "error", "error", "error"]
    with pytest.raises(MemoryError) as error:
        np.empty(1 << 55, dtype=np.int8)
    assert cause_of(error.value).value == "host_oom"


def out_of_memory() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory")


def test_what_a_component_raises_while_it_is_built_counts_and_not_hydras_wrapping() -> None:
    for component, cause in (
        ({"_target_": "builtins.int", "_args_": ["seven"]}, "user_error"),
        ({"_target_": f"{__name__}.out_of_memory"}, "gpu_oom"),
        ({"_target_": "builtins.dict", "of": {"_target_": f"{__name__}.out_of_memory"}}, "gpu_oom"),
        ({"_target_": "builtins.divmod", "_args_": [1, 0]}, "error"),
        ({"_target_": f"{__name__}.is_not_there"}, "error"),
    ):
        with pytest.raises(InstantiationException) as error:
            instantiate(component)
        assert cause_of(error.value).value == cause, component


def test_a_gpu_without_memory_is_known_by_what_its_libraries_say() -> None:
    for error, cause in (
        (torch.AcceleratorError("CUDA error: out of memory"), "gpu_oom"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), "gpu_oom"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"), "gpu_oom"),
        (dist.DistBackendError("NCCL error: unhandled cuda error\nCuda failure 2 'out of memory'"), "gpu_oom"),
        (torch.AcceleratorError("CUDA error: device-side assert triggered"), "error"),
        (EngineLost("vLLM was lost: CUDA out of memory"), "node"),  # fewer tokens in the trainer would not help it
        (dist.DistBackendError("NCCL communicator was aborted on rank 1"), "error"),
    ):
        assert cause_of(error).value == cause, error
