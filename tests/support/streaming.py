"""An engine that takes new weights while it samples, between two groups; without vLLM."""

import threading
from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor

from rlvr.records import Completion, Request, Sampling, Supply
from rlvr.rollout.native import NativeEngine


class StreamingNative(NativeEngine):
    """The native engine, used by one thread at a time; another thread may get its turn after each group."""

    def __init__(self, *arguments: Any, **knobs: Any) -> None:
        super().__init__(*arguments, **knobs)
        self.version, self._turn = 0, threading.Lock()

    def sync(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        with self._turn:
            super().sync(weights)
            self.version += 1

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[tuple[Completion, ...]]:
        with self._turn:
            return super().generate(requests, sampling)

    def generate_stream(self, supply: Supply) -> None:
        while not supply.enough:
            begun = supply.begin(1, self.version)
            if not begun:
                supply.wait()
            for row, request, sampling in begun:
                with self._turn:
                    (group,), version = super().generate([request], sampling), self.version
                supply.deliver(row, group, version)
