"""The top level of a run's configuration, typed. A component's own schema is the signature of its `_target_`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from hydra import version
from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, DictConfig, OmegaConf

from rlvr.ledger.layout import home

PACKAGE = Path(__file__).parents[1]
CONF = next(p for p in (PACKAGE / "conf", PACKAGE.parent / "conf") if p.is_dir())  # of a wheel, of a checkout


@dataclass
class RolloutConfig:
    prompts: int = MISSING
    samples: int = MISSING
    temperature: float = MISSING
    top_p: float = MISSING
    max_tokens: int | None = None
    dynamic_sampling: str = MISSING
    max_rounds: int = MISSING
    overdraw: float | None = None
    filter: str = MISSING
    overlong_buffer: float | None = None
    overlong_penalty: float = MISSING
    overlong_filter: bool = MISSING
    logp_old: str = MISSING
    importance: str = MISSING
    importance_cap: float = MISSING
    importance_level: str | None = None
    max_mismatch: float | None = None
    ahead: int = MISSING
    engine: Any = MISSING


@dataclass
class EvaluationConfig:
    every: int = MISSING
    samples: int = MISSING
    k: list[int] = field(default_factory=list[int])
    temperature: float = MISSING
    top_p: float = MISSING
    problems: int | None = None
    validation: int | None = None


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
    hung_min: float | None = None
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    time_min: int = MISSING
    gpus: int = MISSING
    gpu: str | None = None
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
    minutes: float | None = None
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
    policy: Any = None
    also: list[str] = field(default_factory=list[str])
    zip: list[str] = field(default_factory=list[str])
    exclude: list[str] = field(default_factory=list[str])
    when: list[str] = field(default_factory=list[str])
    baseline: str | None = None
    claims: list[Any] = field(default_factory=list[Any])


def register() -> None:
    """Make the schema and the resolvers known to Hydra and OmegaConf. Harmless when repeated."""
    version.setbase("1.3")
    ConfigStore.instance().store(name="schema", node=RunConfig)
    OmegaConf.register_new_resolver("default", _default, replace=True)
    OmegaConf.register_new_resolver("rlvr_home", lambda: str(home()), replace=True)


def _default(value: object, other: object) -> object:
    return other if value is None else value


def as_dict(node: DictConfig, *, resolve: bool = False, throw_on_missing: bool = False) -> dict[str, Any]:
    """The dictionaries, lists and values that a node stands for."""
    content = OmegaConf.to_container(node, resolve=resolve, throw_on_missing=throw_on_missing)
    return {str(key): value for key, value in cast("dict[object, Any]", content).items()}
