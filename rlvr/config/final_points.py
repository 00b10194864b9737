"""Evaluations on a final split: its problems, that this home has read none of them, and the count of queries."""

import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from typing import Any

from hydra.errors import InstantiationException
from hydra.utils import instantiate

from rlvr.config.checks import component_error
from rlvr.config.compose import Composed
from rlvr.config.overrides import key_of
from rlvr.config.schema import as_dict
from rlvr.ledger import final, layout
from rlvr.ledger.attempt import newest_attempt
from rlvr.ledger.identity import of_task
from rlvr.ledger.runs import Unreadable, read_config, read_info
from rlvr.records import Split, Task

FIELD = re.compile(r"\{\w+\}")  # of a template
COMPARING_S = 300.0  # after which no further task is built to be compared
OWN = "its own run"
Knobs = Mapping[str, Any]


class FinalQuery:
    """One command with --final.

    trained: by the digest of a policy the config of its run, if it has one. budget: see `rlvr.ledger.final.Query`.
    """

    def __init__(self, trained: Mapping[str, Knobs | None], budget: int, command: str) -> None:
        self.trained, self.budget, self.command = trained, budget, command

    def points(
        self, adapt: Callable[[Sequence[Composed]], list[Composed]], points: Sequence[Composed]
    ) -> list[Composed]:
        """The adapted points, as one query of their final split. Raises ValueError if they have none or several, for
        problems that this home has read, and for a query beyond the budget.
        """
        adapted = adapt(points)
        splits: dict[str, dict[str, str]] = {}  # by what is asked: each split is read once
        tasks = list[Knobs]()
        for words, config, _ in adapted:
            typed = _typed(words)
            of_run = self.trained[config.policy.digest]
            tasks.append(task := as_dict(config.task, resolve=True))
            asked = repr((typed, task, of_run and of_run["task"]))
            splits[asked] = splits.get(asked) or final_problems(task, typed, of_run)
        first, *others = splits.values()
        if any(other.keys() != first.keys() for other in others):
            raise ValueError(
                "--final: these evaluations have several final splits. Ask each with a command of its own."
            )
        digests = {str(config.policy.digest) for _, config, _ in adapted}
        self._query = final.Query(first.keys(), digests, self.budget, self.command)
        if not self._query.is_repeated(layout.home()):
            refuse_read(first, tasks, [config for config in self.trained.values() if config])
        self._number = self._query.number(layout.home())
        for _, config, _ in adapted:
            config.policy.query = self._number
        return adapted

    def record(self) -> Callable[[], None]:
        """Record the query; returns what undoes that. Raises ValueError if another command has recorded one since."""
        return self._query.record(layout.home(), self._number)


def ordinary_points(
    adapt: Callable[[Sequence[Composed]], list[Composed]], points: Sequence[Composed]
) -> list[Composed]:
    """The adapted points of a command without --final. ValueError if they would read problems that a query has asked,
    and that the training of the policy has not read: those of a task that was typed.
    """
    adapted, tasks = adapt(points), list[Knobs]()
    for words, config, _ in adapted if layout.final_queries(layout.home()).exists() else []:
        if _typed(words) and (task := of_task(as_dict(config.task, resolve=True))) not in tasks:
            tasks.append(task)
    for task in tasks:
        try:
            with closing(_without_template(task)) as built:
                generated, problems = final.final_split(built) == "final", _texts(built, ["test"])
        except (InstantiationException, ValueError) as error:  # the launch says what is wrong with it
            print(f"Not compared with the queries of a final split: {component_error(error)}", file=sys.stderr)
            continue
        if asked := final.asked(layout.home(), problems):
            todo = "So" if generated else "Add --final, which asks policies that took part nothing new; or"
            raise ValueError(
                f"{len(asked)} of {len(problems)} problems, such as {problems[asked[0]]}, are of a final split, whose "
                f"queries are counted: an ordinary evaluation would be a look that is not. {todo} evaluate on other "
                "problems."
            )
    return adapted


def _typed(words: Sequence[str]) -> list[str]:
    """The keys of the task among overrides."""
    return [key for key in map(key_of, words) if key.split(".")[0] == "task"]


def final_problems(task: Knobs, typed: Sequence[str], trained: Knobs | None) -> dict[str, str]:
    """The problems of the final split of an evaluation, as `_texts` gives them. ValueError where there are none.

    typed: the keys of the task that were typed. trained: the config of the policy's run.
    """
    with closing(_without_template(task)) as built:
        split, name, problems = final.final_split(built), built.name, dict[str, str]()
        if split == "final" or "task.test" in typed:
            problems = _texts(built, [split])
    if split == "test" and "task.test" not in typed:
        raise ValueError(
            f"--final: task={name} has no problems that evaluations of training leave alone. Name some that they have "
            "not seen by task.test=FILE, where the task has this knob. Generated problems have a split."
        )
    if split == "final" and typed and trained is not None:
        raise ValueError(f"--final: {typed[0]} would ask other problems than those that training left out. Drop it.")
    if not problems:
        half = max(1, task.get("test_problems", 2) // 2)
        raise ValueError(
            f"--final: test and validation problems of task={name} leave none of the held-out ones. Train with fewer, "
            f"such as task.test_problems={half} task.validation_problems={half // 2}, or on a task with more."
        )
    return problems


def refuse_read(problems: Mapping[str, str], tasks: Sequence[Knobs], trained: Sequence[Knobs]) -> None:
    """ValueError if the runs of the policies, or another run of this home, have read some of the problems.

    tasks: whose final split these are. trained: the configs of the policies' runs. Runs of the same class of task are
    compared, whatever their knobs: any may pose the same problem. Of generated ones training draws from another side.
    """
    classes, began = {task["_target_"] for task in tasks}, time.monotonic()
    compared = [of_task(task) for task in tasks if "test" not in task]  # generated: `final` has none of its own sets
    for name, config in [*((OWN, config) for config in trained), *_runs()]:
        other = of_task(config.get("task") or {})
        if other.get("_target_") not in classes or other in compared:
            continue
        compared.append(other)
        try:
            if time.monotonic() - began > COMPARING_S:
                raise ValueError(f"building the tasks of runs before it took more than {COMPARING_S:.0f} s")
            with closing(_without_template(other)) as built:
                generated = final.final_split(built) == "final"
                texts = _texts(built, ("validation", "test") if generated else ("train", "validation", "test"))
        except (InstantiationException, ValueError) as error:
            if name == OWN:
                raise
            print(f"--final: not compared with what {name} read: {component_error(error)}", file=sys.stderr)
            continue
        if shared := [problem for text, problem in problems.items() if text in texts]:
            raise ValueError(
                f"--final: {len(shared)} of {len(problems)} problems, such as {shared[0]}, are among those that {name} "
                f"was trained or evaluated on. {'I' if generated else 'Ask others; or, i'}f nothing was chosen by that "
                "run, remove it from runs/."
            )


def _runs() -> Iterator[tuple[str, Knobs]]:
    """(name, config) of the runs of this home that began and can be read, without evaluations on a final split."""
    for run_id in layout.run_ids(layout.home()):
        run_dir = layout.run(layout.home(), run_id)
        with suppress(Unreadable):
            config = read_config(run_dir)
            policy: Knobs = config.get("policy") or {}
            if not policy.get("query") and newest_attempt(run_dir):
                yield read_info(run_dir).name, config


def _without_template(task: Knobs) -> Task:
    """The task, its prompts of any length, in words, without those of its template, and with choices in the order of
    the data."""
    plain = {"shuffle": False, "spelled": False, "max_prompt_tokens": None, "long_prompts": "refuse"}
    changed: dict[str, Any] = {knob: value for knob, value in plain.items() if knob in task}
    if template := task.get("template"):
        changed["template"] = " ".join(sorted({*FIELD.findall(template)}))
    return instantiate({**task, **changed}, _convert_="all")


def _texts(task: Task, splits: Sequence[Split]) -> dict[str, str]:
    """Of the problems of splits of finite size, by the text without white space, the id."""
    problems = (task.problem(split, i) for split in splits for i in range(task.size(split) or 0))
    return {" ".join(problem.prompt.split()): problem.id for problem in problems}
