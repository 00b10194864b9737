"""What the ledger says of a run or a sweep, in MLflow's words: status, tags, params. Imports no mlflow.

A run is an MLflow run whose tags `rlvr.*` say who it is, how it stands and which option was chosen in each group, and
whose params are the frozen config. The writer (rlvr/tracker) and the reader (analysis/frames/mlflow_reader.py) agree
through this file.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rlvr.ledger.cause import State
from rlvr.ledger.identity import decisive
from rlvr.ledger.runs import RunInfo, choices, flatten, parse_yaml
from rlvr.ledger.state import RunState
from rlvr.ledger.sweeps import Sweep

MAX_VALUE = 6000  # characters of a param or tag that MLflow keeps
OURS = "rlvr."  # what the names of our tags begin with
# Tags that say who a run is and how it went; every other `rlvr.<group>` names the option chosen in a config group.
CIRCUMSTANCES = frozenset(
    (
        *("run_id", "group_id", "arm", "created", "git_sha", "git_dirty", "host", "command", "kind"),
        *("state", "cause", "attempts", "sweeps", "sweep_id", "trial", "name", "tags"),
        *("params_cut", "non_finite", "damaged_lines"),
    )
)
_BAD_KEY = re.compile(r"[^A-Za-z0-9_\-. ]")
_NAME = r"\w*(?:password|passwd|pwd|token|secret|credentials?|apikey|_key)"  # of a secret
_TYPED = re.compile(rf"({_NAME}=)[^&;\s]+", re.IGNORECASE)
_IN_YAML = re.compile(  # where a key stands: "a token: ..." of a message is no secret
    rf"((?:^|[{{,])[ \t-]*[\"']?{_NAME}[\"']?:[ \t]+)(?:'[^'\n]*'|\"[^\"\n]*\"|[^\n,}}]+)", re.IGNORECASE | re.MULTILINE
)
_USER_INFO = re.compile(r"(\w://)[^/@\s]+@")


def status(state: State) -> str:
    """A run that waits for its first attempt, or that will go on by itself, is RUNNING."""
    if state.failure:
        return "FAILED"
    return {State.FINISHED: "FINISHED", State.PRUNED: "KILLED"}.get(state, "RUNNING")


def status_of_sweep(states: Sequence[State]) -> str:
    """A sweep ends when the last of its runs has: FINISHED if none failed."""
    found = {status(state) for state in states}
    return next((each for each in ("RUNNING", "FAILED") if each in found), "FINISHED")


def name_of_sweep(sweep: Sweep) -> str:
    command = redact(sweep.command).removeprefix("python -m rlvr.run ").strip()
    return (sweep.name or command or sweep.study or sweep.sweep_id)[:250]


def tags(info: RunInfo, state: RunState, sweeps: Sequence[Sweep]) -> dict[str, str]:
    """Identity and circumstances: everything that may differ between attempts is here, never in a param.

    sweeps: those that the run is in, oldest first.
    """
    trials = [f"{sweep.sweep_id}/{sweep.trials[info.run_id]}" for sweep in sweeps if info.run_id in sweep.trials]
    known = {
        "rlvr.run_id": info.run_id,
        "rlvr.group_id": info.group_id,
        "rlvr.arm": info.arm,
        "rlvr.created": info.created or None,
        "rlvr.git_sha": info.git_sha,
        "rlvr.git_dirty": info.git_dirty,
        "rlvr.host": state.host or info.host,
        "rlvr.state": state.state.value,
        "rlvr.attempts": state.attempt,
        "rlvr.sweeps": ",".join(sweep.sweep_id for sweep in sweeps),
        "rlvr.trial": ",".join(trials),
        "rlvr.name": _of_sweeps(sweeps, "name"),
        "rlvr.tags": _of_sweeps(sweeps, "tags"),
        "mlflow.source.name": redact(info.command),
        "mlflow.source.git.commit": info.git_sha,
    }
    said = {name: as_text(value)[:MAX_VALUE] for name, value in known.items() if value not in (None, "")}
    return {**said, "rlvr.cause": state.cause}  # always: a retry takes back the cause of the attempt before


def _of_sweeps(sweeps: Sequence[Sweep], key: str) -> str:
    """What launches said of themselves, each word once."""
    words = [word.strip() for sweep in sweeps for word in str(sweep.info.get(key) or "").split(",")]
    return ",".join(dict.fromkeys(filter(None, words)))


def choice_tags(config: Mapping[str, Any]) -> dict[str, str]:
    """Hydra's group choices as tags: rlvr.loss=lad, rlvr.divergence=js."""
    return {f"{OURS}{_key(group)}": option for group, option in choices(config).items()}


def choices_of(tags: Mapping[str, str]) -> dict[str, str]:
    """The inverse of `choice_tags`, from all tags of a run."""
    ours = {name.removeprefix(OURS): value for name, value in tags.items() if name.startswith(OURS)}
    return {group: option for group, option in ours.items() if group not in CIRCUMSTANCES}


def params(config: Mapping[str, Any]) -> tuple[dict[str, str], list[str]]:
    """(the config flattened with dots, names of the values that had to be cut at 6000 characters)."""
    # What may change between attempts is no param: those cannot be changed.
    texts = {name[:250]: as_text(value) for name, value in flatten(decisive(config), _key).items()}
    cut = sorted(name for name, text in texts.items() if len(text) > MAX_VALUE)
    return {name: text[:MAX_VALUE] for name, text in texts.items()}, cut


def as_text(value: object) -> str:
    """Text as it is; everything else as JSON, so that null, true and [1, 2] read the same everywhere."""
    return value if isinstance(value, str) else json.dumps(value, default=str)


@functools.lru_cache(4096)  # the params of a sweep's runs are mostly alike
def as_value(text: str) -> bool | int | float | str | None:
    """What a param's text stands for; a list or a mapping stays text, such as `[1, 8]`."""
    try:
        value = parse_yaml(text)
    except ValueError:
        return text
    return value if isinstance(value, bool | int | float) or value is None else text


def _key(text: str) -> str:
    return _BAD_KEY.sub("_", text).strip(".") or "_"


def redact(text: str) -> str:
    """The text without user:password@, password=... and, in YAML, password: ..., for people, logs and files."""
    for pattern in (_TYPED, _IN_YAML):
        text = pattern.sub(r"\1***", text)
    return _USER_INFO.sub(r"\1***@", text)
