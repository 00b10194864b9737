"""Does this program pass its tests? Runs it in `rlvr.task.verify.sandbox`. Imported by a verifying child process only.

Wall-clock time is the pool's business: it kills this process, and with it everything that runs inside.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from contextlib import ExitStack
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlvr.task.verify import inside
from rlvr.task.verify.sandbox import Sandbox, in_memory, out_of_time, path_of

if TYPE_CHECKING:
    from rlvr.records import Outcome

INSIDE = Path(inside.__file__).read_bytes()


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
        code, printed = _run(sandbox, program, given)
        if out_of_time(code):
            return "timeout"
        if code or not same_output(printed, expected):
            return "wrong"
    return "correct"


def _run(sandbox: Sandbox, program: str, given: str) -> tuple[int, str]:
    """(exit status, standard output) of the program. RuntimeError if the sandbox never came to run it."""
    with ExitStack() as stack:
        source, stdin, stdout = (
            stack.enter_context(in_memory(text.encode(errors="replace"))) for text in (program, given, "")
        )
        reading, started = os.pipe()
        stack.callback(os.close, reading)
        try:
            process = stack.enter_context(
                sandbox.start(
                    INSIDE,
                    "program",
                    path_of(source),
                    str(started),
                    stdin=stdin,
                    stdout=stdout,
                    pass_fds=[source, started],
                )
            )
        finally:
            os.close(started)
        code = process.wait()
        if not os.read(reading, 1):
            raise RuntimeError(f"the sandbox ended with status {code} before the program began")
        with os.fdopen(os.dup(stdout), "rb") as file:
            file.seek(0)
            return code, file.read().decode(errors="replace")


def same_output(printed: str, expected: str) -> bool:
    """Equal line by line, blanks at both ends aside; lines of numbers by value (LiveCodeBench, arXiv:2403.07974)."""
    pairs = [[line.strip() for line in text.strip().split("\n")] for text in (printed, expected)]
    if len(pairs[0]) != len(pairs[1]):
        return False
    return all(a == b or _same_numbers(a, b) for a, b in zip(*pairs, strict=True))


# Decimal alone would also take 1_0, digits of other scripts, Infinity and NaN.
NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")


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
        payloads = [stack.enter_context(in_memory(json.dumps(p).encode())) for p in (candidate, tests)]
        calls, results = os.pipe(), os.pipe()
        try:
            answering = stack.enter_context(
                sandbox.start(
                    INSIDE, "candidate", path_of(payloads[0]), stdin=calls[0], stdout=results[1], pass_fds=payloads[:1]
                )
            )
            testing = stack.enter_context(
                sandbox.start(
                    INSIDE, "tests", path_of(payloads[1]), stdin=results[0], stdout=calls[1], pass_fds=payloads[1:]
                )
            )
        finally:  # only the two of them hold the pipes: one that ends is the end of file of the other
            for descriptor in (*calls, *results):
                os.close(descriptor)
        verdict = testing.wait()
        if out_of_time(verdict) or (verdict == inside.ENDED and out_of_time(answering.wait())):
            return "timeout"
    return _OUTCOMES[verdict]


_OUTCOMES: dict[int, Outcome] = {
    inside.CORRECT: "correct",
    inside.WRONG: "wrong",
    inside.ENDED: "wrong",
    inside.BROKEN: "error",
}
