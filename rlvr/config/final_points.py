"""Evaluations on a final split: its problems, that training has seen none of them, and the count of queries."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any

from hydra.utils import instantiate
from omegaconf import DictConfig

from rlvr.config.compose import Composed
from rlvr.config.overrides import key_of
from rlvr.config.schema import as_dict
from rlvr.ledger import final, layout


def final_points(
    adapt: Callable[[Sequence[Composed]], list[Composed]],
    trained: Mapping[str, Mapping[str, Any] | None],
    points: Sequence[Composed],
    *,
    budget: int,
    command: str,
    write: bool,
) -> list[Composed]:
    """The adapted points, as one query of their final split. Raises ValueError if they have none or several, and for a
    query beyond the budget. trained: by the digest of a policy the config of its run, if it has one. write: record it.
    """
    adapted = adapt(points)
    splits: dict[str, str] = {}  # by what is asked: each split is read once
    for words, config, _ in adapted:
        typed, of_run = [k for k in map(key_of, words) if k.split(".")[0] == "task"], trained[config.policy.digest]
        asked = repr((typed, as_dict(config.task), of_run and of_run["task"]))
        splits[asked] = splits.get(asked) or final_split_id(config, typed, of_run)
    if len({*splits.values()}) > 1:
        raise ValueError("--final: these evaluations have several final splits. Ask each with a command of its own.")
    digests = {str(config.policy.digest) for _, config, _ in adapted}
    number = final.query(layout.home(), next(iter(splits.values())), digests, budget, command, write=write)
    for _, config, _ in adapted:
        config.policy.query = number
    return adapted


def final_split_id(config: DictConfig, typed: Sequence[str], trained: Mapping[str, Any] | None) -> str:
    """The id of the final split of an evaluation. ValueError where there is none, or some of it was seen in training.

    typed: the keys of the task that were typed. trained: the config of the policy's run.
    """
    with closing(instantiate(config.task, _convert_="all")) as task:
        split = final.final_split(task)
        problems = [task.problem(split, index) for index in range(task.size(split) or 0)]
    if split == "test" and "task.test" not in typed:
        raise ValueError(
            f"--final: task={task.name} has no problems that evaluations of training leave alone. Name some that they "
            "have not seen by task.test=FILE, where the task has this knob. Generated problems have a split."
        )
    if split == "final" and typed and trained is not None:
        raise ValueError(f"--final: {typed[0]} would ask other problems than those that training left out. Drop it.")
    if not problems:
        raise ValueError(
            f"--final: test and validation problems of task={task.name} leave none of the held-out ones. Train with "
            "fewer (task.test_problems, task.validation_problems), or on a task with more."
        )
    if split == "test" and trained is not None and trained["task"]["_target_"] == config.task["_target_"]:
        with closing(instantiate(trained["task"], _convert_="all")) as of_run:
            sizes = {split: of_run.size(split) or 0 for split in ("train", "validation", "test")}
            seen = {" ".join(of_run.problem(s, i).prompt.split()) for s, size in sizes.items() for i in range(size)}
        if shared := [problem.id for problem in problems if " ".join(problem.prompt.split()) in seen]:
            raise ValueError(
                f"--final: {len(shared)} of {len(problems)} problems of task.test, such as {shared[0]}, are among "
                "those that the policy was trained or evaluated on. Leave them out."
            )
    return final.split_id(problems)
