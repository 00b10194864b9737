"""GPUs as CUDA_VISIBLE_DEVICES names them. Without torch, which would initialise them."""


def named_gpus(visible: str) -> list[str]:
    """The GPUs in a value of CUDA_VISIBLE_DEVICES, by index or identifier; none in -1 or SLURM's NoDevFiles."""
    names = [word.strip() for word in visible.split(",")]
    return [name for name in names if name[:1].isdigit() or name.startswith(("GPU-", "MIG-"))]
