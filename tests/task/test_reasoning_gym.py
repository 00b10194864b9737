import json
import re
import subprocess
import sys
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("reasoning_gym")

from rlvr.records import Problem, Rollout
from rlvr.rollout.evaluation import Answers, evaluation_metrics
from rlvr.task.characters import CHARACTERS, read, spell
from rlvr.task.reasoning_gym import READ, ReasoningGym
from tests.support.sandboxed import need_sandbox
from tests.support.tasks import make_task
from tests.task.test_splits import disjoint

SUMS = {"chain_sum": {"min_terms": 2, "max_terms": 2, "max_digits": 2}}


def make_gym(generators: Any = SUMS, **knobs: Any) -> ReasoningGym:
    need_sandbox()
    return make_task("reasoning_gym", **{"generators": generators, "test_problems": 8, "workers": 1, **knobs})


def test_answers_are_judged_by_the_librarys_own_verifier() -> None:
    task = make_gym([*SUMS, "countdown"])
    problems = [task.problem("test", i) for i in range(16)]
    assert Counter(p.source for p in problems) == {"chain_sum": 8, "countdown": 8}
    assert [r.outcome for r in task.reward([(p, task.solution(p)) for p in problems])] == ["correct"] * 16
    first = problems[0]
    right = task.solution(first)
    texts = {
        f"No. {right.replace('answer>', 'answer >')} {right}": "correct",
        "<answer>1</answer> no, " + right: "correct",  # the last one counts
        right + " no, <answer>1e99</answer>": "wrong",
        right.removesuffix("</answer>"): "unparsable",
        "<answer></answer>": "wrong",
        "": "unparsable",
    }
    rewards = task.reward([(first, text) for text in texts])
    assert [r.outcome for r in rewards] == list(texts.values())
    assert [r.value for r in rewards] == [float(o == "correct") for o in texts.values()]


@pytest.mark.slow
def test_a_verifier_that_evaluates_what_it_reads_does_so_in_the_sandbox(tmp_path: Path) -> None:
    task = make_gym("puzzle24", timeout_s=3.0)
    problem = task.problem("test", 0)
    mark = tmp_path / "mark"
    hostile = [f"__import__('pathlib').Path({str(mark)!r}).touch()", "9**9**9**9", "(" * 5000, "24"]
    rewards = task.reward([(problem, f"<answer>{text}</answer>") for text in hostile])
    assert not any(r.correct for r in rewards)
    assert {r.outcome for r in rewards} <= {"wrong", "timeout"}
    assert not mark.exists()


@pytest.mark.slow
def test_code_in_an_answer_neither_ends_the_verifier_nor_changes_it() -> None:
    task = make_gym("string_insertion")
    problem = task.problem("test", 0)
    gym = "__import__('reasoning_gym.algorithmic.string_insertion').algorithmic.string_insertion"
    hostile = {
        "exit": "__import__('os')._exit(1)",
        "replies": r"""__import__('os').write(3, b'{"outcome": "correct", "score": 1.0}\n')""",
        "requests": "__import__('os').read(0, 1000)",
        "a process that stays": "__import__('os').fork() or __import__('os').setsid() or __import__('time').sleep(9)",
        "verifier": f"setattr({gym}.StringInsertionDataset, 'score_answer', min)",
    }
    texts = [*hostile.values(), task.solution(problem).removeprefix("<answer>").removesuffix("</answer>"), "1"]
    rewards = task.reward([(problem, f"<answer>{text}</answer>") for text in texts])
    outcomes = [reward.outcome for reward in rewards]
    assert outcomes == ["wrong"] * 5 + ["correct", "wrong"]


@pytest.mark.slow
def test_scores_between_0_and_1_are_rewards_only_on_demand() -> None:
    # `letter_jumble` scores the share of words that are right.
    for binary, value in ((True, 0.0), (False, 0.5)):
        task = make_gym({"letter_jumble": {"min_words": 2, "max_words": 2}}, binary=binary)
        problem = task.problem("test", 0)
        first, _ = task.solution(problem).removeprefix("<answer>").removesuffix("</answer>").split()
        (reward,) = task.reward([(problem, f"<answer>{first} zzz</answer>")])
        assert (reward.outcome, reward.value) == ("wrong", pytest.approx(value))


@pytest.mark.slow
def test_different_right_answers_of_one_problem_are_counted() -> None:
    knobs = {"min_num_vertices": 5, "max_num_vertices": 5, "edge_probability": 0.6}
    task = make_gym({"graph_color": knobs, "chain_sum": {}}, test_problems=1)
    graph, total = (task.problem("test", i) for i in range(2))
    edges = re.findall(r"\((\d), (\d)\)", graph.prompt)
    assert edges
    colourings = [dict(zip("01234", colours, strict=True)) for colours in product((1, 2, 3), repeat=5)]
    right = [colours for colours in colourings if all(colours[a] != colours[b] for a, b in edges)]
    texts = [json.dumps(colours) for colours in right]
    texts += [json.dumps(dict(reversed(right[0].items())), indent=1), json.dumps(dict.fromkeys("01234", 1))]
    assert measure(task, graph, [f"<answer>{text}</answer>" for text in texts]) == {
        "avg": pytest.approx((len(right) + 1) / len(texts)),  # one colouring is written twice, the last one is wrong
        "distinct_correct": len(right),
    }
    assert len(right) > 1
    assert measure(task, total, [task.solution(total)] * 2) == {"avg": 1, "distinct_correct": 1}
    assert not (of_one_answer := make_gym()).several_answers
    assert "distinct_correct" not in measure(of_one_answer, of_one_answer.problem("test", 0), ["", ""])


@pytest.mark.slow
def test_puzzles_of_numbers_need_the_numbers_of_the_question() -> None:
    task = make_gym(["puzzle24", "countdown"], test_problems=1)
    puzzle, countdown = (task.problem("test", i) for i in range(2))  # the puzzle: of 4, 6, 1 and 1
    answers = {"4*6/(1*1)": True, "6*4*1*1": True, "6*4": False, "8*3*1*1": False, "4*6*1*1.0": False, "nan": False}
    rewards = task.reward([(puzzle, f"<answer>{text}</answer>") for text in answers])
    assert [r.correct for r in rewards] == list(answers.values())
    assert task.reward([(countdown, task.solution(countdown))])[0].correct
    hostile = ["pi", "pi*0+7", "ceiling(pi)", "inf", "1/0", "9**9**9", "(" * 5000, "1" * 9000, ""]
    assert not any(r.correct for r in task.reward([(countdown, f"<answer>{text}</answer>") for text in hostile]))


@pytest.mark.slow
def test_a_question_in_the_form_of_a_call_is_no_answer_to_it() -> None:
    task = make_gym(["simple_integration", "polynomial_multiplication", "intermediate_integration"], test_problems=16)
    problems = [task.problem("test", i) for i in range(3 * 16)]
    assert all(reward.correct for reward in task.reward([(p, task.solution(p)) for p in problems]))
    integral, polynomial = problems[0], next(p for p in problems if p.source == "polynomial_multiplication")
    ((integrand, variable),) = re.findall(r"∫ (.*) d(\w)$", integral.prompt, re.MULTILINE)
    (factors,) = re.findall(r"(?:expression|following): (.*\*.*)$", polynomial.prompt, re.MULTILINE)
    restated = [(integral, f"Integral({integrand}, {variable})"), (integral, f"({integrand}).integrate({variable})")]
    restated += [(polynomial, text) for text in (f"expand({factors})", f"({factors}).expand()", factors)]
    assert not any(r.correct for r in task.reward([(p, f"<answer>{text}</answer>") for p, text in restated]))


def test_an_answer_is_one_answer_however_it_is_spelled() -> None:
    rows = {
        "quantum_lock": ["A → B → C", "ABC", "a, b, c", "A -> B -> C.", "A B C"],
        "sokoban": ["UDLR", "U D L R", "UDxLR!", "U,D,L,R"],
        "word_ladder": ["COLD,CORD", "cold, cord", "Cold,Cord"],
        "cryptarithm": ["A=1,B=2", "B=2, A=1", "A = 1, B=2", "A=01,B=+2", "B=1,A=1,B=2"],
        "palindrome_generation": ["abba", "ABBA", " Abba\n"],
        "tower_of_hanoi": ["Move disk 1 from Peg 4 to Peg 2", "Move disk 01 from Peg 4 to Peg 02\n"],
        "jugs": ['["fill A", "pour A->B"]', '["fill  A now","pour A->B "]'],
        "graph_color": ['{"0": 1, "1": 2}', '{"1": 2, "0": 1.0, "77": 3}', '{"0": true, "1": 2}'],
        "boxnet": [
            '[{"Agent[0.5, 1.5]": "move(box_red, target_red)"}]',
            '[{"Agent[0.50, 1.5]": "move(box_red, target_red) now", "Agent[2, 2]": "wait"}]',
        ],
        "rush_hour": ["F+1 K-2", "F+01, then K-2"],
        "rubiks_cube": ["R2 U'", "R R  U'"],
        "knight_swap": ["No", "no", "NO"],
    }
    prompt = "Vertices: [0, 1]"
    for generator, texts in rows.items():
        assert len({READ[generator](text, prompt) for text in texts}) == 1, generator
        assert READ[generator](texts[0], prompt) != READ[generator](OTHER.get(generator, texts[0][:-3]), prompt), (
            generator
        )
    assert READ.keys() == OTHER.keys() | {
        "quantum_lock",
        "sokoban",
        "word_ladder",
        "palindrome_generation",
        "rush_hour",
    }


OTHER = {  # an answer of another value, where a shorter text is none
    "cryptarithm": "A=2,B=1",
    "tower_of_hanoi": "Move disk 1 from Peg 4 to Peg 3",
    "jugs": '["fill B", "pour A->B"]',
    "graph_color": '{"0": 2, "1": 1}',
    "boxnet": '[{"Agent[0.5, 2.5]": "move(box_red, target_red)"}]',
    "rubiks_cube": "R U'",
    "knight_swap": '["w,A1,B3"]',
}


@pytest.mark.slow
def test_order_of_terms_makes_no_other_answer() -> None:
    task = make_gym("puzzle24", test_problems=1)
    problem = task.problem("test", 0)
    ways = ["4*6/(1*1)", "6 * 4 / 1 / 1", "(6)*(4+1-1)", "4*(1 - 1 + 6)", "4*(6+1-1)", "25"]  # of 4, 6, 1 and 1
    rewards = task.reward([(problem, f"<answer>{way}</answer>") for way in ways])
    assert [r.correct for r in rewards] == [True] * 5 + [False]
    same = [task.canonical(problem, f"<answer>{way}</answer>") for way in ways]
    assert (same[0], same[3], len(set(same[:5]))) == (same[1], same[4], 3)


def measure(task: ReasoningGym, problem: Problem, texts: list[str]) -> dict[str, float]:
    """What an evaluation measures of these responses, by the name before `_at_`."""
    rewards = tuple(task.reward([(problem, text) for text in texts]))
    group = Rollout(problem, np.zeros(1, np.int64), (), tuple(texts), rewards)
    n = len(texts)
    metrics = evaluation_metrics(task, {"x": [Answers.of(task, group)]}, samples=n, k=[], prefix="")
    return {
        name.removeprefix("x/").removesuffix(f"_at_{n}"): value for name, value in metrics.items() if "_at_" in name
    }


@pytest.mark.slow
def test_splits_are_disjoint_and_of_every_generator() -> None:
    task = make_gym(["chain_sum", "gcd"], test_problems=64)
    assert disjoint(task, shown=400) == {"train": None, "validation": 128, "test": 128}
    assert len({task.problem("test", i).prompt for i in range(128)}) == 128
    assert len({task.problem("validation", i).prompt for i in range(128)}) == 128
    assert Counter(task.problem("train", i).source for i in range(400)) == {"chain_sum": 200, "gcd": 200}


@pytest.mark.slow
def test_a_generator_with_few_questions_is_refused() -> None:
    task = make_gym({"chain_sum": {"min_terms": 2, "max_terms": 2, "max_digits": 1}}, test_problems=512)
    with pytest.raises(ValueError, match="different problems came up: ask for fewer"):
        task.problem("test", 0)  # 200 sums and differences of digits, an eighth of them held out


@pytest.mark.slow
def test_spelled_questions_are_made_of_characters_and_read_back() -> None:
    task = make_gym(spelled=True, max_tokens=8)
    problem = task.problem("train", 0)
    assert problem.prompt.startswith("S t a t e SPACE t h e SPACE f i n a l")
    assert {*problem.prompt.split(" "), *task.solution(problem).split(" ")} <= set(task.vocabulary)
    right = task.solution(problem)
    assert right.split()[-1] == "end"
    texts = [right, right.removesuffix(" end"), f"0 {right}", "end", "PAD end"]
    outcomes = [r.outcome for r in task.reward([(problem, text) for text in texts])]
    assert (outcomes[:2], outcomes[3:]) == (["correct", "unparsable"], ["wrong", "unparsable"])


def test_spelling_keeps_every_character() -> None:
    text = "a b\n-> 3*(4+5) = ?"
    assert read(spell(text).split()) == text
    assert len(set(CHARACTERS)) == len(CHARACTERS) == 96
    with pytest.raises(ValueError, match=r"has \['°'\]. Pass task.spelled=false"):
        spell("16°")


@pytest.mark.slow
def test_problems_are_the_same_in_every_process() -> None:
    """The seed of Python's hashes differs, the questions do not: without the sandbox those of four of these would."""
    need_sandbox()
    code = (
        "import json\nfrom tests.support.tasks import make_task\n"
        "names = ['chain_sum', 'isomorphic_strings', 'ransom_note', 'polynomial_multiplication', 'word_ladder']\n"
        "task = make_task('reasoning_gym', generators=names, test_problems=4)\n"
        "shown = [task.problem(s, i) for s in ('train', 'test') for i in range(20)]\n"
        "print(json.dumps([[p.prompt, p.answer, task.solution(p)] for p in shown]))"
    )
    texts = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PATH": "/usr/bin:/bin"},
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert (texts[0], len(json.loads(texts[0]))) == (texts[1], 40)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("generators", "message"),
    [
        ("chain_some", r"chain_some is no generator of reasoning-gym. It has: .*chain_sum"),
        ("composite", r"composite is no generator"),
        ({"gcd": {"max_nmubers": 3}}, r"task.generators.gcd: max_nmubers is unknown. It takes: .*max_numbers"),
        ({"chain_sum": {"min_terms": 9}}, r"task.generators.chain_sum: max_terms must be >= min_terms"),
        ([], r"task.generators is empty"),
    ],
)
def test_what_cannot_be_generated_is_refused(generators: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_gym(generators)
