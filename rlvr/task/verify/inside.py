"""The script that runs inside the sandbox, in one of three roles. It starts often: imports are few, and late.

`program` runs a model's program unchanged. Where *functions* are tested there are two processes: `candidate` loads the
program and answers calls, `tests` runs the benchmark's tests and makes the calls. Only calls and results are exchanged,
as plain data in JSON lines: the program has no access to a test, an expected value or the verdict, and cannot forge
one, since its results are compared in the other process, whose exit status is the verdict.
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

# Exit status of `tests`. ENDED: the program ended before it answered a call. BROKEN: the tests are at fault.
CORRECT, WRONG, ENDED, BROKEN = 10, 11, 12, 13
LINE_BYTES = 64 * 2**20


class Ended(Exception):
    """Raised when the other process has ended, or its line is longer than LINE_BYTES."""


def main() -> None:
    """Arguments: ROLE, PAYLOAD (a path), STARTED (the descriptor for the report that the sandbox is set up)."""
    role, payload, started = sys.argv[1], sys.argv[2], int(sys.argv[3])
    os.setpgid(0, 0)  # or a signal to its process group would reach the waiting process outside
    with open(payload, "rb") as file:  # noqa: PTH123 - importing pathlib takes longer than everything else here
        content = file.read()
    os.write(started, b"started")
    os.close(started)
    sys.set_int_max_str_digits(0)  # solutions print and return longer numbers than Python converts by default
    if role == "program":
        run(content)
    else:
        talk(role, json.loads(content))


def run(program: bytes) -> None:
    """Run the program as the module `__main__`."""
    sys.argv[:] = ["program"]
    space = module("__main__").__dict__
    exec(compile(program, "program", "exec", dont_inherit=True), space)


def module(name: str) -> ModuleType:
    """A new, empty module that is registered under `name`."""
    sys.modules[name] = type(sys)(name)
    return sys.modules[name]


def talk(role: str, request: Mapping[str, Any]) -> None:
    """Run one of the two roles that exchange calls and results over standard input and output."""
    import random

    reader, writer = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):  # printed text must not mix with results
        os.dup2(null, descriptor)
    random.seed(0)
    if role == "candidate":
        serve(request, reader, writer)
    else:
        os._exit(Tests(request, reader, writer).verdict())


# --- the program's side


def serve(request: Mapping[str, Any], reader: BinaryIO, writer: BinaryIO) -> None:
    """Load the program, after the benchmark's own imports and stubs; then answer calls until the input ends."""
    program = module("program")
    failure = None
    try:
        for source in (request["setup"], request["program"]):
            exec(compile(source, "program", "exec", dont_inherit=True), program.__dict__)
    except BaseException as error:  # noqa: BLE001 - a program may raise anything, SystemExit included
        failure = error
    for line in reader:
        call = json.loads(line)
        try:
            if failure is not None:
                raise failure
            args, kwargs = unpack(call["args"]), unpack(call["kwargs"])
            result = find(program, call["name"])(*args, **kwargs)
            reply = {"value": pack_result(result)}
            if result is None:
                reply.update(changed(call, args, kwargs))
        except BaseException as error:  # noqa: BLE001 - as above
            reply = {"error": builtin_class(error), "message": str(error)[:200]}
        send(writer, reply)


def builtin_class(error: BaseException) -> str:
    """The name of the first built-in class of an exception: ValueError for a JSONDecodeError, which is one."""
    return next(kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "builtins")


def changed(call: Mapping[str, Any], args: Any, kwargs: Any) -> dict[str, Any]:
    """The arguments after a call that returned None, if it changed them; else {}. The tests have their own copies.

    Changes by a call that returns a value are ignored: otherwise emptying a list would pass `f(x) == sorted(x)`.
    """
    after = {"args": pack(args), "kwargs": pack(kwargs)}
    return {} if after == {name: call[name] for name in after} else after


def find(program: ModuleType, name: str) -> Callable[..., Any]:
    """The function `name` of the program, or the method of its class Solution."""
    if hasattr(program, name):
        return getattr(program, name)
    return getattr(program.Solution(), name)


# --- the tests' side


class Tests:
    """Runs the benchmark's tests, whose calls go to the program in the other process.

    num_calls: calls that were sent. unsendable: whether the arguments of a call were not plain data.
    """

    def __init__(self, request: Mapping[str, Any], reader: BinaryIO, writer: BinaryIO) -> None:
        self.request, self.reader, self.writer = request, reader, writer
        self.num_calls = 0
        self.unsendable = False

    def verdict(self) -> int:
        """The exit status: CORRECT, WRONG, ENDED or BROKEN."""
        try:
            test = self._cases if "cases" in self.request else self._asserts
            test()
        except Ended:
            return ENDED
        except BaseException:  # noqa: BLE001 - assertions, and any error of tests with a result of the wrong type
            return WRONG if self.num_calls and not self.unsendable else BROKEN
        return CORRECT if self.num_calls else BROKEN

    def _cases(self) -> None:
        for inputs, right in self.request["cases"]:
            result = self.call(self.request["names"][0], *inputs)
            if result is None and None not in right and inputs:
                result = inputs[0]  # a function that returns None may have changed its first argument in place
            if not any(equal(normal(result), value) for value in right):
                raise AssertionError

    def _asserts(self) -> None:
        space: dict[str, Any] = {"__name__": "tests"}
        exec(compile(self.request["setup"], "setup", "exec", dont_inherit=True), space)
        for name in self.request["names"]:
            space[name] = lambda *args, _name=name, **kwargs: self.call(_name, *args, **kwargs)
        exec(compile(self.request["tests"], "tests", "exec", dont_inherit=True), space)

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """The result of the program's function; raises the exception that the function raised, as `exception` does."""
        try:
            message = {"name": name, "args": pack(args), "kwargs": pack(kwargs)}
        except TypeError:
            self.unsendable = True
            raise
        self.num_calls += 1
        send(self.writer, message)
        reply = receive(self.reader)
        if "error" in reply:
            raise exception(str(reply["error"]), str(reply.get("message")))
        if reply["value"] is None and "args" in reply:
            for before, after in zip(args, unpack(reply["args"]), strict=True):
                rewrite(before, after)
            for key, after in unpack(reply["kwargs"]).items():
                rewrite(kwargs.get(key), after)
        return unpack(reply["value"])


def exception(name: str, message: str) -> Exception:
    """An exception of the built-in class with this name; a RuntimeError for StopIteration and what is no Exception.

    StopIteration would end a loop of the tests, such as `for a, b in zip(map(f, inputs), results)`, before anything is
    compared.
    """
    import builtins

    kind = getattr(builtins, name, RuntimeError)
    if not (isinstance(kind, type) and issubclass(kind, Exception)) or kind is StopIteration:
        return RuntimeError(message)
    try:
        return kind(message)
    except TypeError:  # UnicodeDecodeError takes five arguments, but can be made without them
        return kind.__new__(kind)


def rewrite(target: Any, after: Any) -> None:
    """Give a list, dict, set or array of the tests the contents of the program's copy `after`, nested ones included."""
    if type(target) is not type(after) or not is_container(target):
        return
    if isinstance(target, list):
        items = list(target)
        target[:] = [_updated(items[i], item) if i < len(items) else item for i, item in enumerate(after)]
    elif isinstance(target, dict):
        values = dict(target)
        target.clear()
        target.update({key: _updated(values.get(key), value) for key, value in after.items()})
    elif is_array(target):
        target[...] = after
    else:
        target.clear()
        target.update(after)


def _updated(target: Any, after: Any) -> Any:
    """The tests' object with the contents of `after`, if both are containers of one type; else `after`."""
    if type(target) is type(after) and is_container(target):
        rewrite(target, after)
        return target
    return after


def is_container(value: Any) -> bool:
    """Whether it is of a type whose contents can be changed in place, and that both sides know."""
    return isinstance(value, list | dict | set) or is_array(value)


def normal(value: Any) -> Any:
    """The value in the types of JSON, without tuples and with text keys: expected outputs are JSON."""
    if is_array(value):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [normal(item) for item in value]
    return {str(k): normal(v) for k, v in value.items()} if isinstance(value, dict) else value


def equal(result: Any, expected: Any) -> bool:
    """Whether a result is right: of a float, within 1e-5 of its size or 1e-8 (APPS, arXiv:2105.09938)."""
    if isinstance(result, list) and isinstance(expected, list):
        return len(result) == len(expected) and all(map(equal, result, expected))
    if isinstance(result, dict) and isinstance(expected, dict):
        return result.keys() == expected.keys() and all(equal(result[key], expected[key]) for key in expected)
    if isinstance(expected, float) and isinstance(result, int | float):
        return result == expected or abs(result - expected) <= 1e-8 + 1e-5 * abs(expected) < float("inf")
    return result == expected


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
VIEWS = (type({}.keys()), type({}.values()), type({}.items()))
FACTORIES = {kind.__name__: kind for kind in (int, float, list, set, dict, str)}  # of a defaultdict
ARRAYS = "?bBhHiIlLqQefdFDSUO"  # types of NumPy arrays (dtype.char) that arrive as arrays: none wider than Python's


def pack(value: Any, beyond: Callable[[Any], Any] | None = None) -> Any:
    """Numbers, texts, bytes and their lists, tuples, sets, dicts, Counters, defaultdicts and NumPy arrays as JSON.
    Anything else is left to `beyond`; without it, a TypeError."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list):
        return [pack(item, beyond) for item in value]
    for kind in KINDS:
        if isinstance(value, kind):
            return {kind.__name__: [pack(item, beyond) for item in value]}
    if isinstance(value, dict):
        pairs = [[pack(k, beyond), pack(v, beyond)] for k, v in value.items()]
        if is_of(value, "collections", "Counter"):
            return {"Counter": pairs}
        factory: Any = getattr(value, "default_factory", None)
        if is_of(value, "collections", "defaultdict") and factory in FACTORIES.values():
            return {"defaultdict": [factory.__name__, pairs]}
        return {"dict": pairs}
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if is_array(value) and value.dtype.char in ARRAYS:
        items = [pack(item, beyond) for item in value.ravel().tolist()]
        return {"ndarray": [value.dtype.str, list(value.shape), items]}
    # Other arrays as lists, where they are results: a program must not choose to be no answer at all.
    if type(value).__module__ == "numpy" and (beyond is not None or not hasattr(value, "__len__")):
        plain = value.tolist()
        if type(plain) is not type(value):  # as it is for a longdouble
            return pack(plain, beyond)
    if beyond is not None:
        return beyond(value)
    raise TypeError(f"{type(value).__name__} is not plain data")


def pack_result(value: Any) -> Any:
    """As `pack`, and also what a test may convert, such as a generator. It stays what it is for `==`: list(f(3)) may be
    equal to a list where f(3) is not."""
    return pack(value, _beyond)


def _beyond(value: Any) -> Any:
    if isinstance(value, range):
        return {"range": [value.start, value.stop, value.step]}
    if isinstance(value, VIEWS):
        return {type(value).__name__: [pack_result(item) for item in value]}
    if is_of(value, "collections", "deque"):
        return {"deque": [[pack_result(item) for item in value], value.maxlen]}
    if is_of(value, "fractions", "Fraction"):
        return {"Fraction": [int(value.numerator), int(value.denominator)]}
    if is_of(value, "decimal", "Decimal"):
        return {"Decimal": str(value)}
    if hasattr(type(value), "__next__"):
        return {"iterator": [pack_result(item) for item in value]}
    return pack(value)  # TypeError


def is_of(value: Any, module_name: str, name: str) -> bool:
    """Whether a value is of this class, which need not have been imported."""
    return (type(value).__module__, type(value).__name__) == (module_name, name)


def is_array(value: Any) -> bool:
    return is_of(value, "numpy", "ndarray")


def unpack(value: Any) -> Any:
    if isinstance(value, list):
        return [unpack(item) for item in value]
    if not isinstance(value, dict):
        return value
    ((name, content),) = value.items()
    makers: dict[str, Callable[[Any], Any]] = {
        **{kind.__name__: lambda items, kind=kind: kind(unpack(items)) for kind in KINDS},
        "dict": pairs_of,
        "Counter": lambda pairs: imported("collections", "Counter")(pairs_of(pairs)),
        "defaultdict": lambda parts: imported("collections", "defaultdict")(FACTORIES[parts[0]], pairs_of(parts[1])),
        "ndarray": lambda parts: array(*parts),
        "bytes": bytes.fromhex,
        "complex": lambda parts: complex(*parts),
        "range": lambda parts: range(*parts),
        "dict_keys": lambda items: dict.fromkeys(unpack(items)).keys(),
        "dict_values": lambda items: dict(enumerate(unpack(items))).values(),
        "dict_items": lambda items: dict(unpack(items)).items(),
        "deque": lambda parts: imported("collections", "deque")(unpack(parts[0]), parts[1]),
        "Fraction": lambda parts: imported("fractions", "Fraction")(*parts),
        "Decimal": lambda text: imported("decimal", "Decimal")(text),
        "iterator": lambda items: iter(unpack(items)),
    }
    return makers[name](content)


def pairs_of(packed: Any) -> dict[Any, Any]:
    return {unpack(key): unpack(value) for key, value in packed}


def array(dtype: str, shape: list[int], items: Any) -> Any:
    """A NumPy array from its packed items, in the order of C."""
    flat = imported("numpy", "empty")(len(items), dtype)
    for i, item in enumerate(items):  # one at a time: in an array of objects an item may be a list
        flat[i] = unpack(item)
    return flat.reshape(shape)


def imported(module_name: str, name: str) -> Any:
    """What a module contains under a name, imported when it is needed."""
    return getattr(__import__(module_name), name)


if __name__ == "__main__":
    main()
