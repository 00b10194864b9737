"""A program that knows nothing of this project, through files and its standard input."""

import json
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from rlvr.config import own_code
from rlvr.job.command import _take, _take_over  # pyright: ignore[reportPrivateUsage]
from rlvr.job.program import Run
from rlvr.ledger import layout
from rlvr.ledger.cause import Cause
from rlvr.ledger.inputs import recorded_code
from tests.job.test_program import Carried, answers, carried

__all__ = ["carried"]  # a fixture

PROGRAM = """
import json, os, signal, sys, time
from pathlib import Path

run = json.loads(Path(os.environ["RLVR_RUN"]).read_text())
mode, rate = sys.argv[1], float(sys.argv[2])
assert rate == run["config"]["program"]["rate"]
lines = open(run["lines"], "a")
state = Path(run["checkpoint_dir"], "state.json")
done = json.loads(state.read_text()) if state.exists() else 0
stopped = []
signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))

def write(**line):
    lines.write(json.dumps(line) + "\\n")
    lines.flush()

def ask(**line):
    write(**line)
    return json.loads(sys.stdin.readline())

for step in range(done + 1, run["steps"] + 1):
    problems = ask(problems=step)
    rewards = ask(judge=step, answers=[[problem["id"], [problem["answer"], "PAD"]] for problem in problems])
    mean = sum(reward["value"] for group in rewards for reward in group) / 2 / len(problems)
    if step % run["config"]["evaluation"]["every"] == 0:
        given = [{"problem": p["id"], "response": p["answer"], "num_tokens": 1} for p in run["held_out"]]
        wrong = {"response": "?", "num_tokens": 2, "outcome": "wrong", "turns": [["assistant", "?"]]}
        graded = [{"problem": p["id"], **wrong} for p in run["held_out"]]
        write(step=step, samples=given + graded)
    write(step=step, metrics={"reward/mean": mean, "loss/total": rate * step})
    state.write_text(json.dumps(step))
    if mode == "crash" and step == 3:
        lines.write('{"step": 4, "met')
        lines.flush()
        sys.exit("out of luck")
    if mode == "stop" and step == 2:
        os.kill(os.getppid(), signal.SIGTERM)
        while not stopped:
            time.sleep(0.01)
        break
    if mode == "wrong":
        write(epoch=1)
        time.sleep(60)
"""


def write_option(carried: Carried, mode: str) -> Path:
    file = carried.home / "program.py"
    file.write_text(PROGRAM)
    argv = json.dumps([sys.executable, str(file), mode, "${..rate}"])
    option = f"defaults: [command, _self_]\nargv: {argv}\nrate: 0.5\n"
    (carried.home / "program" / "mine.yaml").write_text(option)
    return file


@pytest.mark.slow
def test_a_command_logs_evaluates_asks_and_goes_on_after_a_crash(carried: Carried) -> None:
    """Of two answers to each problem one is right. The line that the crash tore is written again."""
    file = write_option(carried, "crash")
    cause, message = carried.attempt(None, "program.rate=0.25")
    assert cause is Cause.ERROR
    assert message.startswith(f"RuntimeError: {sys.executable} ended with exit code 1, see the log")
    assert "out of luck" in layout.log(layout.attempt(carried.dir, 1)).read_text()
    write_option(carried, "go")
    assert carried.attempt(None, "program.rate=0.25") == (Cause.OK, "")
    assert carried.metrics.keys() == {1, 2, 3, 4}
    assert [carried.metrics[step]["loss/total"] for step in (1, 2, 3, 4)] == [0.25, 0.5, 0.75, 1.0]
    assert {metrics["reward/mean"] for metrics in carried.metrics.values()} == {0.5}
    assert [carried.metrics[step]["evaluation/digits/avg_at_2"] for step in (2, 4)] == [0.5, 0.5]
    assert carried.responses(4)[1::2] == ["?"] * 3
    turns = pq.read_table(layout.evaluation(carried.dir, 4))["turns"].to_pylist()
    assert turns == [None, '[["assistant", "?"]]'] * 3
    (version,) = recorded_code(carried.dir)[str(file)]
    assert not own_code.changed({str(file): (version,)})
    file.write_text(PROGRAM + "print()\n")
    assert own_code.changed({str(file): (version,)}) == [str(file)]


@pytest.mark.slow
def test_steps_that_a_killed_attempt_had_not_read_are_recorded_by_the_next(carried: Carried) -> None:
    """The command saved after step 2; of the process that read its lines only step 1 was in the journal."""
    write_option(carried, "go")
    lines = layout.program_lines(layout.attempt(carried.dir, 1))
    lines.parent.mkdir(parents=True)
    written = [{"step": step, "metrics": {"loss/total": 7.0}} for step in (1, 2)]
    lines.write_text("\n".join(map(json.dumps, written)) + '\n{"step": 3, "metr')
    layout.checkpoints(carried.dir).mkdir()
    (layout.checkpoints(carried.dir) / "state.json").write_text("2")
    assert carried.attempt(None) == (Cause.OK, "")
    assert [carried.metrics[step]["loss/total"] for step in (1, 2, 3, 4)] == [7, 7, 1.5, 2]


@pytest.mark.slow
def test_a_request_to_stop_reaches_the_command_which_saves_and_goes_on_later(carried: Carried) -> None:
    write_option(carried, "stop")
    assert carried.attempt(None)[0] is Cause.PREEMPTED
    assert carried.metrics.keys() == {1, 2}
    write_option(carried, "go")
    assert (carried.attempt(None), carried.metrics.keys()) == ((Cause.OK, ""), {1, 2, 3, 4})


@pytest.mark.slow
def test_a_line_that_is_not_understood_ends_the_command_and_the_run(carried: Carried) -> None:
    write_option(carried, "wrong")
    cause, message = carried.attempt(None)
    assert cause is Cause.USER_ERROR
    assert message.startswith("ValueError: {'epoch': 1} is none of the lines that a program may write")


SAMPLE = {"problem": "digits-0", "response": "DIGIT_1", "num_tokens": 1}


def test_what_a_line_says_beside_what_is_understood_is_refused(carried: Carried) -> None:
    unknown = "is none of the lines that a program may write"
    rows: list[tuple[dict[str, object], str]] = [
        ({"step": 0, "metrics": {}, "samples": [SAMPLE]}, unknown),
        ({"step": 0, "metrics": {}, "epoch": 1}, unknown),
        ({"step": 0, "samples": [{**SAMPLE, "outcome": "Correct"}]}, "outcome 'Correct' is none of correct, wrong, "),
    ]

    def train(_: object, run: Run) -> None:
        for line, message in rows:
            with pytest.raises(ValueError, match=message):
                _take(run, line, None)
        _take(run, {"step": 0, "metrics": {}}, None)

    carried.attempt(train)
    assert carried.metrics == {0: {}}


def test_the_measurement_before_the_first_step_is_taken_over_too(carried: Carried) -> None:
    """Once: of step 1, which is on record, the first record counts."""
    path = carried.home / "lines.jsonl"
    path.write_text("".join(json.dumps({"step": step, "metrics": {"loss/total": 7.0}}) + "\n" for step in (0, 1)))

    def train(_: object, run: Run) -> None:
        run.log(1, {"loss/total": 1.0})
        _take_over(run, path)

    carried.attempt(train)
    assert carried.metrics == {0: {"loss/total": 7.0}, 1: {"loss/total": 1.0}}


def test_problems_of_two_splits_with_one_id_are_told_apart(carried: Carried) -> None:
    for name, first in (("train", 0), ("test", 40)):
        rows = [{"id": f"row-{n}", "question": f"{first + n}?", "answer": str(first + n)} for n in range(40)]
        (carried.home / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def train(_: object, run: Run) -> None:
        known = {problem.id for problem in run.held_out}
        assert len(known) == len(run.held_out) == 40 + 2
        assert {name.partition("/")[0] for name in known if "/" in name} == {"validation"}
        run.samples(0, answers(run))
        run.log(0, {})

    data = [f"task.{name}={carried.home}/{name}.jsonl" for name in ("train", "test")]
    words = ["task=math", *data, "task.validation=0.5", "evaluation.validation=2", "evaluation.problems=null"]
    assert carried.attempt(train, *words)[1].startswith("ValueError: a_program.train returned after step 0")
    assert {"evaluation", "validation"} == {name.partition("/")[0] for name in carried.metrics[0]}
