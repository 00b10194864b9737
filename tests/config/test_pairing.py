from dataclasses import replace
from types import SimpleNamespace
from uuid import uuid4

import pytest

from rlvr.config.pairing import TaskAbilities, check_task
from rlvr.config.schema import Section
from rlvr.records import Problem
from tests.config.test_schema import COMPANIONS
from tests.support.composed import check, check_with_task

pytestmark = pytest.mark.usefixtures("composing")


REFUSED = {
    "loss=ppo advantage=grpo": "loss=ppo trains a value head on returns, which advantage=grpo does not give",
    "loss=flowrl advantage=gae": "advantage=gae needs a value head and loss=flowrl trains none",
    "rollout.overlong_buffer=8 rollout.max_tokens=4": "every response would be penalised",
    "loss=pacs rollout.overlong_buffer=4": "which loss=pacs does not take",
    "loss=dapo advantage=maxrl": "rollout.overlong_buffer=0.2 makes rewards other .* rollout.overlong_buffer=null",
    "loss=maxrl advantage=maxrl_conditional": "Pass rollout.dynamic_sampling=none",
    "loss=maxrl advantage=maxrl_control_variate": "Pass rollout.dynamic_sampling=none",
    "loss=w_reinforce rollout.dynamic_sampling=drop": "advantage=signed learns from groups .* all wrong",
    "loss=pkpo advantage.form=plain": "advantage=pkpo with advantage.form=plain learns from groups .* all right",
    "loss=pkpo advantage.form=sloo": "Pass rollout.dynamic_sampling=none",
    "trainer.steps=40": "trainer.steps=40 has no effect with trainer.schedule=constant",
    "trainer.schedule=cosine trainer.final_lr=1.5": "must be a share of lr",
    "loss=ppo rollout.samples=1": "a group of one response is all right or all wrong.*rollout.dynamic_sampling=none",
    "loss=cross_entropy rollout.dynamic_sampling=none trainer.kl=0.1": "learns known answers. Drop trainer.kl",
    "loss=cross_entropy rollout.dynamic_sampling=none max_kl=1": "learns known answers. Drop max_kl",
    "loss=clip_cov loss.low=5": "loss.low=5 must be less than loss.high=5",
    "loss=dph_js presample.samples=4": "presample.threshold=8 of presample.samples=4 responses",
    "loss=dph_js presample.problems=1": "two streams are made of at least 2 problems",
    "loss=dph_js rollout.prompts=4 rollout.samples=8 trainer.updates=2 presample.ratio=32": "leaves 1 rehearsed "
    "responses beside 32.*presample.ratio=16 or less",
}


@pytest.mark.parametrize("typed", REFUSED)
def test_impossible_combinations_are_refused(typed: str) -> None:
    with pytest.raises(ValueError, match=REFUSED[typed]):
        check(*typed.split())


def test_possible_combinations_are_accepted() -> None:
    for typed in (
        "loss=ppo trainer.head_lr=1e-3 trainer.kl=0.1 trainer.reference_every=4",
        "loss=flowrl trainer.reference_every=4 trainer.reference_resets_optimiser=true trainer.head_lr=1e-3",
        "loss=kl_cov trainer.entropy=0.01 trainer.kl=0.1",
        "loss=clip_cov cluster.ranks=2",
        "loss=entadv advantage=rloo trainer.epochs=2",
        "loss=flowrl beta=3",
        "loss=grpo trainer.kl=0.1 trainer.kl_estimator=k1",
        "loss=pacs loss.score=grpo loss.std_floor=0.2",
        "loss=lad trainer.aggregation=seq-mean-token-mean",
        "loss=pacs trainer.aggregation=seq-mean-token-mean trainer.kl=0.01",
        "loss=gspo trainer.aggregation=seq-mean-token-mean trainer.entropy=0.01",
        "loss=reinforce_pp rollout.samples=1 rollout.dynamic_sampling=none",
        "loss=cross_entropy rollout.samples=1 rollout.dynamic_sampling=none",
        "loss=pacs loss.score=naive rollout.samples=1 rollout.dynamic_sampling=none",
        "loss=reinforce rollout.samples=1 rollout.dynamic_sampling=none",
    ):
        check(*typed.split())


REFUSED_WITH_TASK = {
    "loss=pkpo advantage.k=9": "k is 2 to 8. Pass more rollout.samples, or another advantage.k",
    "loss=pkpo advantage.k=8 advantage.form=sloo rollout.dynamic_sampling=none": "k is 1 to 7",
    "loss=pkpo advantage.k=1": "k is 2 to 8",
    "loss=maxrl advantage.order=8": "order is 1 to 7. Pass more rollout.samples",
    "loss=pacs advantage=rloo": "advantage=rloo has no effect with loss=pacs.*Drop it",
    "loss=grpo advantage=none": "nothing to learn from. Pass advantage=grpo",
    "loss=grpo advantage=gae": "needs a value head and loss=grpo trains none. Pass loss=ppo",
    "loss=pacs rollout.samples=1": "Pass rollout.samples=2 or more, or loss.score=naive",
    "loss=pacs task=bandit model=table": "loss=pacs takes rewards 0 and 1 only and task=bandit",
    "loss=cross_entropy": "Pass rollout.dynamic_sampling=none; rollout.samples=1 saves time",
    "loss=cross_entropy task=bandit model=table rollout.dynamic_sampling=none": "learns known answers and "
    "task=bandit gives none.*task=digits",
    "loss=lad_theoretical": "takes responses of one token and task=maze has longer ones.*task=bandit",
    "loss=lad_theoretical advantage=reinforce task=bandit model=table rollout.samples=1": "rollout.samples=1 makes "
    "loss=lad_theoretical zero for every response",
    "loss=pkpo task=bandit model=table advantage.k=60 rollout.samples=64": "advantage.k=60 with 50 arms, which an "
    "evaluation takes for one group: k is 2 to 50. Pass more task.arms",
    "loss=dph_js task=bandit model=table": "loss=dph_js splits .*task=bandit has only one",
    "rollout.overlong_filter=true task=digits model=digits_tiny rollout.max_tokens=1": "responses that are cut, "
    "which at one token are all of them. Drop it",
    "evaluation.validation=8 task=bandit model=table": "task=bandit has no validation problems. Drop it",
    "evaluation.validation=8 task=digits model=digits_tiny": "problems. Pass task.validation=0.05",
    "task=maze_walk rollout.overdraw=1.1": "rollout.overdraw=1.1 has no turns and task=maze_walk replies to each. Drop",
    "task=maze_walk rollout=ray rollout.engine.python=sh rollout.logp_old=engine rollout.ahead=2": "rollout.ahead=2 "
    "has no turns and task=maze_walk replies to each. Drop it",
    "task=maze_walk loss=dph_js": "loss=dph_js has no turns",
    "task=maze_walk rollout.max_tokens=1": "turns of 1 tokens, and a response of 1 has no room for a second",
    "task=maze_walk loss=cross_entropy rollout.dynamic_sampling=none": "loss=cross_entropy has no turns",
    "task=maze_walk program=trl loss=grpo": "program=trl has no turns",
}


@pytest.mark.parametrize("typed", REFUSED_WITH_TASK)
def test_a_refusal_proposes_a_possible_combination(typed: str) -> None:
    small = ["rollout.prompts=1", "trainer.updates=1"] if "task=bandit" in typed else []
    with pytest.raises(ValueError, match=REFUSED_WITH_TASK[typed]):
        check_with_task(*typed.split(), *small)


@pytest.mark.parametrize("loss", ["maxrl", "pacs", "differential_smoothing"])
def test_a_bandit_of_right_and_wrong_suits_binary_objectives(loss: str) -> None:
    table = [*COMPANIONS["task", "bandit"], *COMPANIONS["model", "table"]]
    check_with_task(f"loss={loss}", "task=bandit", "task.binary=true", *table)


def test_a_benchmark_that_no_metric_can_name_is_refused_before_launch() -> None:
    """The journal would refuse it, at the end of the first evaluation."""
    abilities = TaskAbilities(8, False, False, False, 9, False, "", 0, sources=("days", "français"))
    knobs, choices = Section({"evaluation": {"samples": 8}, "policy": {"path": "p"}}), {"task": "mine"}
    with pytest.raises(ValueError, match="task=mine: the source 'français' of a problem: metric name 'evaluation/fran"):
        check_task(knobs, choices, abilities)
    check_task(knobs, choices, replace(abilities, sources=("days",)))


def test_a_majority_needs_answers_that_can_be_compared() -> None:
    abilities = TaskAbilities(8, False, False, False, 9, False, "", 0, votes=False)
    evaluation, rollout = {"samples": 8, "validation": None}, {"reward": "majority"}
    knobs = Section({"evaluation": evaluation, "rollout": rollout, "program": {"reads": []}})
    with pytest.raises(ValueError, match="rollout.reward=majority needs answers .* task=code names none"):
        check_task(knobs, {"task": "code"}, abilities)
    check_task(knobs, {"task": "code"}, replace(abilities, votes=True))


@pytest.mark.parametrize(
    ("id_of", "given", "said"),
    [(str, {"turn_tokens": 0, "reply": len}, "turn_tokens is 0"), (lambda _: uuid4().hex, {}, "and, asked for again")],
)
def test_a_task_without_turns_or_with_drawn_ids_is_refused_before_launch(id_of, given, said: str) -> None:
    members = {"name": "mine", "max_tokens": 1, "size": lambda _: 3, "reward": len, "close": len, **given}
    with pytest.raises(ValueError, match=f"task=mine: .*{said}"):
        TaskAbilities.of(SimpleNamespace(**members, problem=lambda _, index: Problem(id_of(index), "w")), "mine")
