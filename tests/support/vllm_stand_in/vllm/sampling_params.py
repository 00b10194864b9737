"""As of vLLM."""


class RequestOutputKind:
    FINAL_ONLY = 2
