"""Runs reasoning-gym's generators and verifiers. Imported by a verifying child process only.

Some verifiers evaluate the text of an answer (sympy, expressions), and some generators depend on the order of Python's
sets: the process runs in `rlvr.task.verify.sandbox`, with the same seed of Python's hashes on every machine.
"""

import ast
import contextlib
import dataclasses
import json
import operator
import os
import signal
import sys
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any, NoReturn

import reasoning_gym
import sympy
from reasoning_gym.factory import DATASETS

from rlvr.task.verify import OUT_OF_MEMORY

SIZE = 500  # items of one seed
SOLVED = 1 - 1e-9  # the least score that counts as right
SCORE_BYTES = 64  # longest text of a score
OPERATIONS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
# Generators whose verifiers evaluate an answer with sympy, and the functions that an answer to them may call.
SYMBOLIC = {"simple_integration", "intermediate_integration", "polynomial_multiplication"}
ELEMENTARY = {"exp", "log", "ln", "sqrt", "cbrt", "root", "abs", "Abs", "sign", "Rational", "Integer", "Float"} | {
    arc + function + hyperbolic
    for arc in ("", "a")
    for function in ("sin", "cos", "tan", "cot", "sec", "csc")
    for hyperbolic in ("", "h")
}
COMPOSED = {"composite"}  # generators made of other generators, which can be named directly


def judge(request: dict[str, Any]) -> dict[str, Any]:
    """Handle one request of one of three kinds, request["do"]. Every request has "generator" and "knobs" (JSON text).

    check -> {"outcome": "checked", "problem": what is wrong with generator or knobs, or ""}
    make, with "seed" and "indices" -> {"outcome": "made", "items": [[question, stored answer or null], ...]}
    judge, with "seed", "index" and "answer" -> {"outcome", "score"}, score in [0, 1]
    """
    with contextlib.redirect_stdout(sys.stderr):  # some generators print
        if request["do"] == "check":
            return {"outcome": "checked", "problem": complaint(request["generator"], json.loads(request["knobs"]))}
        source = dataset(request["generator"], request["knobs"], request["seed"])
        if request["do"] == "make":
            items = [source[index] for index in request["indices"]]
            return {"outcome": "made", "items": [[item["question"], _stored(item)] for item in items]}
        return _judged(source, source[request["index"]], request["answer"])


def complaint(generator: str, knobs: Mapping[str, Any]) -> str:
    """What is wrong with a generator's name or knobs; "" if nothing is."""
    usable = sorted(set(DATASETS) - COMPOSED)
    if generator not in usable:
        return f"task.generators: {generator} is no generator of reasoning-gym. It has: {', '.join(usable)}."
    config = DATASETS[generator][1]
    allowed = {f.name for f in dataclasses.fields(config)} - {"seed", "size"}
    if unknown := sorted(set(knobs) - allowed):
        return f"task.generators.{generator}: {unknown[0]} is unknown. It takes: {', '.join(sorted(allowed))}."
    try:
        config(**knobs).validate()
    except (AssertionError, TypeError, ValueError) as error:
        return f"task.generators.{generator}: {error}."
    return ""


def score(source: Any, item: Mapping[str, Any], answer: str) -> float:
    """The verifier's score of an answer. Puzzles of numbers are judged here: the library's verifiers do not compare
    the numbers with those of the question (puzzle24), or take names such as pi for numbers (countdown).
    """
    facts = item["metadata"]
    if facts.get("source_dataset") in SYMBOLIC and not is_written_out(answer):
        return 0.0
    if facts.get("source_dataset") not in ("puzzle24", "countdown"):
        return float(source.score_answer(answer, item))
    try:
        value, used = evaluated(answer)
    except ValueError:
        return 0.0
    return float(sorted(used) == sorted(facts["numbers"]) and value == facts.get("target", 24))


def evaluated(text: str) -> tuple[Fraction, list[int]]:
    """(value, numbers as written) of an expression of integers with + - * / and parentheses.

    Raises ValueError for any other text, and for a division by zero.
    """
    numbers: list[int] = []

    def value(node: ast.expr) -> Fraction:
        if isinstance(node, ast.Constant) and type(node.value) is int:
            numbers.append(node.value)
            return Fraction(node.value)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -value(node.operand)
        if isinstance(node, ast.BinOp) and type(node.op) in OPERATIONS:
            return OPERATIONS[type(node.op)](value(node.left), value(node.right))
        raise ValueError(f"{ast.unparse(node)[:60]} is no arithmetic of integers")

    try:
        return value(ast.parse(text.strip(), mode="eval").body), numbers
    except (SyntaxError, RecursionError, MemoryError, ZeroDivisionError) as error:
        raise ValueError(f"{text[:60]!r} is not an expression") from error


def is_written_out(text: str) -> bool:
    """Whether an expression calls elementary functions only. integrate(...) and (...).expand() restate the question."""
    try:
        nodes = ast.walk(ast.parse(text.strip(), mode="eval"))
        return {ast.unparse(node.func) for node in nodes if isinstance(node, ast.Call)} <= ELEMENTARY
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


def _judged(source: Any, item: Mapping[str, Any], answer: str) -> dict[str, Any]:
    """The verdict on an answer. If the verifier raises an exception: `wrong`, or `error` if it also raises one for the
    right answer; score 0."""
    score = _score_apart(source, item, answer)
    if score is None:
        return {"outcome": "wrong" if _verifier_works(source, item) else "error", "score": 0.0}
    score = min(max(0.0, score), 1.0)  # in this order 0 for NaN
    return {"outcome": "correct" if score >= SOLVED else "wrong", "score": score}


def _score_apart(source: Any, item: Mapping[str, Any], answer: str) -> float | None:
    """The score of an answer, computed in a process of its own; None if that ended without one.

    A verifier that evaluates the answer runs the code in it. That code must not end this process, which would be an
    `error`, nor write its replies or change the verifier of later answers.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _write_score(writing, source, item, answer)
    os.close(writing)
    _, status = os.waitpid(child, 0)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # processes that it has started
    os.set_blocking(reading, False)  # one of them may have left the group, and hold the pipe open
    with os.fdopen(reading, "rb", buffering=0) as file:
        text = file.read(SCORE_BYTES) or b""
    if os.waitstatus_to_exitcode(status) == OUT_OF_MEMORY:
        raise MemoryError
    try:
        return float(text)
    except ValueError:
        return None


def _write_score(writing: int, source: Any, item: Mapping[str, Any], answer: str) -> NoReturn:
    """Write the score to a descriptor, the only one that stays open besides the standard ones, and exit."""
    status = 1
    try:
        os.setpgid(0, 0)
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1):
            os.dup2(null, descriptor)
        os.closerange(3, writing)
        os.closerange(writing + 1, os.sysconf("SC_OPEN_MAX"))
        os.write(writing, repr(score(source, item, answer)).encode())
        status = 0
    except MemoryError:
        status = OUT_OF_MEMORY
    finally:  # whatever a verifier raises on a text that it did not expect, SystemExit included
        os._exit(status)


def _verifier_works(source: Any, item: Mapping[str, Any]) -> bool:
    """Whether the verifier runs without an exception on the right answer."""
    try:
        source.score_answer(item["answer"], item)
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - as above
        return False
    return True


def _stored(item: Mapping[str, Any]) -> str | None:
    answer = item["answer"]
    if not isinstance(answer, str) or not answer:
        return None
    if item["metadata"].get("source_dataset") == "intermediate_integration" and not is_written_out(answer):
        return str(sympy.parse_expr(answer).doit())  # a tenth are Integral(x*cos(x), x), which the library left undone
    return answer


@lru_cache(maxsize=256)
def dataset(generator: str, knobs: str, seed: int) -> Any:
    return reasoning_gym.create_dataset(generator, seed=seed, size=SIZE, **json.loads(knobs))
