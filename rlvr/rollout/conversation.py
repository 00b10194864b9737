"""Several threads talk to one process: each asks, and gets the answers to what it has asked itself."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rlvr.rollout.child import Lost, Process
from rlvr.rollout.vllm_server import Arrays

PATIENCE_S = 5.0
Message = tuple[dict[str, Any], Arrays]


class Conversation:
    """Messages of a process that names in each answer, as `topic`, the topic of what it answers.

    Of the threads that wait for an answer one reads, for all of them. Once the process is lost, it is for all.
    """

    def __init__(self, process: Process) -> None:
        self.process = process
        self.version = 0  # of the newest weights that it was sent, or is being sent
        self.begins_with = 0  # of the oldest that what it is asked next may begin with
        self._numbers = itertools.count(1)
        self._sending = threading.Lock()
        self._changed = threading.Condition()
        self._unread: dict[int, deque[Message]] = {}
        self._reading, self._lost = False, ""

    @contextmanager
    def topic(self) -> Iterator[Topic]:
        """One to ask about. Answers that come after it was left are dropped."""
        number = next(self._numbers)
        with self._changed:
            self._unread[number] = deque()
        try:
            yield Topic(self, number)
        finally:
            with self._changed:
                del self._unread[number]

    def send(self, topic: int, header: dict[str, Any], arrays: Arrays, timeout_s: float) -> None:
        with self._sending:
            self.process.send({**header, "topic": topic}, arrays, timeout_s)

    def receive(self, topic: int, timeout_s: float) -> Message:
        """The next answer. Raises Lost if the process dies, or says nothing to anybody for `timeout_s`."""
        own = self._unread[topic]
        while True:
            with self._changed:
                self._changed.wait_for(lambda: own or self._lost or not self._reading)
                if own:
                    return own.popleft()
                if self._lost:
                    raise Lost(self._lost)
                self._reading = True
            self._read(timeout_s)

    def _read(self, timeout_s: float) -> None:
        """One message, for whoever has asked."""
        message, lost = None, ""
        try:
            message = self.process.receive(timeout_s)
        except Lost as error:
            lost = str(error) or "it is lost"
        finally:
            with self._changed:
                self._reading, self._lost = False, lost
                if message is not None and message[0]["topic"] in self._unread:
                    self._unread[message[0]["topic"]].append(message)
                self._changed.notify_all()

    def end(self) -> int:
        """Kill the process, once nobody reads from it. Returns its exit status."""
        with self._changed:
            self._changed.wait_for(lambda: not self._reading, PATIENCE_S)
            self._lost = self._lost or "it was ended"
            self._changed.notify_all()
        return self.process.kill()


@dataclass(frozen=True)
class Topic:
    """What one thread asks, and the answers to it."""

    conversation: Conversation
    number: int

    def send(self, header: dict[str, Any], arrays: Arrays, timeout_s: float) -> None:
        self.conversation.send(self.number, header, arrays, timeout_s)

    def receive(self, timeout_s: float) -> Message:
        return self.conversation.receive(self.number, timeout_s)
