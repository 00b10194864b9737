"""An environment of the real library verifiers as a task: its problems, splits, rewards, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("verifiers")

from rlvr.task.verifiers import Verifiers
from tests.support.tasks import make_task

# Sums with two rewards: 1 for the right number, and half a point for fewer than five characters.
CODE = """
import verifiers.v1 as vf


class Sum(vf.TaskData):
    answer: str


class Config(vf.TasksetConfig):
    first: int = 0
    number: int = 64


class Judged(vf.Task[Sum]):
    @vf.reward
    async def right(self, trace) -> float:
        if trace.last_reply == "fail":
            raise KeyError("no such word")
        return float(trace.last_reply == self.data.answer)

    @vf.reward(weight=0.5)
    async def short(self, trace) -> float:
        return float(len(trace.last_reply) < 5 and trace.messages[0].content == "Add.")


class Sums(vf.Taskset[Judged, Config]):
    def load(self):
        for a in range(self.config.first, self.config.first + self.config.number):
            yield Judged(Sum(prompt=f"{a} + 1 =", system_prompt="Add.", answer=str(a + 1)), self.config.task)


__all__ = ["Sums"]
"""
UNFIT = {
    "a container": "    NEEDS_CONTAINER = True",
    "rewards of a runtime": "    async def setup(self, trace, runtime):\n        pass",
    "tools": "    @classmethod\n    def toolsets(cls, config):\n        return [object()]",
}


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of Python's path with an environment, and one for each thing that is refused."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "plain_sums.py").write_text(CODE)
    for number, lines in enumerate(UNFIT.values()):
        (tmp_path / f"unfit{number}.py").write_text(
            CODE.replace("class Judged(vf.Task[Sum]):\n", f"class Judged(vf.Task[Sum]):\n{lines}\n\n")
        )
    endless = CODE.replace("    def load", "    INFINITE = True\n\n    def load")
    (tmp_path / "endless.py").write_text(endless)
    talk = "[vf.UserMessage(content='a'), vf.AssistantMessage(content='b'), vf.UserMessage(content='c')]"
    (tmp_path / "talk.py").write_text(CODE.replace('f"{a} + 1 ="', talk))
    return tmp_path


def make(environment: Any, **knobs: Any) -> Verifiers:
    return make_task("verifiers", environment=environment, workers=1, timeout_s=60.0, **knobs)


@pytest.mark.slow
def test_an_environments_problems_are_judged_by_its_own_weighted_rewards(installed: Path, caplog: Any) -> None:
    task = make({"plain-sums": {"number": 16}}, test_knobs={"first": 100, "number": 4}, full=1.5, binary=False)
    assert [task.size(split) for split in ("train", "validation", "test")] == [16, 0, 4]
    problem = task.problem("test", 0)
    assert (problem.prompt, problem.source, problem.answer["answer"]) == ("Add.\n\n100 + 1 =", "plain-sums", "101")
    rewards = task.reward([(problem, text) for text in ("101", "is it 101", " 101 ", "7", "fail", "")])
    # right + short / 2, of a stripped reply; the fifth is the environment's own failure
    assert [reward.value for reward in rewards] == [1.5, 0, 1.5, 0.5, 0, 0.5]
    assert [r.outcome for r in rewards] == ["correct", "wrong", "correct", "wrong", "error", "wrong"]
    assert task.graded
    assert f"'no such word' ({installed}/plain_sums.py:18)" in caplog.text
    half = make({"plain-sums": {"number": 16}}, test_knobs={"first": 100, "number": 4}, full=0.5)
    assert [reward.value for reward in half.reward([(problem, "7"), (problem, "none of it")])] == [1, 0]


@pytest.mark.slow
def test_an_eighth_of_the_problems_is_held_out_and_stays_so(installed: Path) -> None:
    few, many = (make({"plain-sums": {"number": number}}) for number in (200, 400))
    held = [{task.problem("test", i).prompt for i in range(task.size("test") or 0)} for task in (few, many)]
    assert held[0] < held[1]
    assert 30 < len(held[1]) < 70  # of 400: 50 ± 7
    assert (few.size("train") or 0) + len(held[0]) == 200


@pytest.mark.slow
def test_environments_of_more_than_a_question_and_an_answer_are_refused(
    installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(installed))
    from rlvr.task.verify.environment import judge

    request = {"do": "read", "file": str(installed / "rows.jsonl"), "most": None}
    for number, what in enumerate(UNFIT):
        reply = judge({**request, "settings": json.dumps({"id": f"unfit{number}"})})
        assert str(reply["problem"]).startswith(f"it has {what}. Environments of one question")
    assert judge({**request, "settings": '{"id": "endless"}'})["problem"].startswith("its problems never end. Pass ")
    assert judge({**request, "settings": '{"id": "endless"}', "most": 3}) == {"problem": None}
    assert judge({**request, "settings": '{"id": "talk"}'})["problem"].startswith("it has prompts other than one text")
    assert "'nowhere' not found" in judge({**request, "settings": '{"id": "nowhere"}'})["problem"]
    assert "numbr Extra" in judge({**request, "settings": '{"id": "plain_sums", "numbr": 3}'})["problem"]
    with pytest.raises(ValueError, match=r"task\.environment=unfit0: it has a container\. "):
        make("unfit0")
