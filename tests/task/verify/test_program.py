"""What a program may do and how it is judged, in real sandboxes. Hostile programs must neither escape nor win."""

import contextlib
import json
import math
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from rlvr.task.verify.pool import Pool, niceness_for
from rlvr.task.verify.program import same_output
from rlvr.task.verify.sandbox import environment
from tests.support.sandboxed import judged_by_nobody, need_sandbox
from tests.task.verify import hostile

SUM = {"stdio": [["3 4\n", "7\n"], ["10 -4", "6"]]}
RIGHT = "a, b = map(int, input().split())\nprint(a + b)"
DOUBLE = {"names": ["double"], "setup": "", "tests": "assert double(2) == 4\nassert double('a') == 'aa'"}


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    need_sandbox()
    with Pool("rlvr.task.verify.program", workers=2, timeout_s=60.0, memory_gb=2.0) as pool:
        yield pool


def outcomes(pool: Pool, *programs: str, tests: dict[str, Any] = SUM, cpu_s: int = 1) -> list[str]:
    requests = [{"program": p, "tests": tests, "cpu_s": cpu_s} for p in programs]
    return [reply["outcome"] for reply in pool.ask(requests)]


def test_right_wrong_broken_and_endless_programs_are_told_apart(pool: Pool) -> None:
    cases = {
        RIGHT: "correct",
        "import sys\nprint(sum(map(int, sys.stdin.read().split())), end='')": "correct",
        "if __name__ == '__main__':\n    " + RIGHT.replace("\n", "\n    "): "correct",
        "def f(n: int): pass\nassert f.__annotations__ == {'n': int}\n" + RIGHT: "correct",
        "def f(numbers: List[int]): pass\n" + RIGHT: "wrong",  # a NameError: List is not imported
        "print(7)": "wrong",  # passes the first test only
        RIGHT + "\nraise SystemExit(1)": "wrong",
        "def f(:": "wrong",
        "": "wrong",
        "while True: pass": "timeout",
        "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass": "timeout",
    }
    assert dict(zip(cases, outcomes(pool, *cases), strict=True)) == cases


def test_a_program_that_sleeps_is_killed_by_the_wall_clock_and_leaves_nothing() -> None:
    need_sandbox()
    program = "import os, time\nif os.fork() == 0: os.setsid()\ntime.sleep(1000)"
    inside: set[psutil.Process] = set()
    with Pool("rlvr.task.verify.program", workers=1, timeout_s=5.0, memory_gb=2.0) as pool:
        asking = threading.Thread(target=lambda: replies.extend(outcomes(pool, program)))
        replies: list[str] = []
        asking.start()
        while asking.is_alive():
            with contextlib.suppress(psutil.NoSuchProcess):
                inside |= {p for pid in pool.pids() for p in psutil.Process(pid).children(recursive=True)}
            asking.join(0.05)
        assert replies == ["timeout"]
        assert inside
        _, alive = psutil.wait_procs(inside, timeout=30)
        assert not [p for p in alive if p.status() != psutil.STATUS_ZOMBIE]
        assert outcomes(pool, RIGHT) == ["correct"]


def test_functions_are_tested_by_calls(pool: Pool) -> None:
    cases = {"def double(x):\n    print('noise')\n    return x + x": "correct"}
    cases |= {"class Solution:\n    def double(self, x):\n        return 2 * x": "correct"}
    cases |= {"def double(x): return 4": "wrong", "def double(x): return None": "wrong"}
    cases |= {"def other(x): return 2 * x": "wrong", "def double(x): raise ValueError(x)": "wrong"}
    cases |= {"def double(x): return object()": "wrong", "def double(x):\n    while True: pass": "timeout"}
    assert dict(zip(cases, outcomes(pool, *cases, tests=DOUBLE), strict=True)) == cases


def test_plain_data_crosses_as_it_is(pool: Pool) -> None:
    code = (
        "data = [(1, 2.5), {3: {'a', 'b'}}, None, True, b'x', 1j, float('inf'), 10**5000, frozenset([1]), 'é\\n']\n"
        "assert repr(same(data)) == repr(data)\nassert same(x=data) == data\n"
        "try:\n    same(-1)\nexcept KeyError: pass\nelse: assert False"
    )
    program = "def same(x):\n    if x == -1: raise KeyError(x)\n    return x"
    assert outcomes(pool, program, tests={"names": ["same"], "setup": "", "tests": code}) == ["correct"]


COLLECTIONS = "from collections import Counter, defaultdict"


@pytest.mark.parametrize(
    ("body", "right", "wrong"),
    [
        ("yield from range(x)", "list(f(3)) == [0, 1, 2]", "f(3) == [0, 1, 2]"),
        ("yield from range(x)", "sum(f(3)) == 3", "len(f(3)) == 3"),
        ("return map(str, range(x))", "''.join(f(2)) == '01'", "f(2) == ['0', '1']"),
        ("return range(x)", "list(f(3)) == [0, 1, 2] and f(3) == range(3)", "f(3) == [0, 1, 2]"),
        ("import collections; return collections.deque([x], 2)", "list(f(3)) == [3]", "f(3) == [3]"),
        ("return {x: 1}.keys()", "list(f(3)) == [3] and f(3) == {3}", "f(3) == [3]"),
        ("return {x: [1]}.values()", "list(f(3)) == [[1]]", "f(3) == [[1]]"),
        ("return {x: 1}.items()", "sorted(f(3)) == [(3, 1)]", "f(3) == [(3, 1)]"),
        ("import fractions; return fractions.Fraction(x, 4)", "f(3) == 0.75", "f(3) == 3"),
        ("import decimal; return decimal.Decimal('0.1') * x", "str(f(3)) == '0.3'", "f(3) == 0.3"),
        ("return [iter([x])]", "[list(part) for part in f(3)] == [[3]]", "f(3) == [[3]]"),
        (f"{COLLECTIONS}; return Counter('a' * x)", "f(3).most_common() == [('a', 3)] and f(3)['b'] == 0", "f(3)['b']"),
        (f"{COLLECTIONS}; return [Counter(a=x)]", "f(3) == [{'a': 3}] and f(3)[0].total() == 3", "f(3) == [('a', 3)]"),
        (f"{COLLECTIONS}; return defaultdict(int, a=x)", "f(3) == {'a': 3} and f(3)['b'] == 0", "f(3)['b'] == 1"),
        (f"{COLLECTIONS}; return defaultdict(list)", "f(3) == {} and f(3)['b'] == []", "f(3)['b'] == {}"),
        (f"{COLLECTIONS}; return defaultdict(lambda: 1, a=x)", "f(3) == {'a': 3}", "f(3)['b'] == 1"),
    ],
)
def test_results_that_a_test_converts_equal_what_they_equal_in_python(
    pool: Pool, body: str, right: str, wrong: str
) -> None:
    program = f"def f(x):\n    {body}"
    verdicts = [
        outcomes(pool, program, tests={"names": ["f"], "setup": "", "tests": f"assert {condition}"})
        for condition in (right, wrong)
    ]
    assert verdicts == [["correct"], ["wrong"]]


def test_returned_decimals_have_a_tolerance_and_texts_and_integers_have_none(pool: Pool) -> None:
    rows: list[tuple[Any, str, str]] = [  # the right result, what is returned, the outcome
        *(([0.5, [0.25]], "[0.5000001, [0.25]]", "correct"), ([0.5, [0.25]], "[0.5001, [0.25]]", "wrong")),
        *(({"a": 1.5}, "{'a': 1.5000001}", "correct"), ([0.5], "[0.5, 0.5]", "wrong")),
        *((1000000, "1000000.1", "wrong"), ("10", "'0010'", "wrong"), ("10", "10", "wrong")),
        *((math.inf, "1e9", "wrong"), (math.inf, "1e999", "correct"), (1e9, "1e999", "wrong")),
        *((10**5000, "10**5000", "correct"), (10**5000, "10**5000 + 1", "wrong")),
    ]
    for expected, returned, outcome in rows:
        tests = {"names": ["f"], "setup": "", "cases": [[[1], [expected]]]}
        with long_numbers():
            assert outcomes(pool, f"def f(x): return {returned}", tests=tests) == [outcome], returned
    printing = {"stdio": [["", "1" + "0" * 5000]]}
    assert outcomes(pool, "print(10**5000)", "print(10**5000 + 1)", tests=printing) == ["correct", "wrong"]


@contextlib.contextmanager
def long_numbers() -> Iterator[None]:
    """As in a process with task=code: numbers of any length are written as JSON."""
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        yield
    finally:
        sys.set_int_max_str_digits(before)


def test_an_endless_generator_is_ended(pool: Pool) -> None:
    program = "def double(x):\n    while True: yield x"
    assert outcomes(pool, program, tests=DOUBLE)[0] in ("timeout", "wrong")


def test_numpy_values_count_as_numbers(pool: Pool) -> None:
    program = "import numpy\ndef double(x): return (numpy.array([x]) * 2)[0] if isinstance(x, int) else x * 2"
    assert outcomes(pool, program, tests=DOUBLE, cpu_s=20) == ["correct"]


@pytest.mark.parametrize(
    ("result", "condition"),
    [
        ("np.array([x, 2])", "f(3).tolist() == [3, 2] and f(3).shape == (2,) and f(3).dtype == np.array([3]).dtype"),
        ("np.array([[x, 0.1]], np.float32)", "f(3)[0, 1] == np.float32(0.1) and f(3).dtype == np.float32"),
        ("np.zeros((0, x), bool)", "f(3).shape == (0, 3) and f(3).dtype == bool"),
        ("np.asfortranarray([[1, 2], [x, 4]]).T", "f(3).tolist() == [[1, 3], [2, 4]]"),
        ("[np.array(x), {'k': np.array(['a', 'bc'])}]", "f(3)[0].shape == () and (f(3)[1]['k'] == ['a', 'bc']).all()"),
        ("np.array([x + 1j, 2])", "f(3)[0] == 3 + 1j"),
        ("np.array([[1], [x], None][:2] + [None], dtype=object)", "f(3)[1] == [3] and f(3)[2] is None"),
        ("np.array([(1, x)], dtype='i4,i4')", "list(f(3)) == [(1, 3)]"),  # structured: as a list
    ],
)
def test_an_array_that_a_program_returns_is_one_for_the_tests(pool: Pool, result: str, condition: str) -> None:
    program = f"import numpy as np\ndef f(x): return {result}"
    codes = [f"import numpy as np\nassert {condition}", f"import numpy as np\nassert not ({condition})"]
    verdicts = [
        outcomes(pool, program, tests={"names": ["f"], "setup": "", "tests": code}, cpu_s=20)[0] for code in codes
    ]
    assert verdicts == ["correct", "wrong"]


def test_an_array_counts_as_a_list_where_the_expected_result_is_json(pool: Pool) -> None:
    tests = {"names": ["f"], "setup": "", "cases": [[[[1, 2]], [[2, 4]]]]}
    programs = [f"import numpy as np\ndef f(x): return {factor} * np.array(x)" for factor in (2, 3)]
    assert outcomes(pool, *programs, tests=tests, cpu_s=20) == ["correct", "wrong"]


def test_counters_defaultdicts_and_arrays_reach_the_program_as_they_are(pool: Pool) -> None:
    code = (
        "import collections\nimport numpy as np\n"
        "assert f(collections.Counter('aab')) == 'a'\n"
        "assert f(collections.defaultdict(int, a=1)) == 0\n"
        "assert (f(np.array([1, 2])) == np.array([2, 3])).all()\n"
        "a = np.array([1.5, 2.5])\nassert f(a=a) is None and a.tolist() == [0, 2.5]\n"
        "c = collections.Counter('a')\nassert f(a=c) is None and c == {'a': 1, 0: 0} and type(c) is collections.Counter"
    )
    program = (
        "def f(x=None, a=None):\n"
        "    if a is not None:\n        a[0] = 0\n        return\n"
        "    if hasattr(x, 'most_common'): return x.most_common(1)[0][0]\n"
        "    return x['zz'] if isinstance(x, dict) else x + 1"
    )
    tests = {"names": ["f"], "setup": "", "tests": code}
    assert outcomes(pool, program, program.replace("a[0] = 0", "pass"), tests=tests, cpu_s=20) == ["correct", "wrong"]


def test_arrays_that_cannot_reach_the_program_are_an_error_of_the_tests(pool: Pool) -> None:
    for argument in ("np.array([(1, 2)], 'i4,i4')", "np.array(['2026-01-01'], 'M8[D]')", "np.matrix([[1]])"):
        code = f"import numpy as np\nassert f(1) == 1\nassert f({argument}) is not None"
        tests = {"names": ["f"], "setup": "", "tests": code}
        assert outcomes(pool, "def f(x): return x", tests=tests, cpu_s=20) == ["error"], argument


# What a program might write on its own, in place of a result.
NO_RESULTS = [
    *({"defaultdict": ["eval", []]}, {"defaultdict": [None, []]}, {"Counter": 3}, {"ndarray": ["O", [1], 3]}),
    *({"ndarray": ["no such type", [1], [4]]}, {"ndarray": ["<i8", [2], [4]]}),
    *({"ndarray": ["S1000000000000", [1], [{"bytes": ""}]]}, {"eval": "4"}),
]


def test_a_result_that_is_none_is_wrong_and_no_error(pool: Pool) -> None:
    program = (
        "import os\ndef double(x):\n    for fd in range(3, 64):\n"
        "        try: os.write(fd, b'{}\\n')\n        except OSError: pass"
    )
    programs = [program.replace("{}", json.dumps({"value": value})) for value in NO_RESULTS]
    assert outcomes(pool, *programs, tests=DOUBLE, cpu_s=20) == ["wrong"] * len(NO_RESULTS)


def test_arguments_that_are_changed_in_place_are_changed_for_the_tests(pool: Pool) -> None:
    code = (
        "x = [3, 1, 2]\nalias = x\nassert order(x) is None\nassert x == [1, 2, 3] and alias is x\n"
        "deep = [[2, 1], {'a': [2, 1]}]\ninner = deep[0]\norder(deep)\n"
        "d = {'k': [2, 1]}\norder(x=d)\nassert d == {'k': [1, 2]}, d\n"
        "s = {1, 2}\norder(s)\nassert s == {0, 1, 2}\n"
        "t = (2, 1)\norder(t)\nassert t == (2, 1)"
    )
    program = (
        "def order(x):\n"
        "    if isinstance(x, list): x.sort(key=str)\n"
        "    if isinstance(x, dict): [v.sort() for v in x.values()]\n"
        "    if isinstance(x, set): x.add(0)"
    )
    tests = {"names": ["order"], "setup": "", "tests": code}
    assert outcomes(pool, program, "def order(x): pass", tests=tests) == ["correct", "wrong"]
    cases = {"names": ["order"], "setup": "", "cases": [[[[2, 1]], [[1, 2]]]]}  # LeetCode: "modify it in place"
    assert outcomes(pool, program, "def order(x): pass", tests=cases) == ["correct", "wrong"]


def test_a_function_that_returns_something_cannot_rewrite_what_it_is_compared_with(pool: Pool) -> None:
    tests = {"names": ["order"], "setup": "", "tests": "x = [3, 1, 2]\nassert order(x) == sorted(x)"}
    programs = [
        "def order(x): x.clear(); return []",
        "def order(x): x[:] = [0]; return [0]",
        "def order(x): return sorted(x)",
    ]
    assert outcomes(pool, *programs, tests=tests) == ["wrong", "wrong", "correct"]


def test_cases_compare_as_json(pool: Pool) -> None:
    tests = {"names": ["pair"], "setup": "", "cases": [[[1, "a"], [[1, "a"]]], [[2, "b"], [[2, "b"]]]]}
    programs = ["def pair(x, y): return x, y", "def pair(x, y): return [1, 'a']"]
    assert outcomes(pool, *programs, tests=tests) == ["correct", "wrong"]


def test_tests_that_fail_by_themselves_are_an_error_not_a_wrong_answer(pool: Pool) -> None:
    for code in ("import no_such_module", "assert (", "pass", "double(lambda: 1)"):
        tests = {"names": ["double"], "setup": "", "tests": code}
        assert outcomes(pool, "def double(x): return 2 * x", tests=tests) == ["error"], code


# Each tries to make the verdict "correct" without solving the problem.
FORGERIES = [
    "import os; os._exit(10)",
    "raise SystemExit(10)",
    "print('correct'); print('{\"outcome\": \"correct\"}')",
    "import os\nfor fd in range(3, 64):\n"
    '    try: os.write(fd, b\'{"outcome": "correct"}\\n\')\n    except OSError: pass',
    "class Yes(int):\n    def __eq__(self, other): return True\n    __hash__ = None\ndef double(x): return Yes(3)",
    "class Yes(str):\n    def __eq__(self, other): return True\n    def __repr__(self): return '4'\n"
    "def double(x): return Yes('3')",
    "import builtins\nbuiltins.AssertionError = ValueError\ndef double(x): return 1",
    "import os, sys, signal\ndef double(x):\n    os.kill(os.getppid(), signal.SIGKILL)\n    os.kill(1, signal.SIGKILL)",
    "import gc, sys\ndef double(x):\n    for o in gc.get_objects():\n"
    "        if isinstance(o, dict) and 'tests' in o: o['tests'] = ''\n    return 0",
    "import json\njson.dumps = lambda *a: '{\"value\": 4}'\ndef double(x): return 0",
]


@pytest.mark.parametrize("tests", [SUM, DOUBLE], ids=["stdio", "function"])
def test_a_verdict_cannot_be_forged(pool: Pool, tests: dict[str, Any]) -> None:
    assert outcomes(pool, *FORGERIES, tests=tests) == ["wrong"] * len(FORGERIES)


def test_an_exception_of_a_program_does_not_end_the_loops_of_the_tests(pool: Pool) -> None:
    loops = [
        "for a, b in zip(map(double, [1, 2]), [2, 4]): assert a == b",
        "assert all(map(lambda x: double(x) == 2 * x, [1]))",
    ]
    for loop in loops:
        tests = {"names": ["double"], "setup": "", "tests": loop}
        programs = ("def double(x): raise StopIteration", "def double(x): return 2 * x")
        assert outcomes(pool, *programs, tests=tests) == ["wrong", "correct"]


@pytest.mark.parametrize(
    ("program", "caught"),
    [
        ("import json\ndef f(): json.loads('{')", "ValueError"),  # json.JSONDecodeError
        ("from decimal import *\ndef f(): return Decimal(1) / Decimal(0)", "ZeroDivisionError"),
        ("from decimal import *\ndef f(): return Decimal('x')", "ArithmeticError"),
        ("def f(): b'\\xff'.decode()", "UnicodeDecodeError"),
        ("class Empty(LookupError, ValueError): pass\ndef f(): raise Empty", "LookupError"),
        ("class Own(Exception): pass\ndef f(): raise Own", "Exception"),
    ],
)
def test_tests_catch_exceptions_by_the_built_in_class_that_they_are_of(pool: Pool, program: str, caught: str) -> None:
    code = "try:\n    f()\nexcept {}: pass\nelse: assert False"
    verdicts = [
        outcomes(pool, program, tests={"names": ["f"], "setup": "", "tests": code.format(name)})
        for name in (caught, "ImportError")
    ]
    assert verdicts == [["correct"], ["wrong"]]


def test_an_exception_cannot_be_of_any_other_class_of_the_tests(pool: Pool) -> None:
    """The name is looked up among the built-in exceptions: these have the name of the function eval, of none, and of
    exceptions that would end the tests."""
    programs = [
        "class eval(Exception): __module__ = 'builtins'\ndef f(): raise eval('exit(10)')",
        "class Nothing(Exception): __module__ = 'builtins'\ndef f(): raise Nothing",
        "class Stop(StopIteration): pass\ndef f(): raise Stop",
        "class Leave(SystemExit): pass\ndef f(): raise Leave(10)",
    ]
    code = "for _ in map(lambda _: f(), [1]): pass\nassert False"
    assert outcomes(pool, *programs, tests={"names": ["f"], "setup": "", "tests": code}) == ["wrong"] * 4
    caught = "try:\n    f()\nexcept RuntimeError: pass"
    assert outcomes(pool, *programs, tests={"names": ["f"], "setup": "", "tests": caught}) == ["correct"] * 4


def test_a_program_cannot_choose_to_be_no_answer_at_all(pool: Pool) -> None:
    """`error` is never trained on: a program that could cause it would escape its punishment."""
    programs = [
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
        "import os, signal; os.kill(0, signal.SIGKILL)",
        "import os; os.closerange(0, 256)",
        "import os; os.ftruncate(1, 0); os._exit(1)",
        "x = bytearray(10**12)",
        "def double(x): return [0] * 10**8",
        "def double(x):\n    r = []\n    for _ in range(10**5): r = [r]\n    return r",
    ]
    for tests in (SUM, DOUBLE):
        assert set(outcomes(pool, *programs, tests=tests)) <= {"wrong", "timeout"}


REFUSAL = {"stdio": [["", "refused"]]}
HELD = {"stdio": [["", "held"]]}


def test_what_the_sandbox_forbids_is_refused(pool: Pool) -> None:
    results = outcomes(pool, *hostile.REFUSED.values(), tests=REFUSAL, cpu_s=20)
    assert dict(zip(hostile.REFUSED, results, strict=True)) == dict.fromkeys(hostile.REFUSED, "correct")


def test_it_is_refused_to_programs_of_an_ordinary_user() -> None:
    need_sandbox()
    requests = [{"program": p, "tests": REFUSAL, "cpu_s": 20} for p in hostile.REFUSED.values()]
    results = judged_by_nobody(requests, workers=2, timeout_s=60.0, memory_gb=2.0)
    assert dict(zip(hostile.REFUSED, results, strict=True)) == dict.fromkeys(hostile.REFUSED, "correct")


def signalling() -> list[dict[str, Any]]:
    """Where its output is compared, while it is loaded, and in a call."""
    programs = list(hostile.SIGNALS.values())
    bodies = ["def double(x):\n" + "\n".join(f"    {line}" for line in p.splitlines()) for p in programs]
    both = [(SUM, programs), (DOUBLE, programs), (DOUBLE, bodies)]
    return [{"program": p, "tests": tests, "cpu_s": 2} for tests, group in both for p in group]


@pytest.mark.slow
def test_no_signal_leaves_the_sandbox(pool: Pool) -> None:
    """`error` would drop the answer's whole group from training. The process that judges lives on as well."""
    pool.ask([{"program": RIGHT + f"\n# {n}", "tests": SUM, "cpu_s": 1} for n in range(2)])
    before = pool.pids()
    results = [reply["outcome"] for reply in pool.ask(signalling())]
    assert (set(results), pool.pids(), outcomes(pool, RIGHT)) == ({"wrong", "timeout"}, before, ["correct"])


@pytest.mark.slow
def test_no_signal_of_an_ordinary_user_leaves_the_sandbox() -> None:
    need_sandbox()
    right = {"program": RIGHT, "tests": SUM, "cpu_s": 2}
    results = judged_by_nobody([*signalling(), right], workers=2, timeout_s=60.0, memory_gb=2.0)
    assert (set(results[:-1]), results[-1]) == ({"wrong", "timeout"}, "correct")


@pytest.mark.parametrize("name", hostile.HOARDS)
def test_all_processes_together_hold_no_more_than_the_limit(name: str) -> None:
    need_sandbox()
    lowest = before = psutil.virtual_memory().available
    results: list[str] = []
    with Pool("rlvr.task.verify.program", workers=1, timeout_s=60.0, memory_gb=1.0) as pool:
        asking = threading.Thread(
            target=lambda: results.extend(outcomes(pool, hostile.HOARDS[name], tests=HELD, cpu_s=30))
        )
        asking.start()
        while asking.is_alive():
            lowest = min(lowest, psutil.virtual_memory().available)
            asking.join(0.02)
    assert results == ["wrong"]
    assert before - lowest < 2 * 2**30  # others use the machine as well


@pytest.mark.slow
def test_empty_files_count_as_memory() -> None:
    need_sandbox()
    with Pool("rlvr.task.verify.program", workers=1, timeout_s=250.0, memory_gb=0.2) as pool:
        assert outcomes(pool, hostile.EMPTY_FILES, tests=HELD, cpu_s=200) == ["wrong"]


@pytest.mark.slow
def test_a_program_that_sleeps_costs_its_problems_time_limit(pool: Pool) -> None:
    for tests in (SUM, DOUBLE):
        for name, program in hostile.SLEEPS.items():
            start = time.monotonic()
            assert outcomes(pool, program, tests=tests, cpu_s=2)[0] in ("timeout", "wrong"), name
            assert time.monotonic() - start < 15, name  # of 60


@pytest.mark.slow
def test_all_processes_together_compute_no_longer_than_the_limit(pool: Pool) -> None:
    for name, program in hostile.COMPUTES.items():
        start = time.monotonic()
        assert outcomes(pool, program, cpu_s=3) == ["timeout"], name
        assert time.monotonic() - start < 30, name


TRAINER = """
import hashlib, os, threading
def work():
    while True: hashlib.sha256(bytes(2**18)).digest()
for _ in os.sched_getaffinity(0): threading.Thread(target=work).start()
"""


def cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def below(pool: Pool) -> list[psutil.Process]:
    """All that its verifying processes started, and that runs now."""
    running: list[psutil.Process] = []
    for pid in pool.pids():
        with contextlib.suppress(psutil.NoSuchProcess):
            running += psutil.Process(pid).children(recursive=True)
    return running


@pytest.mark.slow
def test_two_fork_bombs_get_less_than_a_trainer_that_wants_every_core() -> None:
    """By CPU seconds, for other work on this machine takes from both."""
    need_sandbox()
    pool = Pool("rlvr.task.verify.program", workers=2, timeout_s=8.0, memory_gb=2.0, nice=niceness_for(2))
    trainer = subprocess.Popen([sys.executable, "-c", TRAINER], start_new_session=True)
    try:
        with pool:
            assert outcomes(pool, RIGHT, RIGHT + " ", cpu_s=5) == ["correct"] * 2  # both processes are there
            before = cpu_s(psutil.Process(trainer.pid))
            bombs = [hostile.FORK_BOMB, hostile.FORK_BOMB + " "]
            asking = threading.Thread(target=lambda: outcomes(pool, *bombs, cpu_s=100))
            asking.start()
            taken: dict[psutil.Process, float] = {}  # a process is known by its pid and its start
            while asking.is_alive():
                for bomb in below(pool):
                    with contextlib.suppress(psutil.NoSuchProcess):
                        taken[bomb] = cpu_s(bomb)
                asking.join(0.1)
            assert cpu_s(psutil.Process(trainer.pid)) - before > sum(taken.values()) > 0
    finally:
        trainer.kill()
        trainer.wait()


@pytest.mark.slow
def test_waiting_for_a_core_costs_a_program_nothing() -> None:
    """Eight at once on few cores: a wall clock would have ended them."""
    need_sandbox()
    program = "import time\nwhile time.process_time() < 1.2: pass\n" + RIGHT
    programs = [program + "\n" * n for n in range(8)]
    with Pool("rlvr.task.verify.program", workers=8, timeout_s=120.0, memory_gb=1.0, nice=10) as many:
        assert outcomes(many, *programs, tests={"stdio": SUM["stdio"][:1]}, cpu_s=2) == ["correct"] * 8


@pytest.mark.slow
def test_an_answer_cannot_make_the_verifier_run_out_of_memory_to_be_no_answer() -> None:
    """Its 15 MB of numbers are more than the judging process may hold, as words (0.3 GiB; it needs 0.1)."""
    need_sandbox()
    program = "print('10 ' * (5 * 10**6 + 10))"
    with Pool("rlvr.task.verify.program", workers=1, timeout_s=60.0, memory_gb=0.2) as small:
        assert outcomes(small, program, tests={"stdio": [["", "1 2"]]}, cpu_s=5) == ["timeout"]
        assert outcomes(small, RIGHT) == ["correct"]


LOOKS = """
from pathlib import Path
import os, socket, tempfile
def refused(act):
    try: act()
    except OSError: return True
    return False
seen = {
    "passwd": refused(lambda: Path("/etc/passwd").read_text()),
    "home": refused(lambda: list(Path(HOME).iterdir())) or not [p for p in Path(HOME).rglob("*") if p.is_file()
            and not str(p).startswith(PYTHON)],
    "this": refused(lambda: Path(FILE).read_text()),
    "network": refused(lambda: socket.create_connection(("127.0.0.1", PORT), timeout=2)),
    "written": all(refused(lambda d=d: Path(d, "x").write_text("x")) for d in ("/usr", "/", "/etc", "/dev/shm")),
    "scratch": not refused(lambda: tempfile.TemporaryFile().write(b"x")),
    "alone": all(int(p.name) < 10 for p in Path("/proc").iterdir() if p.name.isdigit()),
    "secret": "RLVR_TEST_SECRET" not in os.environ and refused(lambda: Path("/proc/PARENT/environ").read_bytes()),
    "nobody": os.getuid() != 0 or not os.access("/usr", os.W_OK),
}
print(" ".join(k for k, v in seen.items() if not v))
"""


def test_a_program_sees_no_files_secrets_processes_or_network(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLVR_TEST_SECRET", "hunter2")
    with socket.create_server(("127.0.0.1", 0)) as server:
        names = {"HOME": repr(str(Path.home())), "PYTHON": repr(sys.base_prefix), "FILE": repr(__file__)}
        names |= {"PORT": str(server.getsockname()[1])}
        program = "".join(f"{k} = {v}\n" for k, v in names.items()) + LOOKS.replace("PARENT", str(os.getpid()))
        assert outcomes(pool, program, tests={"stdio": [["", ""]]}, cpu_s=20) == ["correct"]
    assert "RLVR_TEST_SECRET" not in environment()


def test_a_fork_bomb_is_bounded_and_gone_afterwards(pool: Pool) -> None:
    bomb = (
        "import os, time\nn = 0\n"
        "try:\n    while n < 1000:\n        if os.fork() == 0: time.sleep(1000)\n        n += 1\n"
        "except OSError: pass\nprint('few' if n < 100 else 'many')"
    )
    assert outcomes(pool, bomb, tests={"stdio": [["", "few"]]}) == ["correct"]
    endless = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    with Pool("rlvr.task.verify.program", workers=1, timeout_s=5.0, memory_gb=2.0) as short:
        assert outcomes(short, endless) == ["timeout"]
    assert outcomes(pool, RIGHT) == ["correct"]


def test_huge_output_and_files_are_cut_off(pool: Pool) -> None:
    programs = [
        "import sys\nwhile True: sys.stdout.write('x' * 10**6)",
        "with open('/tmp/x', 'wb') as f:\n    while True: f.write(b'x' * 10**6)",
        "n = 0\nwhile True:\n    n += 1\n    with open(f'/tmp/{n}', 'wb') as f: f.write(b'x' * 10**7)",
    ]
    assert set(outcomes(pool, *programs, cpu_s=10)) == {"wrong"}
    talker = "import os\ndef double(x):\n    while True: [os.write(fd, b'x' * 10**6) for fd in range(3, 10)]"
    assert set(outcomes(pool, talker, tests=DOUBLE)) <= {"wrong", "timeout"}


@pytest.mark.parametrize(
    ("printed", "expected", "same"),
    [
        ("1 2\n", "1 2", True),
        ("  1 2 \n\n", "1 2", True),
        ("1.0 2", "1 2.00", True),
        ("1e2", "100", True),
        ("1\n2", "1 2", False),
        ("1  2", "1 2", True),
        ("a  b", "a b", False),
        ("0.10000001", "0.1", True),  # 1e-7 of its size
        ("0.3333", "0.333333333", False),
        ("1e-9", "0.0", True),
        ("1000001", "1000000", False),  # integers have no tolerance
        ("2.9999999", "3", False),
        ("0010", "10", False),  # a text of digits
        ("7" * 5000, "7" * 4999 + "8", False),
        ("yes", "YES", False),
        ("", "", True),
        ("nan", "nan", True),
        ("1 x", "1 x y", False),
        ("1_0", "10", False),
        ("٧", "7", False),
        ("Infinity", "inf", False),
        ("1e999999999", "2e999999999", False),
        (".5 -0 +3.", "0.5 0 3", True),
    ],
)
def test_outputs_are_compared_line_by_line_and_numbers_by_value(printed: str, expected: str, same: bool) -> None:
    assert same_output(printed, expected) is same


@pytest.mark.slow
def test_a_verifying_process_keeps_no_descriptor_of_its_programs(pool: Pool) -> None:
    def descriptors() -> dict[int, int]:
        return {pid: len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in pool.pids()}

    outcomes(pool, RIGHT, RIGHT + " ")
    before = descriptors()
    for n in range(4):
        outcomes(pool, RIGHT + "\n" * n, "def f(:" + " " * n)
        outcomes(pool, *(f"def double(x): return {m} * x" for m in (2, n)), tests=DOUBLE)
    assert descriptors() == before


@pytest.mark.slow
def test_a_long_number_that_is_none_is_compared_in_one_pass() -> None:
    """A million digits, tried in every way, would take hours."""
    number = "7" * 10**6
    assert not same_output(f"{number}x", "7")
    assert not same_output(f"{number}.{number}x", "7")
    assert same_output("1.50 .5 2. 1e3", "1.5 0.5 2 1000")
