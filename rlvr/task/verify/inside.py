"""The script that runs inside the sandbox, in one of three roles. It starts often: few imports, and those late.

`program` runs a model's program as it stands. Where *functions* are tested there are two processes: `candidate` loads
the program and answers calls, `tests` runs the benchmark's tests and makes the calls. Only calls and results cross, as
plain data in JSON lines, so the program sees no test, no expected value and no verdict, and cannot forge one: whatever
it sends is compared in the other process, whose exit status is the verdict.
"""

from __future__ import annotations

import json
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType
    from typing import Any, BinaryIO

# Exit status of `tests`. ENDED: the program ended before it had answered. BROKEN: the tests failed, not the program.
CORRECT, WRONG, ENDED, BROKEN = 10, 11, 12, 13
LINE_BYTES = 64 * 2**20


class Ended(Exception):
    """The other process is gone, or said too much."""


def main() -> None:
    """ROLE PAYLOAD STARTED: a path, and a descriptor on which it says that the sandbox stands."""
    role, payload, started = sys.argv[1], sys.argv[2], int(sys.argv[3])
    os.setpgid(0, 0)  # or a signal to its process group would reach those who wait for it outside
    with open(payload, "rb") as file:  # noqa: PTH123 - pathlib would cost more than all the rest
        content = file.read()
    os.write(started, b"started")
    os.close(started)
    if role == "program":
        run(content)
    else:
        talk(role, json.loads(content))


def run(program: bytes) -> None:
    """The program as the main one."""
    sys.argv[:] = ["program"]
    space = module("__main__").__dict__
    exec(compile(program, "program", "exec"), space)


def module(name: str) -> ModuleType:
    sys.modules[name] = type(sys)(name)
    return sys.modules[name]


def talk(role: str, request: Mapping[str, Any]) -> None:
    import random

    reader, writer = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):  # what is printed is not a result
        os.dup2(nothing, descriptor)
    random.seed(0)
    sys.set_int_max_str_digits(0)
    if role == "candidate":
        serve(request, reader, writer)
    else:
        os._exit(Tests(request, reader, writer).verdict())


# --- the program's side


def serve(request: Mapping[str, Any], reader: BinaryIO, writer: BinaryIO) -> None:
    """Load the program, after the benchmark's own imports and stubs; then answer calls until there are no more."""
    program = module("program")
    failure = None
    try:
        for source in (request["setup"], request["program"]):
            exec(compile(source, "program", "exec"), program.__dict__)
    except BaseException as error:  # noqa: BLE001 - a program may raise anything, SystemExit included
        failure = error
    for line in reader:
        call = json.loads(line)
        try:
            if failure is not None:
                raise failure
            args, kwargs = unpack(call["args"]), unpack(call["kwargs"])
            result = find(program, call["name"])(*args, **kwargs)
            reply = {"value": pack(result), **({} if result is not None else changed(call, args, kwargs))}
        except BaseException as error:  # noqa: BLE001 - the same
            reply = {"error": type(error).__name__, "message": str(error)[:200]}
        send(writer, reply)


def changed(call: Mapping[str, Any], args: Any, kwargs: Any) -> dict[str, Any]:
    """The arguments as a call that returned nothing left them, if it changed them: the tests have copies of their own.

    One that returns something changes nothing for the tests: emptying a list would else pass `f(x) == sorted(x)`.
    """
    after = {"args": pack(args), "kwargs": pack(kwargs)}
    return {} if after == {name: call[name] for name in after} else after


def find(program: ModuleType, name: str) -> Callable[..., Any]:
    """A function of the program, or a method of its class Solution."""
    if hasattr(program, name):
        return getattr(program, name)
    return getattr(program.Solution(), name)


# --- the tests' side


class Tests:
    """The benchmark's tests, and how the calls they make went."""

    def __init__(self, request: Mapping[str, Any], reader: BinaryIO, writer: BinaryIO) -> None:
        self.request, self.reader, self.writer = request, reader, writer
        self.num_calls = 0
        self.unsendable = False

    def verdict(self) -> int:
        try:
            test = self._cases if "cases" in self.request else self._asserts
            test()
        except Ended:
            return ENDED
        except BaseException:  # noqa: BLE001 - assertions, and whatever tests do with a result of the wrong type
            return WRONG if self.num_calls and not self.unsendable else BROKEN
        return CORRECT if self.num_calls else BROKEN

    def _cases(self) -> None:
        for inputs, right in self.request["cases"]:
            result = self.call(self.request["names"][0], *inputs)
            if result is None and None not in right and inputs:
                result = inputs[0]  # what a function that returns nothing made of its first argument
            if normal(result) not in right:
                raise AssertionError

    def _asserts(self) -> None:
        space: dict[str, Any] = {"__name__": "tests"}
        exec(compile(self.request["setup"], "setup", "exec"), space)
        for name in self.request["names"]:
            space[name] = lambda *args, _name=name, **kwargs: self.call(_name, *args, **kwargs)
        exec(compile(self.request["tests"], "tests", "exec"), space)

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        try:
            message = {"name": name, "args": pack(args), "kwargs": pack(kwargs)}
        except TypeError:
            self.unsendable = True
            raise
        self.num_calls += 1
        send(self.writer, message)
        reply = receive(self.reader)
        if "error" in reply:
            import builtins

            kind = getattr(builtins, str(reply["error"]), RuntimeError)
            known = isinstance(kind, type) and issubclass(kind, Exception)
            raise kind(str(reply.get("message"))) if known else RuntimeError
        if reply["value"] is None and "args" in reply:
            for own, after in zip(args, unpack(reply["args"]), strict=True):
                rewrite(own, after)
            for key, after in unpack(reply["kwargs"]).items():
                rewrite(kwargs.get(key), after)
        return unpack(reply["value"])


def rewrite(own: Any, after: Any) -> None:
    """Give a list, dict or set the contents that the program left in its copy, and those within it theirs."""
    if type(own) is not type(after) or not isinstance(own, list | dict | set):
        return
    if isinstance(own, list):
        kept = list(own)
        own[:] = [_same(kept[i], item) if i < len(kept) else item for i, item in enumerate(after)]
        return
    kept = dict(own) if isinstance(own, dict) else {}
    own.clear()
    own.update({key: _same(kept.get(key), item) for key, item in after.items()} if isinstance(own, dict) else after)


def _same(own: Any, after: Any) -> Any:
    """The tests' own object with the program's contents where both are lists, dicts or sets; else the program's."""
    if type(own) is type(after) and isinstance(own, list | dict | set):
        rewrite(own, after)
        return own
    return after


def normal(value: Any) -> Any:
    """As JSON would have it: expected outputs are JSON, which has no tuples."""
    if isinstance(value, list | tuple):
        return [normal(item) for item in value]
    return {str(k): normal(v) for k, v in value.items()} if isinstance(value, dict) else value


# --- plain data as JSON lines


def send(writer: BinaryIO, message: Any) -> None:
    writer.write(json.dumps(message).encode() + b"\n")
    writer.flush()


def receive(reader: BinaryIO) -> Any:
    line = reader.readline(LINE_BYTES)
    if not line.endswith(b"\n"):
        raise Ended
    return json.loads(line)


KINDS = (tuple, set, frozenset)


def pack(value: Any) -> Any:
    """Numbers, texts, bytes and their lists, tuples, sets and dicts as JSON. TypeError for anything else."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list):
        return [pack(item) for item in value]
    for kind in KINDS:
        if isinstance(value, kind):
            return {kind.__name__: [pack(item) for item in value]}
    if isinstance(value, dict):
        return {"dict": [[pack(k), pack(v)] for k, v in value.items()]}
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if type(value).__module__ == "numpy":
        return pack(value.tolist())
    raise TypeError(f"{type(value).__name__} is not plain data")


def unpack(value: Any) -> Any:
    if isinstance(value, list):
        return [unpack(item) for item in value]
    if not isinstance(value, dict):
        return value
    ((name, content),) = value.items()
    makers: dict[str, Callable[[Any], Any]] = {
        **{kind.__name__: lambda items, kind=kind: kind(unpack(items)) for kind in KINDS},
        "dict": lambda pairs: {unpack(k): unpack(v) for k, v in pairs},
        "bytes": bytes.fromhex,
        "complex": lambda parts: complex(*parts),
    }
    return makers[name](content)


if __name__ == "__main__":
    main()
