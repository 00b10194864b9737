"""Runs and sweeps of the ledger in the terms of MLflow: status, tags, params. Imports no mlflow.

A run becomes an MLflow run whose tags `rlvr.*` contain its identity, its state and the option chosen in each group, and
whose params are the frozen config. The writer (rlvr/tracker) and the reader (analysis/frames/mlflow_reader.py) both use
this module.
"""

import functools
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote, urlsplit

from rlvr.ledger.cause import State
from rlvr.ledger.identity import decisive
from rlvr.ledger.runs import RunInfo, choices, flatten, parse_yaml
from rlvr.ledger.state import RunState
from rlvr.ledger.sweeps import Sweep

MAX_VALUE = 6000  # characters of a param or tag that MLflow keeps
OURS = "rlvr."  # prefix of the names of our tags
# Tags of the identity and state of a run; every other tag `rlvr.<group>` is the option chosen in a config group.
CIRCUMSTANCES = frozenset(
    (
        *("run_id", "group_id", "arm", "created", "git_sha", "git_dirty", "host", "own_gpus", "command", "kind"),
        *("code", "state", "cause", "attempts", "files", "sweeps", "sweep_id", "trial", "name", "tags"),
        *("params_cut", "non_finite", "damaged_lines"),
    )
)
_BAD_KEY = re.compile(r"[^A-Za-z0-9_\-. ]")
# A name of a secret. `max_tokens` and `first_pass` are none; in capitals, of environment variables, such names are.
_SECRET = (
    r"(?:passwords?|passwd|passphrases?|(?-i:(?<![A-Z])PASS)|pwd|token|(?-i:TOKENS)|secrets?|credentials?|apikeys?"
    r"|_keys?)\d*"
)
_NAME = rf"(?<![?&\w])\w*{_SECRET}"
_IN_QUERY = re.compile(rf"([?&]\w*{_SECRET}=)[^&\s'\"#]+", re.IGNORECASE)  # of an address: "&" ends the value
_QUOTED = re.compile(r"'(?:[^'\n]|'\"'\"')*'")  # a word of a command line, as shlex.join writes it
_TYPED_IN_QUOTES = re.compile(rf"({_NAME}=)(?!\*\*\*).*(?=')", re.IGNORECASE)
_OVERRIDE = re.compile(rf"\A([+\w.]*?{_NAME}=)(?!.*\s\S+=)[^'\n]+\Z", re.IGNORECASE)  # the text is nothing else
_TYPED = re.compile(rf"({_NAME}=)(?!\*\*\*)\S+", re.IGNORECASE)
# In YAML, only at the place of a key: "a token: ..." in a message is no secret.
_VALUE = r"'(?:[^']|'')*'|\"(?:[^\"\\]|\\.)*\""  # in quotes, perhaps over several lines
_IN_BRACES = re.compile(
    rf"([{{,][ \t-]*[\"']?{_NAME}[\"']?:[ \t]*)(?!\*\*\*)(?:'[^'\n]*'|\"[^\"\n]*\"|[^\s,}}][^\n,}}]*)", re.IGNORECASE
)
_IN_LINES = re.compile(  # with the lines after it that are indented further
    rf"^(([ \t-]*)[\"']?{_NAME}[\"']?:[ \t]+)(?!\*\*\*)(?:{_VALUE}|[^\n]+(?:\n\2[ \t]+[^\n]*)*)",
    re.IGNORECASE | re.MULTILINE,
)
_USER_INFO = re.compile(r"(\w://)[^/?#\s]+@")  # up to the last @: a password may contain one


def status(state: State) -> str:
    """MLflow's status. Also RUNNING: a run that waits for its first attempt, or that will be continued."""
    if state.failure:
        return "FAILED"
    return {State.FINISHED: "FINISHED", State.PRUNED: "KILLED"}.get(state, "RUNNING")


def status_of_sweep(states: Sequence[State]) -> str:
    """RUNNING until all runs of the sweep have ended, then FAILED if one of them failed, else FINISHED."""
    statuses = {status(state) for state in states}
    return next((candidate for candidate in ("RUNNING", "FAILED") if candidate in statuses), "FINISHED")


def name_of_sweep(sweep: Sweep) -> str:
    """Its name, else its command, study or id; at most 250 characters."""
    command = redact(sweep.command).removeprefix("python -m rlvr.run ").strip()
    return (sweep.name or command or sweep.study or sweep.sweep_id)[:250]


WITHDRAWN = ("rlvr.own_gpus", "rlvr.trial", "rlvr.name", "rlvr.tags")  # what a later attempt or launch may take back


def tags(info: RunInfo, state: RunState, sweeps: Sequence[Sweep]) -> dict[str, str]:
    """The tags of a run, apart from those of its chosen options. What may differ between attempts is never a param.

    sweeps: the sweeps that contain the run, oldest first.
    """
    trials = [f"{sweep.sweep_id}/{sweep.trials[info.run_id]}" for sweep in sweeps if info.run_id in sweep.trials]
    values = {
        "rlvr.run_id": info.run_id,
        "rlvr.group_id": info.group_id,
        "rlvr.arm": info.arm,
        "rlvr.created": info.created or None,
        "rlvr.git_sha": info.git_sha,
        "rlvr.git_dirty": info.git_dirty,
        "rlvr.host": state.host or info.host,
        "rlvr.own_gpus": state.own_gpus or None,
        "rlvr.code": state.code,
        "rlvr.state": state.state.value,
        "rlvr.attempts": state.attempt,
        "rlvr.sweeps": ",".join(sweep.sweep_id for sweep in sweeps),
        "rlvr.trial": ",".join(trials),
        "rlvr.name": _words_of_sweeps(sweeps, "name"),
        "rlvr.tags": _words_of_sweeps(sweeps, "tags"),
        "mlflow.source.name": redact(info.command),
        "mlflow.source.git.commit": info.git_sha,
    }
    texts = {name: as_text(value)[:MAX_VALUE] for name, value in values.items() if value not in (None, "")}
    return {**texts, "rlvr.cause": state.cause}  # even if "": a retry removes the cause of the previous attempt


def _words_of_sweeps(sweeps: Sequence[Sweep], key: str) -> str:
    """The words, separated by commas, that sweep.json of these sweeps contains under `key`, each once."""
    words = [word.strip() for sweep in sweeps for word in str(sweep.info.get(key) or "").split(",")]
    return ",".join(dict.fromkeys(filter(None, words)))


def choice_tags(config: Mapping[str, Any]) -> dict[str, str]:
    """The options chosen in Hydra's groups, as tags: rlvr.loss=lad, rlvr.divergence=js."""
    return {f"{OURS}{_key(group)}": option for group, option in choices(config).items()}


def choices_of(tags: Mapping[str, str]) -> dict[str, str]:
    """The inverse of `choice_tags`, from all tags of a run."""
    ours = {name.removeprefix(OURS): value for name, value in tags.items() if name.startswith(OURS)}
    return {group: option for group, option in ours.items() if group not in CIRCUMSTANCES}


def params(config: Mapping[str, Any]) -> tuple[dict[str, str], list[str]]:
    """(the config, flattened with dots; the names of the values that had to be cut at 6000 characters)."""
    # Only what is fixed between attempts: MLflow cannot change a param.
    texts = {name[:250]: as_text(value) for name, value in flatten(decisive(config), _key).items()}
    cut = sorted(name for name, text in texts.items() if len(text) > MAX_VALUE)
    return {name: text[:MAX_VALUE] for name, text in texts.items()}, cut


_JSON = json.JSONEncoder(default=str)


def as_text(value: object) -> str:
    """Text as it is; everything else as JSON, so that null, true and [1, 2] read the same everywhere."""
    return value if isinstance(value, str) else _JSON.encode(value)


@functools.lru_cache(4096)  # the params of a sweep's runs are mostly alike
def as_value(text: str) -> bool | int | float | str | None:
    """The value of a param's text, the inverse of `as_text`; but a list or a mapping stays text, such as `[1, 8]`."""
    try:
        value = parse_yaml(text)
    except ValueError:
        return text
    return value if isinstance(value, bool | int | float) or value is None else text


@functools.lru_cache(4096)
def _key(text: str) -> str:
    """A text with only the characters that MLflow allows in a key."""
    return _BAD_KEY.sub("_", text).strip(".") or "_"


def redact(text: str) -> str:
    """The text with *** in place of user:password@, and of the values in password=... and, in YAML, password: ..."""
    text = _IN_QUERY.sub(r"\1***", text)
    text = _QUOTED.sub(lambda word: _TYPED_IN_QUOTES.sub(r"\1***", word[0]), text)
    for pattern in (_OVERRIDE, _TYPED, _IN_BRACES, _IN_LINES):
        text = pattern.sub(r"\1***", text)
    return _USER_INFO.sub(r"\1***@", text)


def secrets(uri: str) -> list[str]:
    """The parts of a URI that must not be printed: its password, which error messages of libraries may contain, and the
    pieces of one with an @ in it, whose end libraries take for a host. Longest first.
    """
    password = urlsplit(uri).password or ""
    parts = {password, unquote(password), *password.split("@")} - {""}
    return sorted(parts, key=lambda part: (-len(part), part))


def without_secrets(message: str, uri: str) -> str:
    """A library's message about this URI, redacted."""
    message = redact(message)
    for secret in secrets(uri):
        message = message.replace(secret, "***")
    return message
