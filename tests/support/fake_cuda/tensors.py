"""Tensors of the fake GPU: wrappers around CPU tensors that contain their numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing

from tests.support.fake_cuda import record

aten = torch.ops.aten
Arguments = Sequence[Any]
Options = dict[str, Any]

# Operations for which the host needs a value, or a size that depends on values, and so waits for the GPU.
WAITS = {
    *(aten._local_scalar_dense.default, aten._unique2.default, aten.allclose.default, aten.bincount.default),
    *(aten.equal.default, aten.is_nonzero.default, aten.masked_select.default, aten.nonzero.default),
    *(aten.repeat_interleave.Tensor, aten.unique_consecutive.default, aten.unique_dim.default),
}
MOVES = {aten.copy_.default, aten._to_copy.default, aten._foreach_copy_.default, aten.set_.source_Tensor}
INDEXES = {
    *(aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default),
    *(aten._unsafe_index.Tensor, aten._unsafe_index_put.default),
}
COLLECTIVES = {"c10d", "_c10d_functional", "prim"}  # namespaces


class CudaTensor(Tensor):
    """A tensor that reports a CUDA device."""

    numbers: Tensor  # on the CPU

    @staticmethod
    def __new__(cls, numbers: Tensor, device: torch.device) -> CudaTensor:
        with torch.inference_mode(False):  # a view of a weight is a normal tensor, tracked by autograd
            wrapper = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
                cls,
                numbers.size(),
                strides=numbers.stride(),
                storage_offset=numbers.storage_offset(),
                dtype=numbers.dtype,
                layout=numbers.layout,
                device=device,
                requires_grad=False,
            )
        wrapper.numbers = numbers
        return wrapper

    def __repr__(self, *, tensor_contents: object = None) -> str:
        return f"CudaTensor({self.numbers!r}, device={self.device})"

    def tolist(self) -> Any:
        record.wait("tolist")
        return self.numbers.tolist()

    def numpy(self, *_: Any, **__: Any) -> Any:
        raise TypeError(f"can't convert {self.device} device type tensor to numpy")

    __array__ = numpy  # type: ignore[assignment]

    def data_ptr(self) -> int:
        return self.numbers.data_ptr()

    def pin_memory(self, *_: Any) -> Tensor:
        raise RuntimeError("cannot pin a tensor of a GPU: only those of the CPU")

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        copied: Tensor = CudaTensor(self.numbers.detach().clone(), self.device)
        if isinstance(self, torch.nn.Parameter):
            copied = torch.nn.Parameter(copied)
        memo[id(self)] = copied.requires_grad_(self.requires_grad)
        return memo[id(self)]

    def __tensor_flatten__(self) -> tuple[list[str], torch.device]:
        return ["numbers"], self.device

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], device: torch.device, *_: Any) -> CudaTensor:
        return CudaTensor(inner["numbers"], device)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Arguments = (), kwargs: Options | None = None) -> Any:
        return dispatch(func, types, args, kwargs or {})


class OnCuda(TorchDispatchMode):
    """Context in which tensors can be created on and moved to the fake devices."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Arguments = (), kwargs: Options | None = None) -> Any:
        return dispatch(func, types, args, kwargs or {})


ON_CUDA = OnCuda()


def numbers_of(x: Any) -> Any:
    return x.numbers if isinstance(x, CudaTensor) else x


def mapped(function: Callable[[Any], Any], x: Any) -> Any:
    """x with `function` applied to everything in its lists, tuples and dicts: pytree's `tree_map`, ten times faster."""
    if isinstance(x, list | tuple):
        return type(x)([mapped(function, part) for part in x])
    if isinstance(x, dict):
        return {name: mapped(function, part) for name, part in x.items()}
    return function(x)


def tensors_in(x: Any) -> Iterator[Tensor]:
    """The tensors in lists, tuples and dicts."""
    if isinstance(x, Tensor):
        yield x
    elif isinstance(x, list | tuple | dict):
        for part in x.values() if isinstance(x, dict) else x:
            yield from tensors_in(part)


def of_cpu(x: Any) -> bool:
    return isinstance(x, Tensor) and not isinstance(x, CudaTensor)


def dispatch(func: Any, types: Any, args: Arguments, kwargs: Options) -> Any:
    """Executes every operation of torch."""
    if any(t.__name__ == "FakeTensor" for t in types):
        return func(*args, **kwargs)  # shapes of DTensors
    if any(issubclass(t, Tensor) and t not in (Tensor, torch.nn.Parameter, CudaTensor) for t in types):
        return NotImplemented  # DTensor handles the operation first
    tensors = list(tensors_in((args, kwargs)))
    wrapped = [x for x in tensors if isinstance(x, CudaTensor)]
    target = torch.device(kwargs["device"]) if kwargs.get("device") is not None else None
    onto_cuda = target is not None and target.type == "cuda"
    if not wrapped and not onto_cuda:
        return func(*args, **kwargs)
    if torch.is_inference_mode_enabled() and func._can_decompose():  # outside inference mode autograd decomposes it
        with ON_CUDA:
            decomposed = func.decompose(*args, **kwargs)
        if decomposed is not NotImplemented:
            return decomposed
    _refuse_two_devices(func, args, tensors, wrapped)
    _count_waits(func, args, kwargs, target)
    device = wrapped[0].device if wrapped else None
    if onto_cuda:
        assert target is not None
        index = torch.accelerator.current_device_index() if target.index is None else target.index
        device = torch.device("cuda", index)
    plain_args, plain_kwargs = mapped(numbers_of, (args, kwargs))
    if onto_cuda:
        plain_kwargs["device"] = torch.device("cpu")
    if plain_kwargs.get("pin_memory"):
        plain_kwargs["pin_memory"] = False
    result = (_rows_added if func is aten.index_add.default else func)(*plain_args, **plain_kwargs)
    if target is not None and not onto_cuda:
        return result
    if func is aten.copy_.default and of_cpu(args[0]):
        return args[0]
    assert device is not None
    return _wrapped(func, args, kwargs, result, wrapped, device)


def _rows_added(total: Tensor, dim: int, index: Tensor, rows: Tensor) -> Tensor:
    """`index_add` row by row, with each sum rounded: a GPU adds atomically, in the precision of the numbers."""
    total = total.clone()
    for place, row in zip(index.tolist(), rows.unbind(dim), strict=True):
        total.select(dim, place).add_(row)
    return total


def _wrapped(
    func: Any, args: Arguments, kwargs: Options, result: Any, wrapped: list[CudaTensor], device: torch.device
) -> Any:
    """The result on `device`; tensors that were inputs keep their wrappers."""
    wrapper_of = {id(x.numbers): x for x in wrapped}

    def wrap(x: Any) -> Any:
        if not of_cpu(x) or x.is_meta:
            return x
        return wrapper_of[id(x)] if id(x) in wrapper_of else CudaTensor(x, device)

    out = mapped(wrap, result)
    if not wrapped or func.namespace in COLLECTIVES:
        return out
    return return_and_correct_aliasing(func, args, kwargs, out)  # type: ignore[arg-type]


def _refuse_two_devices(func: Any, args: Arguments, tensors: list[Tensor], wrapped: list[CudaTensor]) -> None:
    """Raises RuntimeError as on a GPU. CPU tensors are allowed if they are scalars or indices."""
    if not wrapped or func in MOVES or func.namespace in COLLECTIVES:
        return
    devices = {x.device for x in wrapped}
    indices = [id(i) for i in args[1]] if func in INDEXES else []
    on_cpu = [x for x in tensors if of_cpu(x) and x.dim() > 0 and not x.is_meta and id(x) not in indices]
    if func in INDEXES and any(of_cpu(i) for i in args[1]):
        record.wait(f"{func} by indices of the CPU")
    if len(devices) > 1 or on_cpu:
        raise RuntimeError(
            f"Expected all tensors to be on the same device: {func} got {sorted(map(str, devices))} and "
            f"{len(on_cpu)} of the CPU (fake CUDA)"
        )


def _count_waits(func: Any, args: Arguments, kwargs: Options, target: torch.device | None) -> None:
    by_mask = func in INDEXES and any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1])
    if func in WAITS or by_mask:
        record.wait(str(func))
    if func is aten.copy_.default and of_cpu(args[0]) != of_cpu(args[1]):
        in_background = kwargs.get("non_blocking") or (len(args) > 2 and args[2])
        if not _in_background(args[1], in_background):
            record.wait(str(func))
    crosses = target is not None and of_cpu(args[0]) == (target.type == "cuda") if args else False
    if func is aten._to_copy.default and crosses and not _in_background(args[0], kwargs.get("non_blocking")):
        record.wait(str(func))


PINNED: set[int] = set()  # addresses of pinned memory


def _in_background(source: Tensor, non_blocking: Any) -> bool:
    """Whether a copy between the devices leaves the host free: onto the GPU only from pinned memory."""
    return bool(non_blocking) and (not of_cpu(source) or source.untyped_storage().data_ptr() in PINNED)
