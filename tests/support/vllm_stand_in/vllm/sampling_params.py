"""Stand-in for `vllm.sampling_params`."""


class RequestOutputKind:
    FINAL_ONLY = 2
