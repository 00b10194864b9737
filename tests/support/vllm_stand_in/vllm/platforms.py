"""As of vLLM, on a GPU."""


class _Cuda:
    def is_cpu(self) -> bool:
        return False


current_platform = _Cuda()
