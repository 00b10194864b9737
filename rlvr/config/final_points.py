"""Evaluations on a final split: its problems, that this home has read none of them, and the count of queries."""

import re
import sys
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
from rlvr.ledger.identity import of_task
from rlvr.ledger.runs import Unreadable, read_config, read_info
from rlvr.records import Split, Task
from rlvr.task.procedural import SIZES

FIELD = re.compile(r"\{\w+\}")  # of a template
OF_OTHERS = {*SIZES, "seed", "mistakes", "reader"}  # knobs in which tasks differ that pose one kind of problems
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
        for words, config, _ in adapted:
            typed = [key for key in map(key_of, words) if key.split(".")[0] == "task"]
            of_run = self.trained[config.policy.digest]
            asked = repr((typed, task := as_dict(config.task, resolve=True), of_run and of_run["task"]))
            splits[asked] = splits.get(asked) or final_problems(task, typed, of_run)
        first, *others = splits.values()
        if any(other.keys() != first.keys() for other in others):
            raise ValueError(
                "--final: these evaluations have several final splits. Ask each with a command of its own."
            )
        digests = {str(config.policy.digest) for _, config, _ in adapted}
        self._query = final.Query(first.keys(), digests, self.budget, self.command)
        self._number = self._query.number(layout.home())
        for _, config, _ in adapted:
            config.policy.query = self._number
        return adapted

    def record(self) -> Callable[[], None]:
        """Record the query; returns what undoes that. Raises ValueError if another command has recorded one since."""
        return self._query.record(layout.home(), self._number)


def final_problems(task: Knobs, typed: Sequence[str], trained: Knobs | None) -> dict[str, str]:
    """The problems of the final split of an evaluation, as `_texts` gives them. ValueError where there are none, or
    training or an ordinary evaluation has read some.

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
    _refuse_read(problems, task, split, trained)
    return problems


def _refuse_read(problems: Mapping[str, str], task: Knobs, split: Split, trained: Knobs | None) -> None:
    """ValueError if the run of the policy, or a run of this home, has read some of the problems."""
    splits: tuple[Split, ...] = ("validation", "test") if split == "final" else ("train", "validation", "test")
    compared = [of_task(task)] if split == "final" else []  # its splits have no problem in common
    for name, config in [*([("its own run", trained)] if trained else []), *_runs()]:
        other = of_task(config.get("task") or {})
        if other in compared or not _alike(task, other, split):
            continue
        compared.append(other)
        try:
            with closing(_without_template(other)) as built:
                texts = _texts(built, splits)
        except InstantiationException as error:
            if config is trained:
                raise
            print(f"--final: not compared with what {name} read: {component_error(error)}", file=sys.stderr)
            continue
        if shared := [problem for text, problem in problems.items() if text in texts]:
            raise ValueError(
                f"--final: {len(shared)} of {len(problems)} problems, such as {shared[0]}, are among those that {name} "
                "was trained or evaluated on. Ask others; or, if nothing was chosen by that run, remove it from runs/."
            )


def _alike(task: Knobs, other: Knobs, split: Split) -> bool:
    """Whether two tasks may have a problem in common: one class; and, of generated ones, one kind of problems."""
    differing = {knob for knob in {*task, *other} if task.get(knob) != other.get(knob)}
    return "_target_" not in differing if split == "test" else differing <= OF_OTHERS


def _runs() -> Iterator[tuple[str, Knobs]]:
    """(name, config) of the runs of this home that can be read, without evaluations on a final split."""
    for run_id in layout.run_ids(layout.home()):
        run_dir = layout.run(layout.home(), run_id)
        with suppress(Unreadable):
            config = read_config(run_dir)
            policy: Knobs = config.get("policy") or {}
            if not policy.get("query"):
                yield read_info(run_dir).name, config


def _without_template(task: Knobs) -> Task:
    """The task, its prompts without the words of its template and with choices in the order of the data."""
    changed: dict[str, Any] = {"shuffle": False} if "shuffle" in task else {}
    if template := task.get("template"):
        changed["template"] = " ".join(sorted({*FIELD.findall(template)}))
    return instantiate({**task, **changed}, _convert_="all")


def _texts(task: Task, splits: Sequence[Split]) -> dict[str, str]:
    """Of the problems of splits of finite size, by the text without white space, the id."""
    problems = (task.problem(split, i) for split in splits for i in range(task.size(split) or 0))
    return {" ".join(problem.prompt.split()): problem.id for problem in problems}
