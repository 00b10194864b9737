"""Environment variables of a vLLM's process, and the GPUs that they may name."""

import os

import torch

from rlvr.rollout.gpu_names import named_gpus


def visible_gpus() -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    names = named_gpus(os.environ.get("CUDA_VISIBLE_DEVICES", ""))
    return names or [str(index) for index in range(torch.cuda.device_count())]


def environment(device: torch.device, *, eager: bool, gpus: int = 1) -> dict[str, str]:
    """The environment of the process: ours but for what makes it a rank, and `gpus` GPUs from the rank's own on."""
    removed = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"}
    prefixes = ("TORCHELASTIC_", "ROLE_", "RAY_")
    removed |= {"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"}  # a sleeping vLLM moves memory by other means
    removed |= {"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "NVIDIA_TF32_OVERRIDE"}  # float32 would be rounded to 10 bits
    kept = {k: v for k, v in os.environ.items() if k not in removed and not k.startswith(prefixes)}
    chosen = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # a single process, so that killing it ends all of vLLM
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # by default every rank's threads are bound to the same cores
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        # by default its attention rounds float32 to 10 bits: errors of 1e-3 nats and more
        "TRITON_F32_DEFAULT": "ieee",
        "GLOO_SOCKET_IFNAME": "lo",  # the group lies on one node, where the rank's interface may have another name
    }
    if eager:
        chosen["TORCHDYNAMO_DISABLE"] = "1"  # by default small functions are still compiled: 20 s at the first token
    if gpus > 1:  # vLLM has a process for each GPU
        chosen["NCCL_SOCKET_IFNAME"] = "lo"
    if device.type == "cuda":
        first = device.index or 0
        chosen["CUDA_VISIBLE_DEVICES"] = ",".join(visible_gpus()[first : first + gpus])
    return {"VLLM_LOGGING_LEVEL": "ERROR", **kept, **chosen}
