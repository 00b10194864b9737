"""Cached stages: results of slow work that one process builds once, and that exist completely or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from rlvr.ledger import digests, layout
from rlvr.ledger.files import SUFFIX, read_json, remove, write_atomically, write_json
from rlvr.ledger.identity import hash_of, of_engine, of_task
from rlvr.ledger.lock import lock, unlock

if TYPE_CHECKING:  # numpy would slow `python -m sweeps` down
    from rlvr.records import Problem, Task, TaughtTask

log = logging.getLogger(__name__)

SAY_WAITING_EVERY_S = 15.0
SAMPLED_DEMONSTRATIONS = 64
AT_ONCE = 256  # problems that an engine pre-samples in one call
PRESAMPLED_BY = ("samples", "temperature", "top_p", "seed")  # knobs of presample that decide the answers to a problem
ENDLESS = 512  # problems to pre-sample from a train split that never ends, if no number is set

# Raise a version when what its stages contain changes: they are then built again.
TABLE_VERSION, PRETRAIN_VERSION, PRESAMPLE_VERSION, POLICY_VERSION = 1, 1, 1, 1


def stage(store: Path, identity: Mapping[str, Any], build: Callable[[Path], Mapping[str, Any]]) -> Path:
    """Directory `store`/<stage id>, which is built first if it does not exist. The id is a hash of `identity` (JSON).

    build: fills an empty directory, and returns further content for stage.json, beside the identity and the duration.
    One process builds while others wait for its lock, which is released if it is killed: a directory of this name is
    always complete.
    """
    name = stage_id(identity)
    final = store / name
    if final.exists() and not digests.fault_of(final):
        return final
    store.mkdir(parents=True, exist_ok=True)
    held = _wait_for(layout.stage_lock(store, name), f"{identity['source']} stage {name}")
    try:
        fault = digests.fault_of(final) if final.exists() else ""
        if fault:
            log.error("stage %s is damaged: %s. It is kept as %s", name, fault, digests.set_aside(final))
        if not final.exists():
            for left_over in store.glob(f".{name}.*{SUFFIX}"):  # of builders that were killed: we hold the lock
                remove(left_over)
            _build(final, identity, build)
    finally:
        unlock(held)
    return final


def stage_id(identity: Mapping[str, Any]) -> str:
    """16 hexadecimal digits of the SHA-256 of the identity as canonical JSON."""
    return hash_of(identity, 16)


def task_identity(task: TaughtTask) -> dict[str, Any]:
    """The properties of a task that a stage depends on: class, vocabulary, public knobs and first demonstrations.

    The knobs are what the task lists as its `identity`; of a task that lists nothing, every public attribute counts.
    The demonstrations stand for the code that makes them: if their text changes, so does the stage.
    """
    from rlvr.records import IdentifiedTask

    demonstrations = json.dumps([task.demonstration(index) for index in range(SAMPLED_DEMONSTRATIONS)])
    return {
        "class": f"{type(task).__module__}.{type(task).__qualname__}",
        "knobs": task.identity if isinstance(task, IdentifiedTask) else _public_attributes(task),
        "vocabulary": list(task.vocabulary),
        "end_word": task.end_word,
        "demonstrations": hashlib.sha256(demonstrations.encode()).hexdigest(),
    }


# --- the identities of stages


def table_identity(task: TaughtTask) -> dict[str, Any]:
    """Identity of a tabular policy (rlvr/model/table.py)."""
    return {"source": "table", "version": TABLE_VERSION, "task": task_identity(task)}


def pretrain_identity(task: TaughtTask, **knobs: Any) -> dict[str, Any]:
    """Identity of a pre-trained base policy (rlvr/model/pretrain.py)."""
    return {"source": "pretrain", "version": PRETRAIN_VERSION, "task": task_identity(task), **knobs}


def presample_identity(
    problems: Sequence[Problem], base: object, settings: Mapping[str, Any], max_tokens: int, knobs: Mapping[str, Any]
) -> dict[str, Any]:
    """Identity of the base policy's own answers (rlvr/rollout/presample.py). base: its stage id or `base_identity`."""
    content = json.dumps([[problem.id, problem.prompt, problem.answer] for problem in problems], default=str)
    decisive = {name: knobs[name] for name in PRESAMPLED_BY}
    return {
        "source": "presample",
        "version": PRESAMPLE_VERSION,
        "base": base,
        "settings": dict(settings),
        "problems": hashlib.sha256(content.encode()).hexdigest(),
        "max_tokens": max_tokens,
        **decisive,
    }


def base_identity(base: Path, store: Path) -> object:
    """Identity of a base policy: the id of its stage, or else its path with the sizes and times of its files."""
    if base.parent.resolve() == store.resolve():
        return base.name
    files = sorted(file for pattern in ("*.json", "*.safetensors") for file in base.glob(pattern))
    return [str(base.resolve()), [[file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in files]]


def presampled_problems(task: Task, limit: int | None) -> list[Problem]:
    """The first `limit` problems of the train split. None: all of it, or the first ENDLESS if it never ends."""
    size = task.size("train")
    if size is None:
        num_problems = ENDLESS if limit is None else limit
    else:
        num_problems = size if limit is None else min(size, limit)
    return [task.problem("train", index) for index in range(num_problems)]


def policy_identity(digest: str, dtype: str) -> dict[str, Any]:
    """Identity of a checkpoint that is converted to Hugging Face format (rlvr/job/policy.py)."""
    return {"source": "policy", "version": POLICY_VERSION, "digest": digest, "dtype": dtype}


# --- the stages of a run


@dataclass(frozen=True)
class Stage:
    """A stage that a run starts from, given by its identity."""

    identity: Mapping[str, Any]

    @property
    def id(self) -> str:
        return stage_id(self.identity)

    @property
    def source(self) -> str:
        return str(self.identity["source"])

    @property
    def shared(self) -> bool:
        """Whether all ranks of a node build it together."""
        return self.source == "presample"

    @property
    def quick(self) -> bool:
        """Whether it is built in seconds: such a stage needs no job of its own."""
        return self.source == "table"


def stages(config: Mapping[str, Any], task: Any, store: Path) -> list[Stage]:
    """The stages that a run needs, each after the stages that it is built on. Known before launch, without torch.

    config: the frozen config. A base policy from elsewhere (a hub name, a user's own function) is no stage. If it is
    not on disk, the id of the answers pre-sampled with it is not known yet: that stage is left out here, and the run
    builds it.
    """
    needed: list[Stage] = []
    if config.get("policy") or not config["model"]:
        return needed  # an evaluation builds its stage itself, from a checkpoint that has to exist first
    base: object = None
    model = {k: v for k, v in config["model"].items() if k != "_target_"}
    source = _SOURCES.get(config["model"]["_target_"])
    if source is not None:
        needed.append(Stage(source(task, **model)))
        base = needed[0].id
    elif Path(str(model.get("path", ""))).expanduser().is_dir():
        base = base_identity(Path(model["path"]).expanduser(), store)
    if config.get("presample") is None or base is None:
        return needed
    rollout = config["rollout"]
    settings = presample_settings(config)
    problems = presampled_problems(task, config["presample"]["problems"])
    limit = rollout["max_tokens"] or task.max_tokens
    return [*needed, Stage(presample_identity(problems, base, settings, limit, config["presample"]))]


_SOURCES: Mapping[str, Callable[..., dict[str, Any]]] = {
    "rlvr.model.table.table": table_identity,
    "rlvr.model.pretrain.pretrain": pretrain_identity,
}


def presample_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings, beside the policy and the sampling, that decide a base policy's answers."""
    rollout, model = config["rollout"], config["model"]
    chat: dict[str, Any] = {"chat": model.get("chat", False)}
    if model.get("system"):
        chat["system"] = model["system"]
    return {"task": of_task(config["task"]), "engine": of_engine(presampling_engine(rollout["engine"])), **chat}


def presampling_engine(engine: Mapping[str, Any]) -> dict[str, Any]:
    """The engine that samples before training: in place of Ray, vLLM on the ranks' GPUs, with the same samples."""
    if "workers" not in engine:
        return dict(engine)
    without_workers = {name: value for name, value in engine.items() if name != "workers"}
    return {**without_workers, "_target_": "rlvr.rollout.vllm.VllmEngine"}


def record_stages(run_dir: Path, ids: Sequence[str]) -> None:
    """Record with a run which stages it starts from."""
    if recorded_stages(run_dir) != list(ids):
        write_json(layout.stages_used(run_dir), {"stages": list(ids)})


def recorded_stages(run_dir: Path) -> list[str] | None:
    """Ids of the stages that a run starts from; None if they are not recorded yet, or the file is damaged."""
    ids = (read_json(layout.stages_used(run_dir)) or {}).get("stages")
    return [str(stage_id) for stage_id in cast("list[object]", ids)] if isinstance(ids, list) else None


def base_policy(run_dir: Path, model_path: str) -> Path | None:
    """The directory of the policy that a run started from: a stage, or that of its `model.path` ("" if it has none).

    None if it is neither: a model of the hub, or not on this machine.
    """
    directories = [layout.stages_beside(run_dir) / stage for stage in recorded_stages(run_dir) or []]
    directories += [Path(model_path).expanduser()] if model_path else []
    return next((directory for directory in directories if (directory / "config.json").is_file()), None)


def _public_attributes(task: TaughtTask) -> dict[str, Any]:
    """The attributes of a task that are numbers, texts or lists of them, but for those with an underscore in front."""
    return {name: value for name, value in vars(task).items() if not name.startswith("_") and _is_plain(value)}


def _is_plain(value: object) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, cast("Sequence[object]", value)))
    return value is None or isinstance(value, str | int | float | bool)


def _wait_for(path: Path, what: str) -> int:
    """File descriptor of the lock, once it is free. what: the stage, for the message while waiting."""
    while (held := lock(path, patience_s=SAY_WAITING_EVERY_S if path.exists() else 0.5)) is None:
        log.info("waiting for another process to build the %s", what)
    return held


def _build(final: Path, identity: Mapping[str, Any], build: Callable[[Path], Mapping[str, Any]]) -> None:
    log.info("building the %s stage %s", identity["source"], final.name)
    began = time.monotonic()
    with contextlib.suppress(FileExistsError), write_atomically(final, new=True) as aside:  # another host was faster
        aside.mkdir()
        built = build(aside)
        seconds = round(time.monotonic() - began, 3)
        info = {"stage_id": final.name, "identity": identity, "seconds": seconds, **built}
        write_json(layout.stage_info(aside), info)
        digests.write_digests(aside)
        log.info("built the %s stage %s in %.1f s", identity["source"], final.name, seconds)
