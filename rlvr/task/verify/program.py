"""Tests programs in `rlvr.task.verify.sandbox`. Imported by a verifying child process only.

A program and the processes that it starts have `cpu_s` seconds in which they compute or sleep. The pool bounds the
wall-clock time: it kills this process, and with it everything that runs in the sandbox.
"""

from __future__ import annotations

import json
import os
import re
import resource
import select
import sys
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

sys.set_int_max_str_digits(0)  # arguments and results of tests may be longer than Python converts by default
INSIDE = Path(inside.__file__).read_bytes()
END_S = 1.0  # within which a process ends after its end of a pipe was closed, if the pipe was closed by its end


def judge(request: dict[str, Any]) -> dict[str, str]:
    """{"program", "tests", "cpu_s"} -> {"outcome": ...}: correct if the program passes all tests.

    tests: {"stdio": [[input, expected output], ...]}, or for `inside.py` {"names": functions that are called,
    "setup": code, and "tests": code or "cases": [[arguments, [right results]], ...]}.
    """
    sandbox = Sandbox(request["cpu_s"])
    run = _stdio if "stdio" in request["tests"] else _functions
    return {"outcome": run(sandbox, request["program"], request["tests"])}


def _stdio(sandbox: Sandbox, program: str, tests: Mapping[str, Any]) -> Outcome:
    """The outcome of the first test that fails, or "correct"."""
    for stdin, expected in tests["stdio"]:
        outcome, printed = _run(sandbox, program, stdin)
        if outcome != "correct":
            return outcome
        if not same_output(printed, expected):
            return "wrong"
    return "correct"


def _run(sandbox: Sandbox, program: str, stdin_text: str) -> tuple[Outcome, str]:
    """("correct" if the program ended without an error, its standard output); ("" for other outcomes)."""
    with ExitStack() as stack:
        stdin, stdout = (stack.enter_context(in_memory(text.encode(errors="replace"))) for text in (stdin_text, ""))
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
    """A sandbox, and the pipe on which its script reports that the sandbox is set up."""

    process: Popen[bytes]
    started: int

    def has_begun(self) -> bool:
        return bool(select.select([self.started], [], [], 0)[0])


@contextmanager
def _start(sandbox: Sandbox, role: str, payload: bytes, *, stdin: int, stdout: int) -> Iterator[_Running]:
    """Start one of the roles of `inside.py`; the process is killed when the context ends."""
    with ExitStack() as stack:
        content = stack.enter_context(in_memory(payload))
        reading, writing = os.pipe()
        stack.callback(os.close, reading)
        arguments = (role, path_of(content), str(writing))
        try:
            process = stack.enter_context(
                sandbox.start(INSIDE, *arguments, stdin=stdin, stdout=stdout, pass_fds=[content, writing])
            )
        finally:  # only the sandbox holds this end: if it ends during its setup, the reader gets an end of file
            os.close(writing)
        yield _Running(process, reading)


def _wait(sandbox: Sandbox, running: _Running, *beside: _Running) -> Outcome | None:
    """Wait until `running` ends: None, or the outcome if a limit of one of the sandboxes was reached before.

    Raises RuntimeError if a sandbox ended before it ran its script: the answer is not at fault.
    """
    assert sandbox.cpu_s is not None
    sandboxes = (running, *beside)
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    exhausted = watch.wait(
        *(sandboxed.process for sandboxed in sandboxes),
        seconds=sandbox.cpu_s,
        memory=float("inf") if limit == resource.RLIM_INFINITY else limit,
        begun=lambda: all(sandboxed.has_begun() for sandboxed in sandboxes),
    )
    if exhausted is not None:
        return "timeout" if exhausted == "time" else "wrong"
    for sandboxed in sandboxes:
        if not os.read(sandboxed.started, 1):
            raise RuntimeError(f"the sandbox ended with status {sandboxed.process.returncode} before the program began")
    return None


def same_output(printed: str, expected: str) -> bool:
    """Whether all lines are equal, white space at both ends aside; lines of numbers are compared by value
    (LiveCodeBench, arXiv:2403.07974), with decimals within a tolerance (APPS, arXiv:2105.09938)."""
    printed_lines, expected_lines = (text.strip().split("\n") for text in (printed, expected))
    if len(printed_lines) != len(expected_lines):
        return False
    pairs = [(a.strip(), b.strip()) for a, b in zip(printed_lines, expected_lines, strict=True)]
    return all(a == b or _same_numbers(a, b) for a, b in pairs)


# Decimal alone would also accept 1_0, digits of other scripts, Infinity and NaN, and take the text 0010 for 10. The
# quantifiers are possessive, so that matching does not backtrack on any text that a model prints.
NUMBER = re.compile(r"[+-]?(?:(?:0|[1-9][0-9]*+)(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]{1,4})?")
RELATIVE, ABSOLUTE = Decimal("1e-5"), Decimal("1e-8")  # permitted distance from a decimal; integers must be equal


def _same_numbers(a: str, b: str) -> bool:
    printed, expected = a.split(), b.split()
    if len(printed) != len(expected) or not all(NUMBER.fullmatch(word) for word in printed + expected):
        return False
    return all(_same_number(Decimal(p), Decimal(e), e) for p, e in zip(printed, expected, strict=True))


def _same_number(printed: Decimal, expected: Decimal, text: str) -> bool:
    is_decimal = re.search("[.eE]", text) is not None
    return printed == expected or (is_decimal and abs(printed - expected) <= ABSOLUTE + RELATIVE * abs(expected))


def _functions(sandbox: Sandbox, program: str, tests: Mapping[str, Any]) -> Outcome:
    """The outcome of tests and program in two sandboxes, connected by two pipes."""
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
        finally:  # only the two sandboxes hold the pipes: when one ends, the other reads an end of file
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
    return _OUTCOMES.get(verdict, "wrong")  # any other status: the tests were ended by a result of the program


_OUTCOMES: dict[int, Outcome] = {inside.CORRECT: "correct", inside.BROKEN: "error"}
