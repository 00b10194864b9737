"""One connection to a child process, shared by several threads: each receives the answers to its own messages."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rlvr.rollout.child import Process, ProcessLost
from rlvr.rollout.vllm_server import Arrays

Message = tuple[dict[str, Any], Arrays]


class Connection:
    """The messages of a process that labels each answer with the `topic` of the message that it answers.

    Of the threads that wait for an answer, one reads on behalf of all. Once the process is lost, all raise ProcessLost.
    """

    def __init__(self, process: Process) -> None:
        self.process = process
        self.version = 0  # of the newest weights that the process has, or is being sent
        self.begins_with = 0  # the oldest weights that the next request may begin with
        self._numbers = itertools.count(1)
        self._send_lock = threading.Lock()
        self._changed = threading.Condition()
        self._unread: dict[int, deque[Message]] = {}
        self._reading, self._lost = False, ""

    @contextmanager
    def topic(self) -> Iterator[Topic]:
        """A new topic. Answers that arrive after the context has ended are dropped."""
        number = next(self._numbers)
        with self._changed:
            self._unread[number] = deque()
        try:
            yield Topic(self, number)
        finally:
            with self._changed:
                del self._unread[number]

    def send(self, topic: int, header: dict[str, Any], arrays: Arrays, timeout_s: float) -> None:
        with self._send_lock:
            if self._lost:
                raise ProcessLost(self._lost)
            self.process.send({**header, "topic": topic}, arrays, timeout_s)

    def receive(self, topic: int, timeout_s: float) -> Message:
        """The next answer. Raises ProcessLost if the process ends, or sends nothing on any topic for `timeout_s`."""
        answers = self._unread[topic]
        while True:
            with self._changed:
                self._changed.wait_for(lambda: answers or self._lost or not self._reading)
                if answers:
                    return answers.popleft()
                if self._lost:
                    raise ProcessLost(self._lost)
                self._reading = True
            self._read(timeout_s)

    def _read(self, timeout_s: float) -> None:
        message, lost = None, ""
        try:
            message = self.process.receive(timeout_s)
        except ProcessLost as error:
            lost = str(error) or "it is lost"
        finally:
            with self._changed:
                self._reading, self._lost = False, self._lost or lost
                if message is not None and message[0]["topic"] in self._unread:
                    self._unread[message[0]["topic"]].append(message)
                self._changed.notify_all()

    def end(self) -> int:
        """Kill the process. Returns its exit status."""
        with self._changed:
            self._lost = self._lost or "it was ended"
            self._changed.notify_all()
        return self.process.kill()


@dataclass(frozen=True)
class Topic:
    """The messages of one thread, and the answers to them."""

    connection: Connection
    number: int

    def send(self, header: dict[str, Any], arrays: Arrays, timeout_s: float) -> None:
        self.connection.send(self.number, header, arrays, timeout_s)

    def receive(self, timeout_s: float) -> Message:
        return self.connection.receive(self.number, timeout_s)
