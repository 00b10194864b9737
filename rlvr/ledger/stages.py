"""A cached stage: something slow that is built once, by one process, and found complete or not at all."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from rlvr.ledger import digests, layout
from rlvr.ledger.files import SUFFIX, read_json, remove, whole, write_json
from rlvr.ledger.identity import of_engine, of_task
from rlvr.ledger.lock import lock, unlock

if TYPE_CHECKING:  # numpy would slow `python -m sweeps` down
    from rlvr.records import Problem, Task, TaughtTask

log = logging.getLogger(__name__)

SAY_WAITING_EVERY_S = 15.0
SAMPLED_DEMONSTRATIONS = 64
AT_ONCE = 256  # problems that an engine pre-samples together
ENDLESS = 512  # problems to pre-sample of a train split that never ends, where no number is given

# Raise one when what it names changes: old stages are then built anew.
TABLE_VERSION, PRETRAIN_VERSION, PRESAMPLE_VERSION, POLICY_VERSION = 1, 1, 1, 1


def stage(store: Path, identity: Mapping[str, Any], build: Callable[[Path], Mapping[str, Any]]) -> Path:
    """Directory `store`/<stage id>, built first if it does not exist. The id is a hash of `identity` (JSON).

    `build` fills an empty directory and returns what to remember; stage.json keeps that, the identity and the seconds.
    One process builds while others wait for its lock, which dies with it: a directory of this name is always complete.
    """
    name = stage_id(identity)
    final = store / name
    if final.exists() and not digests.fault_of(final):
        return final
    store.mkdir(parents=True, exist_ok=True)
    held = _wait_for(layout.stage_lock(store, name), f"{identity['source']} stage {name}")
    try:
        if final.exists() and (fault := digests.fault_of(final)):
            log.error("stage %s is damaged: %s. It is kept as %s", name, fault, digests.set_aside(final))
        if not final.exists():
            for left_over in store.glob(f".{name}.*{SUFFIX}"):  # of builders that died: we hold the lock
                remove(left_over)
            _build(final, identity, build)
    finally:
        unlock(held)
    return final


def stage_id(identity: Mapping[str, Any]) -> str:
    """16 hexadecimal digits of the SHA-256 of the identity as canonical JSON."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]


def task_identity(task: TaughtTask) -> dict[str, Any]:
    """What a stage depends on in a task: its class, vocabulary and public knobs, and its first demonstrations.

    The knobs are the task's own `identity` if it has one, else its public plain attributes. The demonstrations stand
    for the code that makes them: when it changes, so does the stage.
    """
    from rlvr.records import IdentifiedTask

    shown = json.dumps([task.demonstration(index) for index in range(SAMPLED_DEMONSTRATIONS)])
    plain = {name: value for name, value in vars(task).items() if not name.startswith("_") and _is_plain(value)}
    return {
        "class": f"{type(task).__module__}.{type(task).__qualname__}",
        "knobs": task.identity if isinstance(task, IdentifiedTask) else plain,
        "vocabulary": list(task.vocabulary),
        "end_word": task.end_word,
        "demonstrations": hashlib.sha256(shown.encode()).hexdigest(),
    }


# --- what each stage depends on


def table_identity(task: TaughtTask) -> dict[str, Any]:
    """The tabular policy (rlvr/model/table.py)."""
    return {"source": "table", "version": TABLE_VERSION, "task": task_identity(task)}


def pretrain_identity(task: TaughtTask, **knobs: Any) -> dict[str, Any]:
    """A pre-trained base policy (rlvr/model/pretrain.py)."""
    return {"source": "pretrain", "version": PRETRAIN_VERSION, "task": task_identity(task), **knobs}


def presample_identity(
    problems: Sequence[Problem], base: object, settings: Mapping[str, Any], max_tokens: int, knobs: Mapping[str, Any]
) -> dict[str, Any]:
    """Of the base policy's own answers (rlvr/rollout/presample.py). `base`: as `base_identity` names it."""
    said = json.dumps([[p.id, p.prompt, p.answer] for p in problems], default=str)
    decisive = {name: knobs[name] for name in ("samples", "temperature", "top_p", "seed")}
    return {
        "source": "presample",
        "version": PRESAMPLE_VERSION,
        "base": base,
        "settings": dict(settings),
        "problems": hashlib.sha256(said.encode()).hexdigest(),
        "max_tokens": max_tokens,
        **decisive,
    }


def base_identity(base: Path, store: Path) -> object:
    """What names a base policy: a stage's own name, or a directory with the sizes and times of its files."""
    if base.parent.resolve() == store.resolve():
        return base.name
    files = sorted(f for pattern in ("*.json", "*.safetensors") for f in base.glob(pattern))
    return [str(base.resolve()), [[f.name, f.stat().st_size, f.stat().st_mtime_ns] for f in files]]


def presampled_problems(task: Task, wanted: int | None) -> list[Problem]:
    """The first `wanted` problems of the train split; None: all, or ENDLESS of one that never ends."""
    size = task.size("train")
    wanted = ENDLESS if size is None and wanted is None else wanted
    return [task.problem("train", index) for index in range(min(n for n in (size, wanted) if n is not None))]


def policy_identity(digest: str, dtype: str) -> dict[str, Any]:
    """Of a checkpoint as a model in Hugging Face format (rlvr/job/policy.py)."""
    return {"source": "policy", "version": POLICY_VERSION, "digest": digest, "dtype": dtype}


# --- the stages of a run


@dataclass(frozen=True)
class Stage:
    """Something that a run starts from, by what it depends on."""

    identity: Mapping[str, Any]

    @property
    def id(self) -> str:
        return stage_id(self.identity)

    @property
    def source(self) -> str:
        return str(self.identity["source"])

    @property
    def shared(self) -> bool:
        """Built by all ranks of a node together."""
        return self.source == "presample"

    @property
    def quick(self) -> bool:
        """Made in seconds: not worth a job of its own."""
        return self.source == "table"


def stages(config: Mapping[str, Any], task: Any, store: Path) -> list[Stage]:
    """The stages that a run needs, each after those that it is built on. No torch: known before anything runs.

    config: the frozen one. A base policy from elsewhere (a hub name, a function of one's own) is no stage, and what is
    pre-sampled with one that is not on disk cannot be named yet: then the list is shorter, and the run builds it.
    """
    found: list[Stage] = []
    if config.get("policy"):
        return found  # an evaluation makes its own, of a checkpoint that has to stand
    base: object = None
    model = {k: v for k, v in config["model"].items() if k != "_target_"}
    source = _SOURCES.get(config["model"]["_target_"])
    if source is not None:
        found.append(Stage(source(task, **model)))
        base = found[0].id
    elif Path(str(model.get("path", ""))).expanduser().is_dir():
        base = base_identity(Path(model["path"]).expanduser(), store)
    if config.get("presample") is None or base is None:
        return found
    rollout = config["rollout"]
    settings = presample_settings(config)
    problems = presampled_problems(task, config["presample"]["problems"])
    limit = rollout["max_tokens"] or task.max_tokens
    return [*found, Stage(presample_identity(problems, base, settings, limit, config["presample"]))]


_SOURCES: Mapping[str, Callable[..., dict[str, Any]]] = {
    "rlvr.model.table.table": table_identity,
    "rlvr.model.pretrain.pretrain": pretrain_identity,
}


def presample_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """What decides a base policy's answers beside the policy and the sampling."""
    rollout, model = config["rollout"], config["model"]
    chat = {"chat": model.get("chat", False)} | ({"system": model["system"]} if model.get("system") else {})
    return {"task": of_task(config["task"]), "engine": of_engine(presampling_engine(rollout["engine"])), **chat}


def presampling_engine(engine: Mapping[str, Any]) -> dict[str, Any]:
    """What samples before training: without Ray, vLLMs on the GPUs of ranks, which give the same samples."""
    if "workers" not in engine:
        return dict(engine)
    alone = {name: value for name, value in engine.items() if name != "workers"}
    return {**alone, "_target_": "rlvr.rollout.vllm.VllmEngine"}


def record_stages(run_dir: Path, ids: Sequence[str]) -> None:
    """Keep with a run which stages it starts from."""
    if recorded_stages(run_dir) != list(ids):
        write_json(layout.stages_used(run_dir), {"stages": list(ids)})


def recorded_stages(run_dir: Path) -> list[str] | None:
    """Ids of the stages that a run starts from; None where nobody has said so yet, or the file is damaged."""
    ids = (read_json(layout.stages_used(run_dir)) or {}).get("stages")
    return [str(each) for each in cast("list[object]", ids)] if isinstance(ids, list) else None


def _is_plain(value: object) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, cast("Sequence[object]", value)))
    return value is None or isinstance(value, str | int | float | bool)


def _wait_for(path: Path, what: str) -> int:
    while (held := lock(path, patience_s=SAY_WAITING_EVERY_S if path.exists() else 0.5)) is None:
        log.info("waiting for another process to build the %s", what)
    return held


def _build(final: Path, identity: Mapping[str, Any], build: Callable[[Path], Mapping[str, Any]]) -> None:
    log.info("building the %s stage %s", identity["source"], final.name)
    began = time.monotonic()
    with whole(final, new=True) as aside:
        aside.mkdir()
        remembered = build(aside)
        seconds = round(time.monotonic() - began, 3)
        about = {"stage_id": final.name, "identity": identity, "seconds": seconds, **remembered}
        write_json(layout.stage_info(aside), about)
        digests.seal(aside)
    log.info("built the %s stage %s in %.1f s", identity["source"], final.name, seconds)
