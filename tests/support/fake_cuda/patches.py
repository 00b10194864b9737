"""Replaces the parts of torch that would call CUDA's own libraries."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import types
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint import _state_dict_stager
from torch.distributed.fsdp._fully_shard import _fsdp_init, _fsdp_param, _fsdp_param_group
from torch.nn import functional
from torch.nn.attention import varlen

from tests.support.fake_cuda import record
from tests.support.fake_cuda.tensors import ON_CUDA, PINNED, CudaTensor, numbers_of

HALF = (torch.float16, torch.bfloat16)


def install() -> None:
    """Patch torch in this process. The library of device.cpp must be loaded, and torch not used yet."""
    torch._C._set_only_lift_cpu_tensors(True)
    ON_CUDA.__enter__()
    _cuda()
    _memory()
    _collectives()
    _sharding()
    _attention()
    torch.mm, torch.bmm, torch.addmm = (_product(function) for function in (torch.mm, torch.bmm, torch.addmm))  # type: ignore[assignment]


def _cuda() -> None:
    cuda: Any = torch.cuda
    cuda.is_available = cuda.is_initialized = lambda: True
    cuda.device_count = lambda: int(os.environ.get("FAKE_GPUS", "8"))
    cuda.current_device = torch.accelerator.current_device_index
    cuda._lazy_init = cuda.empty_cache = cuda.reset_peak_memory_stats = lambda *_: None
    cuda.synchronize = lambda *_: record.wait("cuda.synchronize")
    cuda.get_rng_state = lambda *_: torch.get_rng_state()
    cuda.set_rng_state = cuda.manual_seed = cuda.manual_seed_all = lambda *_, **__: None
    cuda.get_device_capability = lambda *_: (9, 0)
    cuda.get_device_name = lambda *_: "NVIDIA H100 80GB HBM3"
    cuda.get_device_properties = lambda *_: types.SimpleNamespace(name="none", total_memory=80 << 30)
    cuda.is_bf16_supported = lambda *_, **__: True
    cuda.mem_get_info, cuda.memory_reserved = lambda *_: (70 << 30, 80 << 30), lambda *_: 0
    cuda.max_memory_allocated = lambda *_: 1 << 30
    cuda.set_device = _set_device
    cuda.Stream, cuda.Event, cuda.stream = _Stream, _Event, _stream
    cuda.current_stream = cuda.default_stream = lambda *_: torch.accelerator.current_stream()


def _set_device(device: Any) -> None:
    index = device if isinstance(device, int) else torch.device(device).index or 0
    if index >= torch.cuda.device_count():
        raise RuntimeError("CUDA error: invalid device ordinal (fake CUDA)")
    torch.accelerator.set_device_index(index)


def _current_device() -> torch.device:
    return torch.device("cuda", torch.accelerator.current_device_index())


class _Stream(torch.Stream):
    def __new__(cls, *_: Any, **__: Any) -> _Stream:
        return super().__new__(cls, device=_current_device(), priority=0)


class _Event(torch.Event):
    def __new__(cls, *_: Any, **__: Any) -> _Event:
        return super().__new__(cls, device=_current_device())

    def record(self, stream: Any = None) -> None:
        super().record(stream or torch.accelerator.current_stream())


@contextlib.contextmanager
def _stream(stream: Any) -> Iterator[None]:
    before = torch.accelerator.current_stream()
    if stream is not None:
        torch.accelerator.set_stream(stream)
    try:
        yield
    finally:
        torch.accelerator.set_stream(before)


def _memory() -> None:
    """Pinned memory is simulated by a copy whose address is kept in PINNED."""

    def pin_memory(self: Tensor, *_: Any) -> Tensor:
        pinned = self.clone()
        storage = pinned.untyped_storage()
        PINNED.add(storage.data_ptr())
        weakref.finalize(pinned, PINNED.discard, storage.data_ptr())
        return pinned

    Tensor.pin_memory = pin_memory  # type: ignore[assignment]


def _collectives() -> None:
    """gloo takes the place of NCCL."""
    init = dist.init_process_group

    @functools.wraps(init)
    def init_process_group(backend: str | None = None, *args: Any, **kwargs: Any) -> None:
        init(backend.replace("nccl", "gloo") if backend else backend, *args, **kwargs)

    dist.init_process_group = dist.distributed_c10d.init_process_group = init_process_group


def _sharding() -> None:
    """FSDP frees memory by resizing storages, here those of the CPU tensors; staging of checkpoints copies them too."""

    def resize(tensor: Tensor, size: int) -> None:
        storage = numbers_of(tensor).untyped_storage()
        if storage.size() != size:
            storage.resize_(size)

    for module in (_fsdp_param, _fsdp_param_group):
        module.alloc_storage = lambda t: resize(t, t.numel() * t.itemsize)  # type: ignore[attr-defined]
        module.free_storage = lambda t: resize(t, 0)  # type: ignore[attr-defined]

    def move(parameters: list[Any], buffers: list[Any], device: torch.device) -> None:
        for tensor in [*parameters, *buffers]:
            if tensor.device == device or tensor.is_meta:
                continue
            with torch.no_grad():
                moved = tensor.to(device)
            if isinstance(tensor, torch.nn.Parameter):
                moved = torch.nn.Parameter(moved, tensor.requires_grad)
            torch.utils.swap_tensors(tensor, moved)

    _fsdp_init._move_states_to_device = move
    torch.__future__.set_swap_module_params_on_conversion(True)
    stager: Any = _state_dict_stager.StateDictStager
    offload = stager._offload_tensor

    def offload_tensor(self: Any, x: Any, memo: Any, non_blocking: bool = False) -> Any:
        if not isinstance(x, CudaTensor):
            return offload(self, x, memo, non_blocking)
        memo[id(x)] = x.numbers.clone()
        return memo[id(x)]

    stager._offload_tensor = offload_tensor


def _attention() -> None:
    """Record the kernel that an H100 would use (aten/src/ATen/native/transformers/cuda/sdp_utils.cpp of torch 2.13)."""
    compute = functional.scaled_dot_product_attention

    @functools.wraps(compute)
    def scaled_dot_product_attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        if isinstance(query, CudaTensor):
            grouped = enable_gqa and query.shape[-3] != key.shape[-3]
            flash = query.dtype in HALF and attn_mask is None and query.shape[-1] <= 256
            name = "flash" if flash else "math" if grouped else "efficient"  # the latter lacks grouped queries
            record.kernels[record.Kernel(name, str(query.dtype))] += 1
        return compute(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)

    functional.scaled_dot_product_attention = scaled_dot_product_attention

    def varlen_attn(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cu_seq_q: Tensor,
        cu_seq_k: Tensor,
        max_q: int,
        max_k: int,
        *,
        scale: float | None = None,
        window_size: tuple[int, int] = (-1, -1),
        enable_gqa: bool = False,
    ) -> Tensor:
        """Attention by sequence, with the last query at the last key. Asserts the conditions of the CUDA kernel."""
        assert query.is_cuda
        assert query.dtype in HALF
        assert window_size == (-1, 0)
        assert cu_seq_q.device == cu_seq_k.device == query.device
        assert cu_seq_q.dtype == cu_seq_k.dtype == torch.int32
        assert enable_gqa or query.shape[1] == key.shape[1]
        q_ends, k_ends = numbers_of(cu_seq_q).tolist(), numbers_of(cu_seq_k).tolist()
        assert q_ends[0] == k_ends[0] == 0
        assert (q_ends[-1], k_ends[-1]) == (len(query), len(key))
        assert max_q >= max(b - a for a, b in itertools.pairwise(q_ends))
        assert max_k >= max(b - a for a, b in itertools.pairwise(k_ends))
        record.kernels[record.Kernel("varlen", str(query.dtype))] += 1
        parts = []
        for (a, b), (c, d) in zip(itertools.pairwise(q_ends), itertools.pairwise(k_ends), strict=True):
            q, k, v = (x.transpose(0, 1).float() for x in (query[a:b], key[c:d], value[c:d]))
            mask = torch.ones(b - a, d - c, dtype=torch.bool, device=query.device).tril(d - c - (b - a))
            parts.append(compute(q[None], k[None], v[None], mask, scale=scale, enable_gqa=True)[0].transpose(0, 1))
        return torch.cat(parts).to(query.dtype)

    varlen.varlen_attn = varlen_attn


def _product(product: Any) -> Any:
    """A product with `out_dtype`, which torch has for cuBLAS, but not for the CPU."""

    @functools.wraps(product)  # the compiler knows each product by its name
    def multiply(
        *factors: Tensor, out_dtype: torch.dtype | None = None, out: Tensor | None = None, **options: Any
    ) -> Tensor:
        into = {} if out is None else {"out": out}
        if out_dtype is None:
            return product(*factors, **into, **options)
        *added_to, a, b = factors
        _refuse_types(added_to, a, b, out_dtype, out)
        return product(*(x.to(out_dtype) for x in factors), **into, **options)

    return multiply


def _refuse_types(added_to: Sequence[Tensor], a: Tensor, b: Tensor, out_dtype: torch.dtype, out: Tensor | None) -> None:
    """Raises RuntimeError as CUDA's mm, bmm and addmm with `out_dtype` (aten/src/ATen/native/cuda/Blas.cpp).

    added_to: the first argument of addmm.
    """
    if not all(x.is_cuda for x in (*added_to, a, b)):
        raise RuntimeError("out_dtype is only supported on CUDA (fake CUDA)")
    if a.dtype != b.dtype:
        raise RuntimeError(f"mat1 and mat2 must have the same dtype, but got {a.dtype} and {b.dtype} (fake CUDA)")
    if out_dtype != a.dtype and not (out_dtype == torch.float32 and a.dtype in HALF):
        raise RuntimeError("out_dtype must be the same as input dtype or fp32 for fp16/bf16 inputs (fake CUDA)")
    if out is not None and out.dtype != out_dtype:
        raise RuntimeError("out_dtype must be the same as the dtype of the provided out tensor (fake CUDA)")
    if any(x.dtype not in (out_dtype, a.dtype) for x in added_to):
        raise RuntimeError("self dtype must match either out_dtype or mat1 dtype (fake CUDA)")
