"""Stand-in for `vllm.platforms` on a GPU."""


class _Cuda:
    device_type = "cpu"  # where its tensors are

    def is_cpu(self) -> bool:
        return False


current_platform = _Cuda()
