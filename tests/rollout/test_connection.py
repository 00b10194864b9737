"""Several threads and one process that answers out of order: each gets its own answers, and all learn of its end."""

import queue
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from rlvr.rollout.child import ProcessLost
from rlvr.rollout.connection import Connection
from rlvr.rollout.vllm_server import Arrays


class Reverser:
    """Collects `at_once` requests, then answers them in reverse order; then the next ones."""

    pid = 0

    def __init__(self, at_once: int) -> None:
        self.at_once, self.requests = at_once, list[dict[str, Any]]()
        self.answers: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self.reading = threading.Lock()

    def send(self, header: dict[str, Any], arrays: Arrays, timeout_s: float) -> None:
        self.requests.append(header)
        if len(self.requests) == self.at_once:
            for request in reversed(self.requests):
                self.answers.put({"topic": request["topic"], "doubled": 2 * request["number"]})
            self.requests.clear()

    def receive(self, timeout_s: float) -> tuple[dict[str, Any], Arrays]:
        assert self.reading.acquire(blocking=False), "two threads read at the same time"
        answer = self.answers.get()
        self.reading.release()
        if answer is None:
            raise ProcessLost("it ended with exit status 3")
        return answer, {"zeros": np.zeros(2)}

    def kill(self) -> int:
        return 3


def doubled(connection: Connection, number: int) -> int:
    with connection.topic() as topic:
        topic.send({"number": number}, {}, 1)
        header, arrays = topic.receive(1)
    assert arrays["zeros"].tolist() == [0, 0]
    return header["doubled"]


def test_each_thread_receives_the_answers_to_its_own_messages() -> None:
    connection = Connection(Reverser(5))
    with ThreadPoolExecutor(5) as threads:
        for first in range(0, 100, 5):
            numbers = range(first, first + 5)
            assert list(threads.map(lambda n: doubled(connection, n), numbers)) == [2 * n for n in numbers]


def test_topics_have_different_numbers_and_answers_to_an_ended_one_are_dropped() -> None:
    process = Reverser(1)
    connection = Connection(process)
    process.answers.put({"topic": 77})
    assert doubled(connection, 4) == 8
    with connection.topic() as one, connection.topic() as other:
        assert one.number != other.number


def test_all_waiting_threads_fail_when_the_process_is_lost() -> None:
    process = Reverser(100)
    connection = Connection(process)
    waiting = threading.Barrier(4)

    def wait_for_answer() -> None:
        with connection.topic() as topic:
            waiting.wait()
            topic.receive(1)

    with ThreadPoolExecutor(3) as threads:
        answers = [threads.submit(wait_for_answer) for _ in range(3)]
        waiting.wait()
        process.answers.put(None)
        for answer in answers:
            with pytest.raises(ProcessLost, match="exit status 3"):
                answer.result(timeout=60)
    with connection.topic() as topic, pytest.raises(ProcessLost, match="exit status 3"):
        topic.receive(1)
    assert connection.end() == 3
