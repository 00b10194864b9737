import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rlvr.task.code import Code
from tests.support.sandboxed import need_sandbox
from tests.support.tasks import DATA, make_task, write_jsonl
from tests.task.solutions import FUNCTIONS, PROGRAMS

SUM = {"id": "sum", "prompt": "Print the sum.", "tests": [{"input": "3 4", "output": "7"}], "source": "made/up"}


def make_code(where: str, test: Any = None, **knobs: Any) -> Code:
    need_sandbox()
    return make_task("code", train=where, test=test or where, **knobs)


def fenced(program: str) -> str:
    return f"So:\n```python\n{program}\n```\nDone."


def test_rewards_come_in_order_with_their_reasons(tmp_path: Path) -> None:
    endless = {**SUM, "id": "endless"}
    task = make_code(write_jsonl(tmp_path / "x.jsonl", [SUM, endless]), cpu_s=1)
    problem = task.problem("train", 0)
    assert problem.prompt.startswith("Print the sum.\n\nWrite a Python program that reads standard input and writes")
    assert (problem.source, task.size("train"), task.size("test")) == ("made-up-ebfbcc16", 2, 2)
    texts = {
        fenced("print(sum(map(int, input().split())))"): "correct",
        fenced("print(8)"): "wrong",
        "I do not know.": "unparsable",
        fenced("while True: pass"): "timeout",
        fenced("x" * 200_000): "wrong",
    }
    rewards = task.reward([(problem, text) for text in texts])
    assert [r.outcome for r in rewards] == list(texts.values())
    assert [r.value for r in rewards] == [1.0, 0.0, 0.0, 0.0, 0.0]


TIMES = {"func_name": "times"}
FORMS: list[tuple[dict[str, Any], str, str]] = [
    ({"tests": json.dumps([{"input": "2", "output": "4"}])}, "print(2 * int(input()))", "print(5)"),
    ({"input_output": json.dumps({"inputs": ["2\n"], "outputs": ["4\n"]})}, "print(2 * int(input()))", "print(5)"),
    (
        {"input_output": {"inputs": [[2, 3]], "outputs": [6], "fn_name": "times"}},
        "class Solution:\n    def times(self, a, b): return a * b",
        "def times(a, b): return a + b",
    ),
    (
        {
            "tests": [{"input": "2\n[1, 2]", "output": "[2, 4]", "testtype": "functional"}],
            "metadata": {"func_name": "Solution.times"},
        },
        "class Solution:\n    def times(self, a: int, b: List[int]) -> List[int]: return [a * x for x in b]",
        "class Solution:\n    def times(self, a, b): return a * b",
    ),
    (
        {"input_output": {"inputs": [[[2, 3]]], "outputs": [[5]], "fn_name": "total"}},  # the result wrapped in a list
        "def total(x): return sum(x)",
        "def total(x): return x",
    ),
    (
        {"tests": json.dumps([{"input": "2\n3", "output": "6", "testtype": "functional", "metadata": TIMES}])},
        "def times(a, b): return a * b",
        "print(6)",
    ),
    (  # metadata as JSON text; the test says that it is standard input all the same
        {"tests": [{"input": "2", "output": "4", "testtype": "stdin"}], "metadata": json.dumps({"func_name": "f"})},
        "print(2 * int(input()))",
        "def f(x): return 2 * x",
    ),
    ({"tests": [{"input": ["2", "3"], "output": ["6"]}]}, "print(int(input()) * int(input()))", "print(5)"),
    (
        {"test": "def check(candidate):\n    assert candidate(2) == 4\n", "entry_point": "twice"},  # never called
        "def twice(x): return 2 * x",
        "def twice(x): return 5",
    ),
    (
        {"test_list": ["assert twice(2) == 4", "import math\nassert math.isclose(twice(0.1), 0.2)"]},
        "def twice(x): return 2 * x",
        "def twice(x): return 4",
    ),
    (  # sanitized MBPP
        {"test_list": ["assert math.isclose(twice(0.1), 0.2)"], "test_imports": ["import math"]},
        "def twice(x): return 2 * x",
        "def twice(x): return 4",
    ),
    (  # MBPP: the function is `twice`, `isclose` is none of the program's
        {"test_list": ["assert isclose(twice(0.1), 0.2)"], "test_setup_code": "from math import isclose"},
        "def twice(x): return 2 * x",
        "def twice(x): return 4",
    ),
    (
        {
            "tests": "def check(candidate):\n    assert candidate(base()) == 4\n\ncheck(twice)",
            "entry_point": "twice",
            "prompt": "def base():\n    return 2\n\ndef twice(x):\n    '''Twice.'''\n",
        },
        "def twice(x): return x + base()",
        "def base(): return 0\ndef twice(x): return 2 * x + 1",
    ),
]


@pytest.mark.parametrize(("row", "right", "wrong"), FORMS)
def test_usual_forms_of_tests_are_read(tmp_path: Path, row: dict[str, Any], right: str, wrong: str) -> None:
    task = make_code(write_jsonl(tmp_path / "x.jsonl", [{"prompt": "Do it.", **row}]))
    rewards = task.reward([(task.problem("train", 0), fenced(program)) for program in (right, wrong)])
    assert [r.outcome for r in rewards] == ["correct", "wrong"]


def test_a_row_may_name_its_function_where_the_first_does_not(tmp_path: Path) -> None:
    called = {**SUM, "id": "called", "tests": [{"input": "2", "output": "4"}], "metadata": {"func_name": "twice"}}
    task = make_code(write_jsonl(tmp_path / "x.jsonl", [{**SUM, "metadata": {}}, called]))
    assert [list(task.problem("train", i).answer) for i in (0, 1)] == [["stdio"], ["names", "setup", "cases"]]


@pytest.mark.parametrize(
    ("setup", "condition"),
    [
        ("", "twice(2) == 4"),
        ("from math import *", "isclose(twice(1.0), 2.0)"),
        ("from typing import *\nfrom collections import *", "Counter(twice('ab')) == Counter(cast(str, 'abab'))"),
        ("if True:\n    from collections.abc import *", "isinstance(iter(twice('ab')), Iterator) and Sized()"),
    ],
)
def test_what_a_star_import_defines_is_not_asked_for(tmp_path: Path, setup: str, condition: str) -> None:
    row = {"prompt": "Twice.", "test_list": [f"assert {condition}"], "test_setup_code": setup}
    task = make_code(write_jsonl(tmp_path / "x.jsonl", [row]), template="{interface}\n{problem}")
    assert task.problem("train", 0).prompt == "Write Python code that defines `twice`.\nTwice."
    assert task.problem("train", 0).answer["names"] == ["twice"]


def test_a_column_that_is_named_may_be_null_in_the_first_row(tmp_path: Path) -> None:
    test = [{"input": "1", "output": "2"}]
    rows = [{"prompt": "Add 1.", "tests": test, "calls": None}, {"prompt": "Twice.", "tests": test, "calls": "twice"}]
    task = make_code(write_jsonl(tmp_path / "x.jsonl", rows), entry_field="calls")
    assert [task.problem("train", i).answer.get("names") for i in range(2)] == [None, ["twice"]]


def test_star_imports_of_tests_import_no_other_modules(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """`this` prints when it is imported; `mine` may do anything."""
    (tmp_path / "mine.py").write_text("raise SystemExit(1)")
    setup = "from this import *\nfrom mine import *\nfrom . import *"
    row = {"prompt": "Twice.", "test_list": ["assert twice(2) == 4"], "test_setup_code": setup}
    sys.path.insert(0, str(tmp_path))
    try:
        task = make_code(write_jsonl(tmp_path / "x.jsonl", [row]))
    finally:
        sys.path.remove(str(tmp_path))
    assert (task.problem("train", 0).answer["names"], capfd.readouterr().out) == (["twice"], "")
    assert not {"this", "mine"} & set(sys.modules)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({}, r"no column any of tests, test, .* It has: prompt. Pass task.tests_field="),
        ({"tests": []}, r"x.jsonl:1: tests is \[\], expected pairs of input and output, or assertions"),
        *(
            ({"tests": tests}, r"x.jsonl:1: tests is {.*, expected lists of as many inputs as outputs")
            for tests in (
                *({"inputs": None, "outputs": None}, {"inputs": "12", "outputs": "34"}, {"inputs": ["1"]}),
                *({"inputs": ["1"], "outputs": []}, {"input": ["1"], "output": ["1"]}),
            )
        ),
        ({"tests": [{"input": "1", "output": "1", "metadata": "f"}]}, "1: tests is .*, expected an object as metadata"),
        ({"tests": {"inputs": [[1]], "outputs": [[1]], "fn_name": 1}}, "expected a text as the name of the function"),
        ({"tests": "[1"}, r"tests is '\[1', expected JSON"),
        ({"tests": "assert ("}, r"expected Python code"),
        ({"tests": "x = 1"}, r"expected assertions that call a function, or an entry point"),
        (
            {"tests": "def test_add():\n    assert add(1, 2) == 3\n"},
            r"expected assertions that run.*: nothing calls these",
        ),
        (
            {"tests": "class Tests(TestCase):\n    def test(self): self.assertEqual(add(1, 2), 3)"},
            "nothing calls these",
        ),
        ({"tests": [{"input": [1], "output": "1"}]}, r"expected texts as inputs and outputs"),
        ({"tests": [{"input": "a", "output": "1"}], "fn_name": "f"}, r"one argument to a line"),
        ({"tests": [{"input": {"nums": [1], "k": 3}, "output": 1}], "fn_name": "f"}, "expected lists of arguments"),
        (
            {"tests": [{"input": "1", "output": "1", "testtype": "functional"}]},
            r"the name of the function that is called \(task.entry_field\)",
        ),
        *(
            ({"tests": tests}, r"x.jsonl:1: tests is .* Stack is used as a class")
            for tests in (
                *("s = Stack()\ns.push(1)\nassert s.pop() == 1", "assert Stack().pop() is None"),
                "assert isinstance(make(), Stack)\nassert Stack() is not None",
            )
        ),
    ],
)
def test_tests_that_cannot_be_read_are_named_with_the_line(tmp_path: Path, row: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_code(write_jsonl(tmp_path / "x.jsonl", [{"prompt": "x", **row}]))
    with pytest.raises(ValueError, match="must contain {problem}"):
        make_code(write_jsonl(tmp_path / "x.jsonl", [SUM]), template="Solve.")


@pytest.mark.parametrize(
    "tests",
    [
        "assert Solve(2) == 4",  # a function with a capital letter
        "x = twice('a')\nassert x.upper() == 'AA'",  # methods of plain data
        "import math\nassert twice(math.pi) > 6",
    ],
)
def test_tests_of_functions_stay(tmp_path: Path, tests: str) -> None:
    assert make_code(write_jsonl(tmp_path / "x.jsonl", [{"prompt": "x", "tests": tests}])).size("train") == 1


@pytest.mark.slow
@pytest.mark.skipif(not DATA.is_dir(), reason=f"no real data at {DATA}")
def test_right_programs_of_real_benchmarks_pass_and_wrong_ones_do_not() -> None:
    """Solutions of our own: HumanEval+ by function, Codeforces and CodeContests by input and output."""
    tests = {
        "humaneval_plus": str(DATA / "humaneval_plus" / "test.jsonl.gz"),
        "codeforces": str(DATA / "code_stdio" / "codeforces_test.jsonl.gz"),
        "code_contests": str(DATA / "code_stdio" / "code_contests_test.jsonl.gz"),
    }
    task = make_code(str(DATA / "humaneval" / "test.jsonl.gz"), tests, cpu_s=20)
    problems = [task.problem("test", i) for i in range(task.size("test") or 0)]
    assert Counter(p.source for p in problems) == {"humaneval_plus": 164, "codeforces": 408, "code_contests": 165}
    known = {**FUNCTIONS, **PROGRAMS}
    solved = [p for p in problems if p.id in known]
    assert len(solved) == len(known)
    right = task.reward([(p, fenced(known[p.id])) for p in solved])
    assert {p.id: r.outcome for p, r in zip(solved, right, strict=True) if not r.correct} == {}
    none = "def {}(*args): return None"
    nothing = [none.format(p.answer["names"][0]) if "names" in p.answer else "print()" for p in solved[::4]]
    wrong = task.reward([(p, fenced(program)) for p, program in zip(solved[::4], nothing, strict=True)])
    assert {r.outcome for r in wrong} == {"wrong"}


@pytest.mark.slow
def test_guesses_show_tests_that_any_function_passes(tmp_path: Path) -> None:
    """Of each of these tests one guess is right; of the last none."""
    tests = {
        "x = [2, 1]\nf(x)\nassert x == sorted(x)": "a function that empties its first argument",
        "y = f(3)\nassert not y < 5 and not y > 5 or y == 1": "a function that returns NaN",
        "x = [1, 2]\nf(x)\nassert len(x) == 2": "a function that returns nothing",
        "assert f([2, 1]) == [1, 2]": None,
    }
    rows = [
        {"id": str(i), "prompt": f"{i}: Sort.", "tests": [test], "entry_point": "f"} for i, test in enumerate(tests)
    ]
    task = make_code(write_jsonl(tmp_path / "x.jsonl", rows))
    for i, guess in enumerate(tests.values()):
        problem = task.problem("train", i)
        guesses = task.guesses(problem)
        right = [about for about, text in guesses.items() if task.reward([(problem, text)])[0].correct]
        assert (guess in right) if guess else not right, (i, right)
