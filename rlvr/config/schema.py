"""The top level of a run's configuration: its schema, every cross-field check, and its identity. No torch.

A component's own schema is the signature of its `_target_` (rlvr/config/signature.py).
"""

from __future__ import annotations

import functools
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue

from rlvr.config import check_objective as fit
from rlvr.config import memory
from rlvr.config.signature import bind, components
from rlvr.ledger.files import home
from rlvr.ledger.identity import NOT_IDENTITY, run_id

PACKAGE = Path(__file__).parents[1]
CONF = next(p for p in (PACKAGE.parent / "conf", PACKAGE / "conf") if p.is_dir())
LONG_NAME = 60  # characters


@dataclass
class RolloutConfig:
    prompts: int = MISSING
    samples: int = MISSING
    temperature: float = MISSING
    top_p: float = MISSING
    max_tokens: int | None = None
    dynamic_sampling: str = MISSING
    max_rounds: int = MISSING
    filter: str = MISSING
    overlong_buffer: float | None = None
    overlong_penalty: float = 1.0
    overlong_filter: bool = False
    logp_old: str = "engine"
    importance: str = "none"
    importance_cap: float = 2.0
    max_mismatch: float | None = None
    ahead: int = 0
    engine: Any = MISSING


@dataclass
class EvaluationConfig:
    every: int = MISSING
    samples: int = MISSING
    k: list[int] = field(default_factory=list[int])
    temperature: float = MISSING
    top_p: float = MISSING
    problems: int | None = None


@dataclass
class TrackerConfig:
    enabled: bool = True
    uri: str | None = None


@dataclass
class ClusterConfig:
    backend: str = MISSING
    workers: int | None = None
    threads: int = 1
    ranks: int = 1
    nodes: int = 1
    pack: int = 1
    retries: int = 1
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    time_min: int = MISSING
    gpus: int = MISSING
    gpu_memory_gb: float | None = None
    cpus: int | None = None
    memory_gb: float = MISSING
    max_parallel: int | None = None
    requeues: int = MISSING
    report: bool = MISSING
    setup: list[str] = field(default_factory=list[str])
    environment: dict[str, str] = field(default_factory=dict[str, str])
    container: str | None = None
    scratch: str | None = None
    sbatch: dict[str, Any] = field(default_factory=dict[str, Any])
    wait: bool = False


@dataclass
class CheckpointConfig:
    every: int = MISSING
    keep: int = MISSING
    keep_best: bool = False
    background: bool = False


@dataclass
class RunConfig:
    """One run. Components (`Any`) are described by the signature of their `_target_`."""

    eta: float | None = None
    beta: float | None = None
    seed: int = MISSING
    steps: int = MISSING
    lr: float = MISSING
    min_entropy: float | None = None
    max_kl: float | None = None
    loss: Any = MISSING
    divergence: Any = None
    advantage: Any = MISSING
    presample: Any = None
    task: Any = MISSING
    model: Any = MISSING
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    trainer: Any = MISSING
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    tracker: TrackerConfig = field(default_factory=TrackerConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    keep_rollouts: int = 0
    also: list[str] = field(default_factory=list[str])
    zip: list[str] = field(default_factory=list[str])
    exclude: list[str] = field(default_factory=list[str])
    when: list[str] = field(default_factory=list[str])


def register() -> None:
    """Make the schema and the resolvers known to Hydra and OmegaConf. Harmless when repeated."""
    ConfigStore.instance().store(name="schema", node=RunConfig)
    OmegaConf.register_new_resolver("default", lambda value, other: other if value is None else value, replace=True)
    OmegaConf.register_new_resolver("rlvr_home", lambda: str(home()), replace=True)


def options(group: str) -> list[str]:
    return sorted(p.stem for p in (CONF / group).glob("*.yaml"))


@functools.cache  # every point of a sweep asks again
def losses_mentioning(text: str) -> list[str]:
    return sorted(p.stem for p in (CONF / "loss").glob("*.yaml") if text in p.read_text())


# --- checks across fields ---


def check(config: DictConfig, choices: Mapping[str, str | None], plain: Mapping[str, Any] | None = None) -> None:
    """Everything about a composed config that can be known before launch. Raises ValueError with one clear line.

    plain: the config resolved, from a caller that checks many: parts that were bound before are not bound again.
    """
    for section in config:
        seen = f"{section}={plain[str(section)]!r}" if plain else ""
        if seen in _bound:
            continue
        for path, node in components(config, str(section)):
            bind(path, node)
        _bound.update({seen} - {""})
    _check_shorthands(config, choices)
    _check_ranges(config)
    _check_shapes(config, choices)
    fit.check(config, choices, losses_mentioning("advantage@_global_.advantage: none"))
    if config.cluster.gpu_memory_gb is not None:
        memory.check(plain or frozen(config, choices))


_bound = set[str]()  # parts of configs that fit their signatures


def _check_shorthands(config: DictConfig, choices: Mapping[str, str | None]) -> None:
    raw = json.dumps(OmegaConf.to_container(config.loss, resolve=False))
    for name in ("eta", "beta"):
        if config[name] is not None and f"${{{name}}}" not in raw:
            readers = losses_mentioning(f"${{{name}}}")
            advice = f"Drop {name} or pass loss={readers[0]}." if readers else f"Drop {name}."
            raise ValueError(
                f"{name}={config[name]} has no effect with loss={choices.get('loss')}. "
                f"Losses that read {name}: {', '.join(readers) or 'none'}. {advice}"
            )


def _check_ranges(config: DictConfig) -> None:
    positive = (
        "eta",
        "beta",
        "lr",
        "steps",
        "min_entropy",
        "rollout.prompts",
        "rollout.samples",
        "rollout.temperature",
        "rollout.max_tokens",
        "rollout.max_rounds",
        "rollout.max_mismatch",
        "rollout.overlong_buffer",
        "rollout.overlong_penalty",
        "evaluation.every",
        "evaluation.samples",
        "evaluation.problems",
        "cluster.workers",
        "cluster.threads",
        "cluster.ranks",
        "cluster.nodes",
        "cluster.pack",
        "cluster.time_min",
        "cluster.cpus",
        "cluster.memory_gb",
        "cluster.max_parallel",
        "cluster.gpu_memory_gb",
        "checkpoint.every",
        "checkpoint.keep",
        "trainer.updates",
        "trainer.epochs",
        "trainer.token_budget",
    )
    for key in positive:
        value = OmegaConf.select(config, key)
        if value is not None and not value > 0:
            raise ValueError(f"{key}={value} must be greater than 0.")
    for key in ("seed", "keep_rollouts"):
        if config[key] < 0:
            raise ValueError(f"{key}={config[key]} must be 0 or more.")
    for key in ("rollout.top_p", "evaluation.top_p"):
        if not 0 < OmegaConf.select(config, key) <= 1:
            raise ValueError(f"{key}={OmegaConf.select(config, key)} must be in (0, 1].")
    if config.max_kl is not None and not (config.max_kl > 0 and config.trainer.base_kl):
        raise ValueError(f"max_kl={config.max_kl} must be greater than 0 and needs trainer.base_kl=true.")
    if config.rollout.dynamic_sampling not in ("none", "drop", "refill"):
        raise ValueError(f"rollout.dynamic_sampling={config.rollout.dynamic_sampling} must be none, drop or refill.")
    if config.rollout.filter not in ("none", "greedy_fails"):
        raise ValueError(f"rollout.filter={config.rollout.filter} must be none or greedy_fails.")


def _check_shapes(config: DictConfig, choices: Mapping[str, str | None]) -> None:
    P, G, U = config.rollout.prompts, config.rollout.samples, config.trainer.updates
    if P < U:
        raise ValueError(
            f"trainer.updates={U} mini-batches cannot be made of rollout.prompts={P} groups: a group never splits. "
            f"Pass trainer.updates={P} or less."
        )
    if P % U:
        fits = [u for u in range(1, P + 1) if P % u == 0]
        raise ValueError(
            f"rollout.prompts={P} groups do not divide into trainer.updates={U} equal mini-batches. "
            f"Divisors of {P}: {', '.join(map(str, fits))}."
        )
    if config.cluster.ranks > P // U:
        raise ValueError(
            f"cluster.ranks={config.cluster.ranks} processes share mini-batches of only {P // U} groups "
            f"(rollout.prompts={P} / trainer.updates={U}). Pass fewer ranks or updates, or more prompts."
        )
    if G < 2 and choices.get("advantage") not in (None, "reinforce", "maxrl_conditional", "none", "gae"):
        raise ValueError(
            f"rollout.samples={G} makes advantage={choices['advantage']} zero for every response: it compares the "
            "responses of a group. Pass rollout.samples=2 or more."
        )
    if not config.evaluation.k or min(config.evaluation.k) < 1:
        raise ValueError(f"evaluation.k={list(config.evaluation.k)} must list at least one k, each 1 or more.")
    if max(config.evaluation.k) > config.evaluation.samples:
        raise ValueError(
            f"evaluation.k={max(config.evaluation.k)} is larger than evaluation.samples={config.evaluation.samples}: "
            f"pass@k needs k samples. Pass evaluation.samples={max(config.evaluation.k)} or a smaller k."
        )


# --- identity ---


def frozen(config: DictConfig, choices: Mapping[str, str | None]) -> dict[str, Any]:
    """The resolved config as plain data, with the chosen option of every group: what a job reads, and nothing else.

    ValueError names a key without a value.
    """
    try:
        plain = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except MissingMandatoryValue as error:
        raise ValueError(f"{error.full_key} has no value: pass {error.full_key}=...") from None
    assert isinstance(plain, dict)
    for data in ("train", "test", "databases"):
        if data in plain["task"]:
            plain["task"][data] = _absolute(plain["task"][data])
    if "/" in ((engine := plain["rollout"]["engine"]).get("python") or ""):  # a link stays one: an environment's
        engine["python"] = str(Path(engine["python"]).absolute())
    chosen = {k: v for k, v in sorted(choices.items()) if v is not None and not k.startswith("hydra/")}
    return {**{str(k): v for k, v in plain.items()}, "choices": chosen}


def _absolute(data: object) -> object:
    """Paths of data as seen from anywhere; hub names as they are."""
    if isinstance(data, dict):
        return {k: _absolute(v) for k, v in data.items()}
    if isinstance(data, list):
        return [_absolute(v) for v in data]
    return str(Path(data).resolve()) if isinstance(data, str) and Path(data).exists() else data


def group_id(config: DictConfig) -> str:
    """The identity without the seed: runs that differ by their seed alone are repetitions of one group."""
    seed = config.seed
    try:
        config.seed = 0
        return run_id(frozen(config, {}))
    finally:
        config.seed = seed


def run_name(plain: Mapping[str, Any], overrides: Sequence[str], swept: Collection[str]) -> str:
    """A readable name such as `lad-js-eta0.5-s0`: a label, not an identity. What is not swept is left out if long."""
    choices, loss = plain["choices"], plain["loss"]
    head = [choices["loss"], *([choices["divergence"]] if choices.get("divergence") else [])]
    head += [f"{k}{loss[k]:g}" for k in ("eta", "beta") if isinstance(loss.get(k), float | int)]
    told = {"loss", "divergence", "eta", "beta", "seed", "study"}
    parts = {
        key: value if key in choices else f"{key.rsplit('.', 1)[-1]}{value.rsplit('/', 1)[-1]}"
        for key, value in (o.lstrip("+").split("=", 1) for o in overrides if "=" in o)
        if key not in told and not key.startswith(("hydra", *NOT_IDENTITY))
    }
    for kept in (parts, {k: v for k, v in parts.items() if k in swept}):
        name = "-".join([*head, *kept.values(), f"s{plain['seed']}"])
        if len(name) <= LONG_NAME:
            break
    return name
