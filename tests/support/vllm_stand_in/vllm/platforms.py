"""Stand-in for `vllm.platforms` on a GPU."""

from __future__ import annotations

import torch


class _Cuda:
    device_type = "cuda" if torch.cuda.is_available() else "cpu"  # where weights arrive: the fake GPU is not in here

    def is_cpu(self) -> bool:
        return False


current_platform = _Cuda()
