"""Does this program pass its tests? Runs it in `rlvr.task.verify.sandbox`. Imported by a verifying child process only.

A program has `cpu_s` seconds in which it computes or sleeps, with all that it starts; the pool bounds the wall clock,
and kills with this process everything that runs inside.
"""

from __future__ import annotations

import json
import os
import re
import resource
import select
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlvr.task.verify import inside, watch
from rlvr.task.verify.sandbox import Sandbox, in_memory, out_of_time, path_of

if TYPE_CHECKING:
    from subprocess import Popen

    from rlvr.records import Outcome

INSIDE = Path(inside.__file__).read_bytes()
END_S = 1.0  # in which a process that closed its end of a pipe has ended, if that is why


def judge(request: dict[str, Any]) -> dict[str, str]:
    """{"program", "tests", "cpu_s"} -> {"outcome": ...}: correct if it passes all of its tests.

    tests: {"stdio": [[input, expected output], ...]}, or what `inside.py` reads: {"names": functions that are called,
    "setup": code, and "tests": code or "cases": [[arguments, [right results]], ...]}.
    """
    sandbox = Sandbox(request["cpu_s"])
    run = _stdio if "stdio" in request["tests"] else _functions
    return {"outcome": run(sandbox, request["program"], request["tests"])}


def _stdio(sandbox: Sandbox, program: str, tests: Mapping[str, Any]) -> Outcome:
    """The first test that fails decides."""
    for given, expected in tests["stdio"]:
        outcome, printed = _run(sandbox, program, given)
        if outcome != "correct":
            return outcome
        if not same_output(printed, expected):
            return "wrong"
    return "correct"


def _run(sandbox: Sandbox, program: str, given: str) -> tuple[Outcome, str]:
    """Whether the program ended well ("correct"), and its standard output."""
    with ExitStack() as stack:
        stdin, stdout = (stack.enter_context(in_memory(text.encode(errors="replace"))) for text in (given, ""))
        running = stack.enter_context(
            _start(sandbox, "program", program.encode(errors="replace"), stdin=stdin, stdout=stdout)
        )
        exhausted = _wait(sandbox, running)
        if exhausted is not None:
            return exhausted, ""
        if running.process.returncode:
            return "timeout" if out_of_time(running.process.returncode) else "wrong", ""
        with os.fdopen(os.dup(stdout), "rb") as file:
            file.seek(0)
            return "correct", file.read().decode(errors="replace")


@dataclass(frozen=True)
class _Running:
    """A sandbox, and the pipe on which its script says that the sandbox stands."""

    process: Popen[bytes]
    started: int

    def has_begun(self) -> bool:
        return bool(select.select([self.started], [], [], 0)[0])


@contextmanager
def _start(sandbox: Sandbox, role: str, payload: bytes, *, stdin: int, stdout: int) -> Iterator[_Running]:
    """One of the roles of `inside.py`, dead on leaving."""
    with ExitStack() as stack:
        content = stack.enter_context(in_memory(payload))
        reading, writing = os.pipe()
        stack.callback(os.close, reading)
        arguments = (role, path_of(content), str(writing))
        try:
            process = stack.enter_context(
                sandbox.start(INSIDE, *arguments, stdin=stdin, stdout=stdout, pass_fds=[content, writing])
            )
        finally:  # only the sandbox holds it: if that ends before it stands, there is an end of file
            os.close(writing)
        yield _Running(process, reading)


def _wait(sandbox: Sandbox, running: _Running, *beside: _Running) -> Outcome | None:
    """Wait for the first to end: None, or what it means that the limits were reached before.

    RuntimeError if a sandbox never came to run what it was given: that is nobody's answer.
    """
    assert sandbox.cpu_s is not None
    everyone = (running, *beside)
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    exhausted = watch.wait(
        *(each.process for each in everyone),
        seconds=sandbox.cpu_s,
        memory=float("inf") if limit == resource.RLIM_INFINITY else limit,
        begun=lambda: all(each.has_begun() for each in everyone),
    )
    if exhausted is not None:
        return "timeout" if exhausted == "time" else "wrong"
    for each in everyone:
        if not os.read(each.started, 1):
            raise RuntimeError(f"the sandbox ended with status {each.process.returncode} before the program began")
    return None


def same_output(printed: str, expected: str) -> bool:
    """Equal line by line, blanks at both ends aside; lines of numbers by value (LiveCodeBench, arXiv:2403.07974)."""
    pairs = [[line.strip() for line in text.strip().split("\n")] for text in (printed, expected)]
    if len(pairs[0]) != len(pairs[1]):
        return False
    return all(a == b or _same_numbers(a, b) for a, b in zip(*pairs, strict=True))


# Decimal alone would also take 1_0, digits of other scripts, Infinity and NaN.
# Possessive: tried in one way only, whatever a model has printed.
NUMBER = re.compile(r"[+-]?(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]{1,4})?")


def _same_numbers(a: str, b: str) -> bool:
    words = a.split(), b.split()
    if not all(NUMBER.fullmatch(word) for part in words for word in part):
        return False
    first, second = ([Decimal(word) for word in part] for part in words)
    return first == second


def _functions(sandbox: Sandbox, program: str, tests: Mapping[str, Any]) -> Outcome:
    """Tests and program in two sandboxes, joined by two pipes."""
    candidate = {"setup": tests["setup"], "program": program}
    with ExitStack() as stack:
        calls, results = os.pipe(), os.pipe()
        try:
            answering = stack.enter_context(
                _start(sandbox, "candidate", json.dumps(candidate).encode(), stdin=calls[0], stdout=results[1])
            )
            testing = stack.enter_context(
                _start(sandbox, "tests", json.dumps(tests).encode(), stdin=results[0], stdout=calls[1])
            )
        finally:  # only the two of them hold the pipes: one that ends is the end of file of the other
            for descriptor in (*calls, *results):
                os.close(descriptor)
        exhausted = _wait(sandbox, testing, answering)
        if exhausted is not None:
            return exhausted
        verdict = testing.process.returncode
        if verdict == inside.ENDED and watch.ended(answering.process, END_S):
            return "timeout" if out_of_time(answering.process.returncode) else "wrong"
    if out_of_time(verdict):
        return "timeout"
    return _OUTCOMES.get(verdict, "wrong")  # other tests ended because of what the program returned


_OUTCOMES: dict[int, Outcome] = {inside.CORRECT: "correct", inside.BROKEN: "error"}
