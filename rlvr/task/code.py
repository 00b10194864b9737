"""Programming problems: a Python program that passes all tests of the benchmark earns 1. Programs run in a sandbox."""

import ast
import builtins
import importlib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import PositiveInt

from rlvr.records import Problem, Reward
from rlvr.task.fence import last_block
from rlvr.task.sources import PROMPT_FIELDS, Column, RowValue, check_template
from rlvr.task.verified import Verified
from rlvr.task.verify.pool import niceness_for
from rlvr.task.verify.sandbox import Sandbox

TESTS_FIELDS = ("tests", "test", "test_list", "input_output", "reward_model.ground_truth")
BEFORE_FIELDS = ("test_imports", "test_setup_code")  # MBPP: code that its assertions need
ENTRY_FIELDS = ("entry_point", "fn_name", "func_name", "metadata.func_name")
STDIO = "Write a Python program that reads standard input and writes standard output."
# Bodies of functions, and programs, that need no look at the problem.
GUESSED_BODIES = {
    "a function that returns nothing": "None",
    "a function that returns its first argument": "(*arguments, None)[0]",
    "a function that returns True": "True",
    "a function that returns an empty list": "[]",
    "a function that returns NaN": "float('nan')",
    "a function that empties its first argument": "arguments[0].clear()",
}
GUESSED_PROGRAMS = {"a program that prints nothing": "pass", "a program that prints its input": "print(open(0).read())"}
FUNCTION = "Write Python code that defines `{name}`."


@dataclass(kw_only=True, eq=False)
class Code(Verified):
    """Problems whose tests are pairs of input and output, assertions, or a test function.

    template: the prompt, with {problem} and {interface}: a sentence that asks for a program or for a certain function.
    prompt_field, tests_field, entry_field: columns, "a.b" for a nested one; None: the first of the usual names that
        exists.
    cpu_s: CPU seconds of the program, for each pair of standard input and output, or for all calls of a function.
    timeout_s: wall-clock limit of an answer over all its tests. Other knobs: `rlvr.task.verified`.
    """

    prompt_field: str | None
    tests_field: str | None
    entry_field: str | None
    cpu_s: PositiveInt

    name = "code"

    def __post_init__(self) -> None:
        check_template(self.template)
        sys.set_int_max_str_digits(0)  # tests may have longer numbers than Python converts by default
        Sandbox(self.cpu_s).check()
        columns = [
            Column("prompt_field", self.prompt_field, PROMPT_FIELDS),
            Column("tests_field", self.tests_field, TESTS_FIELDS),
            Column("entry_field", self.entry_field, ENTRY_FIELDS, optional=True),
            *(Column("tests_field", None, (name,), optional=True) for name in BEFORE_FIELDS),
        ]

        def make(problem: RowValue, tests: RowValue, entry: RowValue, *before: RowValue) -> tuple[str, dict[str, Any]]:
            text = problem.prompt()
            setup = "".join(f"{line}\n" for cell in before for line in _code_lines(cell))
            answer = tests_of(tests, text, entry.text() if entry.value is not None else None, setup)
            interface = FUNCTION.format(name=answer["names"][0]) if "names" in answer else STDIO
            return self.template.replace("{interface}", interface).replace("{problem}", text), answer

        self.start_pool("program", nice=niceness_for(self.workers))
        self.load(columns, make)

    def reward(self, answers: Sequence[tuple[Problem, str]]) -> list[Reward]:
        """1 if the response's last block of Python code passes every test, else 0, with the reason."""
        programs = [last_block(text, ("python", "py", "python3", "")) for _, text in answers]
        return self.judge(
            [
                None if program is None else {"program": program, "tests": problem.answer, "cpu_s": self.cpu_s}
                for (problem, _), program in zip(answers, programs, strict=True)
            ]
        )

    def guesses(self, problem: Problem) -> Mapping[str, str]:
        programs = GUESSED_PROGRAMS
        if names := problem.answer.get("names"):
            programs = {
                about: "\n".join(f"def {name}(*arguments, **_): return {value}" for name in names)
                for about, value in GUESSED_BODIES.items()
            }
        return {about: f"```python\n{program}\n```" for about, program in programs.items()}


def _code_lines(cell: RowValue) -> list[str]:
    """The lines of a cell with code: a text, a list of lines, or null."""
    if cell.value is None:
        return []
    lines = [cell.value] if isinstance(cell.value, str) else cell.value
    if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
        raise cell.refuse("code, as a text or a list of lines")
    return lines


def tests_of(tests: RowValue, prompt: str, entry: str | None, before: str) -> dict[str, Any]:
    """The tests in the form that `rlvr.task.verify.program` takes. before: code that assertions need.

    Accepted: [{"input", "output"}, ...] or {"inputs": [...], "outputs": [...], "fn_name"}, as data or as JSON text, for
    a program's standard input and output or, with an entry point, for calls of it; a text or a list of assertions.
    """
    value = tests.value
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            value = json.loads(value)
        except ValueError:
            raise tests.refuse("JSON") from None
    if isinstance(value, dict):
        inputs, outputs = value.get("inputs"), value.get("outputs")
        if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs):
            raise tests.refuse("lists of as many inputs as outputs")
        name = value.get("fn_name")
        value = [{"input": i, "output": o, "fn_name": name} for i, o in zip(inputs, outputs, strict=True)]
    if isinstance(value, list) and value and all(isinstance(t, dict) and {"input", "output"} <= set(t) for t in value):
        return _pairs(tests, value, entry)
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        value = "\n".join(map(str, value))
    if not isinstance(value, str) or not value.strip():
        raise tests.refuse("pairs of input and output, or assertions")
    return _assertions(tests, before + value, prompt, entry)


def _pairs(tests: RowValue, pairs: Sequence[Mapping[str, Any]], entry: str | None) -> dict[str, Any]:
    """Tests that are pairs of input and output. The first may name the kind of all of them, and the function."""
    kind = pairs[0].get("testtype", pairs[0].get("type"))
    metadata = pairs[0].get("metadata") or {}
    if not isinstance(metadata, dict):
        raise tests.refuse('an object as metadata, such as {"func_name": "f"}')
    entry = pairs[0].get("fn_name") or metadata.get("func_name") or entry
    if not isinstance(entry, str | None):
        raise tests.refuse("a text as the name of the function that is called")
    if entry is None and kind in ("functional", "function_call"):
        raise tests.refuse("the name of the function that is called (task.entry_field)")
    if entry is None or kind in ("stdin", "stdin_stdout"):
        texts = [[_joined_lines(test["input"]), _joined_lines(test["output"])] for test in pairs]
        if not all(isinstance(text, str) for pair in texts for text in pair):
            raise tests.refuse("texts as inputs and outputs: without an entry point they are standard input and output")
        return {"stdio": texts}
    try:
        cases = [_case(test["input"], test["output"]) for test in pairs]
    except (ValueError, TypeError):
        raise tests.refuse("lists of arguments, or JSON: one argument to a line of input, results as output") from None
    return {"names": [entry.rsplit(".", 1)[-1]], "setup": IMPORTS, "cases": cases}


def _joined_lines(value: Any) -> Any:
    """The text of a list of lines, which some data sets have in place of a text; any other value unchanged."""
    return "\n".join(value) if isinstance(value, list) and all(isinstance(line, str) for line in value) else value


def _case(arguments: Any, expected: Any) -> list[Any]:
    """[list of arguments, list of right results]. If `arguments` is a text, each line is one argument as JSON
    (LiveCodeBench); else it is a list, and the result may or may not be wrapped in a list of its own (APPS, TACO).
    """
    if isinstance(arguments, str):
        parsed = [json.loads(line) for line in arguments.splitlines() if line.strip()]
        return [parsed, [json.loads(expected) if isinstance(expected, str) else expected]]
    if not isinstance(arguments, list):
        raise TypeError("not a list of arguments")  # an object may be one argument, or name several
    unwrapped = expected if isinstance(expected, list) and len(expected) == 1 else []
    return [arguments, [expected, *unwrapped]]


# Imports that solutions of such problems usually omit (for annotations such as List[int]).
IMPORTS = "from typing import *\nimport collections, heapq, itertools, math\nfrom collections import *\n"


def _assertions(tests: RowValue, code: str, prompt: str, entry: str | None) -> dict[str, Any]:
    """Tests that are code with assertions, or with a function `check` (HumanEval)."""
    try:
        tree = ast.parse(code)
    except SyntaxError as error:
        raise tests.refuse(f"Python code ({error})") from None
    names = [entry.rsplit(".", 1)[-1]] if entry else _undefined_functions(tree)
    if not names:
        raise tests.refuse("assertions that call a function, or an entry point")
    if class_name := _class_in_use(tree, names):
        raise tests.refuse(
            f"tests of functions that take and return plain data: {class_name} is used as a class, and its objects "
            "cannot be passed from one sandbox to the other"
        )
    has_call = any(isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) for node in tree.body)
    if _defines(tree, "check") and not has_call:
        code += f"\n\ncheck({names[0]})\n"  # as published, HumanEval's tests do not call it
    elif all(isinstance(node, DEFINITIONS) for node in tree.body):
        raise tests.refuse("assertions that run, or a function `check`: nothing calls these functions or classes")
    return {"names": names, "setup": prompt if _is_stub(prompt, names[0]) else "", "tests": code}


# Statements that test nothing by themselves.
DEFINITIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Import | ast.ImportFrom | ast.Assign

# Modules whose names a star import adds. They are imported for it, which has no effect but their names. (Others of the
# standard library print, open windows or replace functions when they are imported.)
STARRED = frozenset(
    (  # noqa: SIM905 - a list would take a line for each
        "array bisect cmath collections collections.abc copy dataclasses datetime decimal enum fractions functools "
        "heapq itertools json math numbers operator random re statistics string textwrap time typing"
    ).split()
)


def _public_names(module_name: str | None) -> list[str]:
    """The names that `from module import *` defines, for the modules in STARRED; of any other none."""
    if module_name not in STARRED:
        return []
    module = importlib.import_module(module_name)
    return list(getattr(module, "__all__", None) or (name for name in vars(module) if not name.startswith("_")))


def _undefined_functions(tree: ast.Module) -> list[str]:
    """The functions that the program must define: called, and neither built in nor defined by the tests."""
    called = [n.func.id for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)]
    known = set(dir(builtins))
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            known.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            known.add(node.name)
        elif isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
            known.update(_public_names(node.module if node.level == 0 else None))
        elif isinstance(node, ast.alias):
            known.add((node.asname or node.name).split(".")[0])
        elif isinstance(node, ast.arg):
            known.add(node.arg)
    return list(dict.fromkeys(name for name in called if name not in known))


def _class_in_use(tree: ast.Module, names: Sequence[str]) -> str | None:
    """The first of the program's `names` that the tests use as a class; None if there is none.

    Such a name starts with a capital letter, and the tests access attributes or methods of the object that it returns,
    or use the name in `isinstance`.
    """
    classes = {name for name in names if name[:1].isupper()}
    class_of = {name: name for name in classes}  # of the names themselves and of variables with their objects
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Name):
            called = node.value.func.id
            class_of |= {t.id: called for t in node.targets if isinstance(t, ast.Name) and called in classes}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            inner = node.value.func if isinstance(node.value, ast.Call) else node.value
            if isinstance(inner, ast.Name) and inner.id in class_of:
                return class_of[inner.id]
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
            for inner in (n for argument in node.args[1:] for n in ast.walk(argument)):
                if isinstance(inner, ast.Name) and inner.id in classes:
                    return inner.id
    return None


def _defines(tree: ast.Module, name: str) -> bool:
    return any(isinstance(node, ast.FunctionDef) and node.name == name for node in tree.body)


def _is_stub(prompt: str, name: str) -> bool:
    """Whether the prompt is Python code with a stub of the function (HumanEval); it is then run before the program."""
    try:
        return _defines(ast.parse(prompt), name)
    except SyntaxError:
        return False
