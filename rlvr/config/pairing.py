"""Checks that loss, advantage, task, trainer and cluster go together: otherwise a run would fail or ignore a choice.

Losses and advantages declare what they need (rlvr/objective/batch.py). What a task can do follows from the protocols
of rlvr/records.py that its object implements.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlvr.config.registry import Registry
from rlvr.config.schema import Choices, Knobs
from rlvr.config.signature import declared, signature
from rlvr.ledger.journal import check_name
from rlvr.objective.limits import FORMS_OF_EQUAL_GROUPS, orders, subset_sizes

if TYPE_CHECKING:
    from rlvr.records import Task

LOOKED_AT = 1000  # test problems of a user's own task, before launch


def check(config: Knobs, choices: Choices, registry: Registry) -> None:
    """Raises ValueError for a combination that no task can make valid."""
    _check_advantage(config, choices, registry.losses_without_advantage)
    _check_group_size(config)
    loss = declared(config.loss["_target_"])
    _check_overlong(config, choices)
    if "solution" in loss:
        _check_known_answers(config, choices)
    _check_schedule(config.trainer, config.steps)
    low, high = config.loss.get("low"), config.loss.get("high")
    if _is_ours(config.loss) and low is not None and high is not None and not low < high:
        raise ValueError(f"loss.low={low:g} must be less than loss.high={high:g}: no covariance lies between them.")
    _check_presample(config)


@dataclass(frozen=True)
class TaskAbilities:
    """The abilities of a task that decide which objective and model go with it."""

    max_tokens: int
    gives_graded_rewards: bool  # rewards other than 0 and 1
    knows_solutions: bool
    teaches: bool  # its demonstrations can train a base policy
    train_problems: int | None  # of a data set or a fixed training set; None: an endless stream, or a single prompt
    validates: bool  # it has a validation split with problems that are answered by sampling
    prompt: str  # one of its prompts: its `longest_prompt`, a demonstration's or the first test problem's
    arms: int  # of a bandit; 0: it is none
    sources: tuple[str, ...] = ()  # benchmarks that a task of the user's own names
    turn_tokens: int | None = None  # of a turn, where its responses are conversations
    votes: bool = True  # whether its answers can be compared, so that they have a majority

    @classmethod
    def of(cls, task: object, option: str | None) -> TaskAbilities:
        """option: the chosen option of the group `task`. Raises ValueError for an object that is no task."""
        from rlvr.records import (
            AnsweringTask,
            ArmedTask,
            ReplyingTask,
            SolvedTask,
            Task,
            TaughtTask,
            may_be_graded,
        )  # numpy: not for `--help`

        if not isinstance(task, Task):
            lacking = [name for name in _MEMBERS if not hasattr(task, name)]
            raise ValueError(
                f"task={option} has no {', '.join(lacking)}: {type(task).__module__}.{type(task).__qualname__} does "
                "not have all members of `Task` in rlvr/records.py."
            )
        if isinstance(task, ReplyingTask) and task.turn_tokens < 1:
            raise ValueError(f"task={option}: turn_tokens is {task.turn_tokens}, and a turn has 1 token or more.")
        taught = isinstance(task, TaughtTask)
        return cls(
            max_tokens=task.max_tokens,
            gives_graded_rewards=may_be_graded(task),
            knows_solutions=isinstance(task, SolvedTask),
            teaches=taught,
            turn_tokens=task.turn_tokens if isinstance(task, ReplyingTask) else None,
            train_problems=None if isinstance(task, ArmedTask) else task.size("train"),
            validates=task.size("validation") != 0 and not isinstance(task, ArmedTask),
            prompt=_prompt(task),
            arms=len(task.arms) if isinstance(task, ArmedTask) else 0,
            sources=() if type(task).__module__.startswith("rlvr.") else _sources(task, option),
            votes=taught or isinstance(task, AnsweringTask),
        )


def _sources(task: Task, option: str | None) -> tuple[str, ...]:
    """The benchmarks of the first test problems. Raises ValueError if the first has another id when asked for again."""
    size = min(task.size("test") or 0, LOOKED_AT)
    ids = [task.problem("test", 0).id for _ in range(2 if size else 0)]
    if len(set(ids)) > 1:
        raise ValueError(
            f"task={option}: problem('test', 0) has the id {ids[0]!r} and, asked for again, {ids[1]!r}. An id is a "
            "pure function of split and index: sampling noise is keyed by it."
        )
    return tuple(dict.fromkeys(task.problem("test", index).source for index in range(size)))


def _prompt(task: Task) -> str:
    """See `TaskAbilities`. Of a task with demonstrations one of these: its test problems may take seconds to find."""
    from rlvr.records import TaughtTask

    if longest := getattr(task, "longest_prompt", ""):
        return str(longest)
    if isinstance(task, TaughtTask):
        return task.demonstration(0)[0]
    return task.problem("test", 0).prompt if task.size("test") else ""


_MEMBERS = ("name", "max_tokens", "size", "problem", "reward", "close")


def check_task(config: Knobs, choices: Choices, task: TaskAbilities) -> None:
    """Raises ValueError for a task that the objective cannot learn from, or that cannot be evaluated as configured."""
    for source in task.sources:
        try:
            check_name(f"evaluation/{source}/distinct_correct_at_{config.evaluation.samples}")
        except ValueError as error:
            raise ValueError(f"task={choices.get('task')}: the source {source!r} of a problem: {error}") from None
    if task.arms and (config.get("policy") or config.get("program")):
        raise ValueError(
            f"task={choices.get('task')} cannot be evaluated: its policy is read off, not sampled. Training, by our "
            "trainer, writes it to `runs/RUN/samples`."
        )
    if task.turn_tokens and task.turn_tokens >= (longest := config.rollout.max_tokens or task.max_tokens):
        raise ValueError(
            f"task={choices.get('task')} has turns of {task.turn_tokens} tokens, and a response of {longest} has no "
            f"room for a second one. Pass rollout.max_tokens={2 * task.turn_tokens} or more, or shorter turns."
        )
    if config.get("policy"):
        return
    if config.evaluation.validation is not None and not task.validates:
        share = " Pass task.validation=0.05, a share of the training problems." if "validation" in config.task else ""
        raise ValueError(
            f"evaluation.validation={config.evaluation.validation}: task={choices.get('task')} has no validation "
            f"problems.{share or ' Drop it, or the tune= that asks for it.'}"
        )
    if task.turn_tokens:
        _check_turns(config, choices)
    if config.rollout.reward == "majority" and not task.votes:
        raise ValueError(
            f"rollout.reward=majority needs answers that can be compared, and task={choices.get('task')} names none. "
            "Pass a task with one answer, such as task=math, or rollout.reward=random."
        )
    if not config.get("program"):
        _check_objective(config, choices, task)


def _check_objective(config: Knobs, choices: Choices, task: TaskAbilities) -> None:
    """Raises ValueError for a task that the loss, advantage, presample or model cannot take."""
    loss, advantage = declared(config.loss["_target_"]), declared(config.advantage["_target_"])
    for group, marks in (("loss", loss), ("advantage", advantage)):
        if "binary_rewards" in marks and task.gives_graded_rewards:
            remedy = "task.binary=true" if "binary" in config.task else "a task of right and wrong, such as task=maze"
            raise ValueError(
                f"{group}={choices.get(group)} takes rewards 0 and 1 only and task={choices.get('task')} gives others. "
                f"Pass loss=grpo advantage=grpo, or {remedy}."
            )
    if "one_token_responses" in loss and 1 not in (task.max_tokens, config.rollout.max_tokens):
        raise ValueError(
            f"loss={choices.get('loss')} takes responses of one token and task={choices.get('task')} has longer ones. "
            "Pass task=bandit model=table, task=digits, or another loss."
        )
    if "solution" in loss and not task.knows_solutions:
        raise ValueError(
            f"loss={choices.get('loss')} learns known answers and task={choices.get('task')} gives none. "
            "Pass a task with a `solution`, such as task=digits or task=maze, or another loss."
        )
    if config.rollout.retire_at is not None and task.train_problems is None:
        raise ValueError(
            f"rollout.retire_at={config.rollout.retire_at} has no effect with task={choices.get('task')}, whose "
            "training problems do not repeat. Pass a set of them (such as task.train_problems=1000), or drop it."
        )
    _check_longest(config.rollout, config.rollout.max_tokens or task.max_tokens)
    if config.get("presample") and (task.arms or task.train_problems == 1):
        raise ValueError(
            f"loss={choices.get('loss')} splits the training problems into easy and hard ones, and "
            f"task={choices.get('task')} has only one. Pass another task, or another loss."
        )
    if task.arms:
        of_arms = f"{task.arms} arms, which an evaluation takes for one group"
        _check_counts(config.advantage, task.arms, of_arms, "task.arms")
    parameters = signature(config.model["_target_"]).parameters
    if parameters and parameters[0].annotation == "TaughtTask" and not task.teaches:
        raise ValueError(
            f"model={choices.get('model')} is made from a task's demonstrations and task={choices.get('task')} has "
            "none. Pass model=hf model.path=..., or a task with `vocabulary`, `end_word` and `demonstration`."
        )


def _check_turns(config: Knobs, choices: Choices) -> None:
    """Raises ValueError for what would take a conversation for one text, or sample it without replies."""
    is_ours = not config.get("program")
    without = {
        "program=trl": not is_ours and config.program["_target_"] == "rlvr.job.trl.train",
        "model.chat=true": is_ours and config.model.get("chat"),
        f"rollout.overdraw={config.rollout.overdraw}": is_ours and config.rollout.overdraw is not None,
        f"rollout.ahead={config.rollout.ahead}": is_ours and config.rollout.ahead > 1,
        f"loss={choices.get('loss')}": is_ours
        and (config.get("presample") or "solution" in declared(config.loss["_target_"])),
    }
    for word in (word for word, applies in without.items() if applies):
        raise ValueError(f"{word} has no turns and task={choices.get('task')} replies to each. Drop it.")


def _check_counts(advantage: Knobs, size: int, of: str, key_of_size: str) -> None:
    """Raises ValueError for a k or an order that groups of this size cannot take. Users' functions are skipped.

    of: the size in words. key_of_size: the knob that sets it.
    """
    if not _is_ours(advantage):
        return
    for key, possible in (("k", subset_sizes(size, str(advantage.get("form")))), ("order", orders(size))):
        value = advantage.get(key)
        if value is not None and value not in possible:
            raise ValueError(
                f"advantage.{key}={value} with {of}: {key} is {possible.start} to {possible.stop - 1}. Pass more "
                f"{key_of_size}, or another advantage.{key}."
            )


def _check_advantage(config: Knobs, choices: Choices, without: Collection[str]) -> None:
    loss, advantage = choices.get("loss"), choices.get("advantage")
    if loss in without and advantage not in (None, "none"):
        raise ValueError(f"advantage={advantage} has no effect with loss={loss}, which reads none. Drop it.")
    if loss not in without and advantage == "none" and _is_ours(config.loss):  # a user's loss may read other things
        raise ValueError(
            f"advantage=none leaves loss={loss} nothing to learn from. Pass advantage=grpo, or one of the losses that "
            f"read none: {', '.join(sorted(without))}."
        )
    form = config.advantage.get("form") if _is_ours(config.advantage) else None
    uses_equal_groups = "uses_equal_groups" in declared(config.advantage["_target_"]) or form in FORMS_OF_EQUAL_GROUPS
    if uses_equal_groups and config.rollout.dynamic_sampling != "none":
        of_form = f" with advantage.form={form}" if form else ""
        raise ValueError(
            f"advantage={advantage}{of_form} learns from groups whose responses are all right, or all wrong, which "
            f"rollout.dynamic_sampling={config.rollout.dynamic_sampling} leaves out. Pass "
            "rollout.dynamic_sampling=none, or advantage=maxrl."
        )
    if "value" in declared(config.advantage["_target_"]) - declared(config.loss["_target_"]):
        raise ValueError(
            f"advantage={advantage} needs a value head and loss={loss} trains none. Pass loss=ppo, or advantage=grpo."
        )
    if "returns" in declared(config.loss["_target_"]) and "value" not in declared(config.advantage["_target_"]):
        raise ValueError(
            f"loss={loss} trains a value head on returns, which advantage={advantage} does not give. "
            "Pass advantage=gae, or drop advantage: this loss brings its own."
        )


def _check_overlong(config: Knobs, choices: Choices) -> None:
    rollout, buffer = config.rollout, config.rollout.overlong_buffer
    if rollout.max_tokens is not None:
        _check_buffer(rollout, rollout.max_tokens)
    for group in ("loss", "advantage"):
        if buffer is not None and "binary_rewards" in declared(config[group]["_target_"]):
            raise ValueError(
                f"rollout.overlong_buffer={buffer:g} makes rewards other than 0 and 1, which "
                f"{group}={choices.get(group)} does not take. Pass rollout.overlong_buffer=null, or loss=grpo "
                "advantage=grpo."
            )


def _check_longest(rollout: Knobs, max_tokens: int) -> None:
    """Raises ValueError where every response would be penalised for its length, or left out as one that was cut."""
    _check_buffer(rollout, max_tokens)
    if rollout.overlong_filter and max_tokens == 1:
        raise ValueError(
            "rollout.overlong_filter=true leaves out responses that are cut, which at one token are all of them. Drop "
            "it."
        )


def _check_buffer(rollout: Knobs, max_tokens: int) -> None:
    if rollout.overlong_buffer is not None and rollout.overlong_buffer > max_tokens:
        raise ValueError(
            f"rollout.overlong_buffer={rollout.overlong_buffer:g} is more than rollout.max_tokens={max_tokens}: every "
            "response would be penalised. Pass a smaller buffer."
        )


def _check_schedule(trainer: Knobs, steps: int) -> None:
    """steps: of the run; `trainer.steps` is the length of its schedule."""
    if trainer.steps != steps and trainer.schedule == "constant":
        raise ValueError(
            f"trainer.steps={trainer.steps} has no effect with trainer.schedule=constant: it is the length of a "
            f"schedule, here in a run of {steps} steps. Pass steps={trainer.steps}, or drop it."
        )
    updates = trainer.steps * trainer.epochs * trainer.updates
    for name in ("warmup_steps", "decay_steps"):
        if (trainer[name] or 0) >= updates:
            raise ValueError(
                f"trainer.{name}={trainer[name]} takes up all {updates} optimiser steps of the run (steps="
                f"{trainer.steps} x trainer.epochs={trainer.epochs} x trainer.updates={trainer.updates}). Pass "
                f"trainer.{name}={updates // 10}, for example, or more steps."
            )


def _check_group_size(config: Knobs) -> None:
    """Raises ValueError for group sizes that our own functions cannot take."""
    G = config.rollout.samples
    _check_counts(config.advantage, G, f"rollout.samples={G}", "rollout.samples")
    score = config.loss.get("score") if _is_ours(config.loss) else None
    if G < 2 and score not in (None, "naive"):
        raise ValueError(
            f"rollout.samples={G} makes loss.score={score} zero for every response: it compares the responses of a "
            "group. Pass rollout.samples=2 or more, or loss.score=naive."
        )
    if G < 2 and config.rollout.dynamic_sampling != "none":
        raise ValueError(
            f"rollout.samples={G} with rollout.dynamic_sampling={config.rollout.dynamic_sampling}: a group of one "
            "response is all right or all wrong, and such groups are left out. Pass rollout.dynamic_sampling=none, or "
            "more samples."
        )


def _is_ours(node: Knobs) -> bool:
    return str(node["_target_"]).startswith("rlvr.")


def _check_known_answers(config: Knobs, choices: Choices) -> None:
    """Raises ValueError for what only samples of the policy have: rewards, sampling in rounds, an estimated KL."""
    loss = choices.get("loss")
    for key in ("dynamic_sampling", "filter"):
        if config.rollout[key] != "none":
            raise ValueError(
                f"rollout.{key}={config.rollout[key]} would choose problems by answers that loss={loss} does not learn "
                f"from. Pass rollout.{key}=none; rollout.samples=1 saves time."
            )
    for key, value in (("trainer.kl", config.trainer.kl), ("max_kl", config.max_kl)):
        if value:
            raise ValueError(
                f"{key}={value} is estimated on samples of the policy and loss={loss} learns known answers. Drop {key}."
            )


def _check_presample(config: Knobs) -> None:
    presample: Knobs | None = config.get("presample")
    if not presample or not _is_ours(presample):
        return
    threshold, samples, num_problems, ratio = (presample[key] for key in ("threshold", "samples", "problems", "ratio"))
    if threshold > samples:
        raise ValueError(
            f"presample.threshold={threshold} of presample.samples={samples} responses: pass a threshold of 1 to "
            f"{samples}."
        )
    if num_problems == 1:
        raise ValueError("presample.problems=1: two streams are made of at least 2 problems.")
    explored, updates = config.rollout.prompts * config.rollout.samples, config.trainer.updates
    num_rehearsed = round(explored / ratio)
    if num_rehearsed < updates:
        raise ValueError(
            f"presample.ratio={ratio:g} leaves {num_rehearsed} rehearsed responses beside {explored} explored ones for "
            f"trainer.updates={updates} mini-batches: pass presample.ratio={explored / updates:g} or less."
        )
