import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from rlvr.config.freeze import frozen_config
from rlvr.config.registry import Registry
from rlvr.job import process
from rlvr.job.program import Run, SampledAnswer
from rlvr.ledger import layout
from rlvr.ledger.attempt import Busy, read_end, read_heartbeat, request_prune
from rlvr.ledger.cause import Cause
from rlvr.ledger.inputs import recorded_code
from rlvr.ledger.journal import read
from rlvr.ledger.runs import to_yaml, write_run
from rlvr.records import Reward
from rlvr.rollout.stream import Stream

WORDS = ["task=digits", "steps=4", "evaluation.every=2", "evaluation.samples=2", "evaluation.k=[1,2]"]
WORDS += ["evaluation.problems=3", "rollout.prompts=5", "checkpoint.every=2", "checkpoint.keep=1"]
Train = Callable[[Any, Run], None]


class Carried:
    """A run of a program in this process. The program is a function of a test."""

    def __init__(self, home: Path) -> None:
        self.home, self.dir = home, home / "runs" / "x"
        self.dir.mkdir(parents=True)
        (home / "program").mkdir()
        (home / "program" / "mine.yaml").write_text("_target_: a_program.train\n")
        (home / "a_program.py").write_text("def train(config, run):\n    chosen(config, run)\n")

    def attempt(self, train: Train | None, *words: str) -> tuple[Cause, str]:
        """(cause, message) of one more attempt. train: None if the option names another program."""
        import a_program  # pyright: ignore[reportMissingImports]

        a_program.chosen = train
        plain = frozen_config(*Registry([str(self.home)]).compose(["program=mine", *WORDS, *words]))
        write_run(self.dir, to_yaml(plain), {"name": "x", "overrides": [], "import_paths": [str(self.home)]})
        return process.run(self.dir)

    @property
    def metrics(self) -> dict[int, dict[str, float]]:
        records = read(layout.journal(self.dir)).records
        assert len({record.step for record in records}) == len(records)
        return {record.step: record.metrics for record in records}

    def responses(self, step: int) -> list[str]:
        return pq.read_table(layout.evaluation(self.dir, step))["response"].to_pylist()

    @property
    def states(self) -> list[str]:
        return sorted(path.name for path in layout.checkpoints(self.dir).iterdir() if not path.name.startswith("."))


@pytest.fixture
def carried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Carried]:
    monkeypatch.syspath_prepend(str(tmp_path))
    yield Carried(tmp_path)
    sys.modules.pop("a_program", None)


def answers(run: Run, first: str = "right") -> list[SampledAnswer]:
    """Two samples of each problem: `first` (the right answer, or a text), and a wrong one that was cut."""
    samples = list[SampledAnswer]()
    for problem in run.held_out:
        samples.append(SampledAnswer(problem, problem.answer if first == "right" else first, num_tokens=1))
        samples.append(SampledAnswer(problem, "PAD", num_tokens=3, finished=False))
    return samples


def trainer(until: int = 4, value: float = 1.0, response: str = "right") -> Train:
    """A program that trains all steps, or fails after it has logged step `until`."""

    def train(config: Any, run: Run) -> None:
        if run.resumed:
            assert json.loads((run.resumed / "state.json").read_text()) == run.done
        elif not run.logged:
            run.samples(0, answers(run, response))
            run.log(0, {})
        for step in range(run.done + 1, run.steps + 1):
            if run.should_evaluate(step):
                run.samples(step, answers(run, response))
            run.log(step, {"loss/total": value * step})
            if step == until < run.steps:
                raise RuntimeError("the machine fails")
            if run.should_save(step) or run.should_stop():
                with run.saving(step) as folder:
                    (folder / "state.json").write_text(json.dumps(step))
            if run.should_stop():
                return

    return train


def test_a_program_logs_evaluates_and_saves_as_our_trainer_does(carried: Carried) -> None:
    """Of two samples of each of 3 problems, of 1 and 3 tokens, one is right and ended: avg@2 is 1/2, pass@2 is 1."""
    assert (carried.attempt(trainer()), list(carried.metrics)) == ((Cause.OK, ""), [0, 1, 2, 3, 4])
    expected = {"avg_at_2": 0.5, "pass_at_1": 0.5, "pass_at_2": 1.0, "length": 2.0, "finished": 0.5, "error": 0.0}
    for step in (0, 2, 4):
        found = carried.metrics[step]
        assert {name: found[f"evaluation/digits/{name}"] for name in expected} == expected
        table = pq.read_table(layout.evaluation(carried.dir, step))
        assert table["outcome"].to_pylist().count("correct") == 3
        assert table["right_answer"].to_pylist()[::2] == table["response"].to_pylist()[::2]
        assert table["num_tokens"].to_pylist() == [1, 3] * 3
    assert (carried.metrics[3], carried.states) == ({"loss/total": 3.0}, ["step-00000004"])
    beat = read_heartbeat(layout.attempt(carried.dir, 1))
    assert (beat["step"], beat["steps"], beat["accuracy"]) == (4, 4, 0.5)
    assert "a_program" in recorded_code(carried.dir)


def test_a_run_goes_on_from_its_newest_state_and_of_repeated_steps_the_first_record_counts(carried: Carried) -> None:
    cause, message = carried.attempt(trainer(until=1, response="DIGIT_1"))
    assert cause is Cause.ERROR
    assert message.startswith("RuntimeError: the machine fails (")
    assert carried.attempt(trainer(until=3, value=10, response="DIGIT_2"))[0] is Cause.ERROR
    assert carried.states == ["step-00000002"]
    assert carried.attempt(trainer(value=100, response="DIGIT_3"))[0] is Cause.OK
    assert [carried.metrics[step]["loss/total"] for step in (1, 2, 3, 4)] == [1, 20, 30, 400]
    assert {step: carried.responses(step)[0] for step in (0, 2, 4)} == {0: "DIGIT_1", 2: "DIGIT_2", 4: "DIGIT_3"}
    assert carried.states == ["step-00000004"]


def test_a_damaged_state_is_set_aside(carried: Carried) -> None:
    carried.attempt(trainer(until=3), "checkpoint.every=1", "checkpoint.keep=2")
    assert carried.states == ["step-00000001", "step-00000002"]
    (layout.checkpoint(layout.checkpoints(carried.dir), 2) / "state.json").write_text("7")
    assert carried.attempt(trainer(value=10), "checkpoint.every=1")[0] is Cause.OK
    assert [carried.metrics[step]["loss/total"] for step in (2, 3, 4)] == [2, 3, 40]
    assert "damaged-step-00000002" in carried.states


@pytest.mark.parametrize(
    ("asked", "cause"), [(signal.SIGTERM, Cause.PREEMPTED), (signal.SIGUSR2, Cause.TIME_LIMIT), (None, Cause.PRUNED)]
)
def test_a_run_that_is_asked_to_stop_saves_and_goes_on_later(
    carried: Carried, asked: signal.Signals | None, cause: Cause
) -> None:
    def train(config: Any, run: Run) -> None:
        if not run.resumed:
            request_prune(run.directory, "others are better") if asked is None else os.kill(os.getpid(), asked)
        trainer()(config, run)

    assert carried.attempt(train)[0] is cause
    assert (carried.states, carried.attempt(train)) == (["step-00000001"], (Cause.OK, ""))
    assert list(carried.metrics) == [0, 1, 2, 3, 4]


MISTAKES: dict[str, Train] = {
    "ValueError: the state after step 1 is saved before step 1 is logged. Log it first.": lambda _, run: run.saving(
        1
    ).__enter__(),
    "ValueError: step 2 was logged after step 0 of 4: log each step, in order.": lambda _, run: run.log(2, {}),
    "ValueError: metric 'loss' is 'low', not a number. Pass a float.": lambda _, run: run.log(1, {"loss": "low"}),  # type: ignore
    "ValueError: step 1: problem digits-": lambda _, run: run.samples(1, answers(run)[:-1]),
    "ValueError: step 0: digits-1 is no problem of run.held_out.": lambda _, run: run.samples(
        0, [*answers(run), SampledAnswer(run.task.problem("train", 1), "DIGIT_1", 1)]
    ),
    "ValueError: a_program.train returned after step 1 of 4. Log every step": lambda _, run: run.log(1, {}),
}


@pytest.mark.parametrize("message", MISTAKES)
def test_a_mistake_ends_the_run_with_a_line(carried: Carried, message: str) -> None:
    cause, line = carried.attempt(MISTAKES[message])
    assert cause is Cause.USER_ERROR
    assert line.startswith(message)
    end = read_end(layout.attempt(carried.dir, 1))
    assert end is not None
    assert end.message == line


def test_the_problems_of_a_step_are_those_that_our_trainer_draws(carried: Carried) -> None:
    """Five a step, from a stream whose position every attempt of our trainer restores."""
    seen = list[list[str]]()

    def train(config: Any, run: Run) -> None:
        stream = Stream(run.task, 7)
        for step in (1, 2, 3):
            seen.append([problem.id for problem in run.problems(step)])
            assert seen[-1] == [problem.id for problem in stream.draw(5)]
        assert [problem.id for problem in run.problems(2)] == seen[1]

    carried.attempt(train, "seed=7")
    assert len({name for step in seen for name in step}) == 15


@pytest.mark.parametrize("reward", ["null", "flipped", "random", "majority"])
def test_rewards_are_the_verifiers_unless_a_control_falsifies_them(carried: Carried, reward: str) -> None:
    judged = list[list[list[float]]]()

    def train(config: Any, run: Run) -> None:
        groups = [(problem, [problem.answer, "PAD", "DIGIT_0 DIGIT_1"] * 8) for problem in run.problems(1)]
        for step in (1, 1, 2):
            judged.append([[reward.value for reward in row] for row in run.judge(step, groups)])
        sample = answers(run)[:-1]
        assert run.samples(0, [*sample, SampledAnswer(run.held_out[-1], "PAD", 1, reward=Reward(1.0, "correct"))])
        run.log(0, {})

    carried.attempt(train, f"rollout.reward={reward}")
    first, same, next_step = judged
    assert first == same
    if reward == "random":
        values = [value for row in first for value in row]
        assert len(values) == 120
        assert 40 < sum(values) < 80
        assert next_step != first
    else:
        assert first == next_step == [([0.0, 1.0, 1.0] if reward == "flipped" else [1.0, 0.0, 0.0]) * 8] * 5
    assert carried.metrics[0]["evaluation/digits/avg_at_2"] == pytest.approx(
        4 / 6
    )  # the true rewards, one of them given


def test_the_validation_split_is_evaluated_too_where_tuning_asks_for_it(carried: Carried) -> None:
    def train(config: Any, run: Run) -> None:
        assert len(run.held_out) == 3 + 4
        run.samples(0, answers(run))
        run.log(0, {})

    carried.attempt(train, "task.validation=0.2", "evaluation.validation=4")
    assert (carried.metrics[0]["validation/digits/avg_at_2"], len(carried.responses(0))) == (0.5, 6)


def test_a_conversation_is_stored_with_its_turns(carried: Carried) -> None:
    """And a response that is none without; a file without conversations has no such column."""
    said = [("assistant", "look it up"), ("tool", "DIGIT_3"), ("assistant", "DIGIT_3")]

    def train(config: Any, run: Run) -> None:
        samples = answers(run)
        run.samples(0, [replace(samples[0], turns=said), *samples[1:]])
        run.log(0, {})
        run.samples(2, samples)

    carried.attempt(train)
    turns = pq.read_table(layout.evaluation(carried.dir, 0))["turns"].to_pylist()
    assert (json.loads(turns[0]), turns[1:]) == ([list(turn) for turn in said], [None] * 5)
    assert "turns" not in pq.read_schema(layout.evaluation(carried.dir, 2)).names


def test_an_attempt_that_lost_its_run_writes_nothing_more(carried: Carried) -> None:
    def train(config: Any, run: Run) -> None:
        run.log(1, {})
        layout.attempt(run.directory, 2).mkdir()
        for write in (lambda: run.log(2, {}), lambda: run.samples(2, answers(run)), lambda: run.saving(1).__enter__()):
            with pytest.raises(Busy, match="a newer attempt owns this run"):
                write()

    carried.attempt(train)
    assert list(carried.metrics) == [1]
    assert not layout.checkpoints(carried.dir).exists()
