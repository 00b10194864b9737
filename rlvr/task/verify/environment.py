"""Problems and rewards of an environment of the library verifiers. Imported by a verifying child process only.

The environment's code is a package that the user has installed: it runs as it is, with files and network.
"""

import asyncio
import inspect
import itertools
import json
import math
import traceback
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import verifiers.v1 as vf
from verifiers.v1.state import state_cls


@cache
def _taskset(settings: str) -> vf.Taskset:
    knobs = json.loads(settings)
    return vf.load_taskset(vf.taskset_config_type(knobs["id"]).model_validate(knobs))


def judge(request: Mapping[str, Any]) -> dict[str, Any]:
    """do=read: the problems, as lines of a file, with {"problem": what is wrong, or None}. do=judge: {"score"}."""
    try:
        taskset = _taskset(request["settings"])
        return {"problem": _read(taskset, request)} if request["do"] == "read" else {"score": _score(taskset, request)}
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever the code of an environment raises
        at = traceback.extract_tb((error.__cause__ or error).__traceback__)[-1]
        said = " ".join(str(error).split())
        return {"outcome": "error", "problem": f"{type(error).__name__}: {said} ({at.filename}:{at.lineno})"}


def _read(taskset: vf.Taskset, request: Mapping[str, Any]) -> str | None:
    if not taskset.bounded and request["most"] is None:
        return "its problems never end. Pass task.most=1000, or another number"
    with Path(request["file"]).open("w") as file:
        for task in itertools.islice(taskset, request["most"]):
            if lacking := _lacking(taskset, task):
                return f"it has {lacking}. Environments of one question and one answer, judged by its text, work here"
            data = task.data.model_dump(mode="json", exclude_unset=True, exclude={"idx"})
            label = task.data.id or task.data.name or f"{taskset.config.id}-{task.data.idx}"
            prompt = "\n\n".join(filter(None, (task.data.system_prompt, task.data.prompt_text)))
            source = taskset.config.id.rpartition("/")[2]
            file.write(json.dumps({"id": label, "source": source, "prompt": prompt, "data": data}) + "\n")
    return None


def _lacking(taskset: vf.Taskset, task: vf.Task) -> str | None:
    """What a problem has that is more than a question and rewards of the answer's text."""
    turns = [turn for turn in _turns(task.data) if not isinstance(turn, vf.SystemMessage)]
    hooks = [*task.hooks("reward"), *(judge.score for judge in task.plugged_judges())]
    runtimes = [inspect.signature(hook).parameters.get("runtime") for hook in hooks]
    prepares = any(getattr(type(task), name) is not getattr(vf.Task, name) for name in ("setup", "finalize"))
    found = {
        "an environment of its own": vf.environment_class(taskset.config.id) is not vf.SingleAgentEnv,
        "tools": type(task).toolsets(task.config) or type(taskset).toolsets(taskset.config),
        "a container": task.NEEDS_CONTAINER,
        "rewards of a runtime": prepares or any(p and p.default is inspect.Parameter.empty for p in runtimes),
        "prompts other than one text": [type(turn) for turn in turns] != [vf.UserMessage]
        or not isinstance(turns[0].content, str),
        "no rewards": not hooks,
    }
    return next((name for name, is_so in found.items() if is_so), None)


def _score(taskset: vf.Taskset, request: Mapping[str, Any]) -> float:
    """The weighted sum of the rewards of a response, as of a finished rollout of one turn."""
    kind = type(taskset).task_type()
    task = kind(kind.data_type().model_validate(request["data"]), taskset.config.task)
    messages = [*_turns(task.data), vf.AssistantMessage(content=request["response"])]
    last = len(messages) - 1
    trace = vf.Trace(
        task=vf.TraceTask(type=kind.__name__, data=task.data, key=task.key, hash=task.hash),
        agent=vf.AgentInfo(config=vf.AgentConfig()),
        state=state_cls(kind)(),
        nodes=[
            vf.MessageNode(message=m, parent=i - 1 if i else None, sampled=i == last) for i, m in enumerate(messages)
        ],
        is_completed=True,
        ok=True,
    )
    asyncio.run(task.score(trace))
    if not math.isfinite(trace.reward):
        raise ValueError(f"the reward is {trace.reward}")
    return trace.reward


def _turns(data: vf.TaskData) -> list[vf.Message]:
    """The prompt, after the system prompt if there is one."""
    system = [] if data.system_prompt is None else [vf.SystemMessage(content=data.system_prompt)]
    prompt = [vf.UserMessage(content=data.prompt)] if isinstance(data.prompt, str) else data.prompt or []
    return [*system, *prompt]
