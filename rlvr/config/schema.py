"""The typed schema of a run's top-level config. The schema of a component is the signature of its `_target_`."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from annotated_types import Gt, Interval
from hydra import version
from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, DictConfig, OmegaConf, open_dict
from omegaconf.errors import ConfigAttributeError, ConfigKeyError
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from rlvr.ledger.layout import home

PACKAGE = Path(__file__).parents[1]
CONF = next(p for p in (PACKAGE / "conf", PACKAGE.parent / "conf") if p.is_dir())  # in a wheel, in a checkout

HUB = "rlvr.model.hub.hub"  # the `_target_` of model=hf
LR, FULL_LR = 2e-4, 1e-6  # learning rates where none is set; the second of all weights of a pretrained model

Share = Annotated[float, Interval(gt=0, le=1)]
Overdraw = Annotated[float, Interval(ge=1, le=8)]  # at most 8 times the groups of a step are drawn at once
Temperature = Annotated[float, Interval(ge=1e-3, le=1e3)]  # beyond, scaled logits overflow float32 or become equal
Gpu = Literal["rtx4090", "l40s", "a100", "h100", "h200", "b200"]  # `rlvr.config.cost` knows their speed
Cap = Annotated[float, Gt(1)]
Ahead = Annotated[int, Interval(ge=0, le=16)]  # steps by which responses may be old
GreedyOrTemperature = Annotated[float, Interval(ge=0, le=1e3)]  # 0: the most likely answer


@dataclass
class RolloutConfig:
    prompts: PositiveInt = MISSING
    samples: PositiveInt = MISSING
    temperature: Temperature = MISSING
    top_p: Share = MISSING
    truncation: Annotated[str, Literal["ignored"]] | None = None
    max_tokens: PositiveInt | None = None
    dynamic_sampling: Annotated[str, Literal["none", "drop", "refill"]] = MISSING
    max_rounds: PositiveInt = MISSING
    overdraw: Overdraw | None = None
    filter: Annotated[str, Literal["none", "greedy_fails"]] = MISSING
    reward: Annotated[str, Literal["random", "flipped", "majority"]] | None = None
    retire_at: Share | None = None
    overlong_buffer: PositiveFloat | None = None
    overlong_penalty: PositiveFloat = MISSING
    overlong_filter: bool = MISSING
    logp_old: Annotated[str, Literal["engine", "trainer"]] = MISSING
    importance: Annotated[str, Literal["none", "truncate", "mask", "clip"]] = MISSING
    importance_cap: Cap = MISSING
    importance_level: Annotated[str, Literal["token", "sequence", "geometric"]] | None = None
    max_mismatch: PositiveFloat | None = None
    ahead: Ahead = MISSING
    engine: Any = MISSING


@dataclass
class EvaluationConfig:
    every: PositiveInt = MISSING
    samples: PositiveInt = MISSING
    k: list[int] = field(default_factory=list[int])
    temperature: GreedyOrTemperature = MISSING
    top_p: Share = MISSING
    problems: PositiveInt | None = None
    validation: PositiveInt | None = None


@dataclass
class TrackerConfig:
    enabled: bool = True
    uri: str | None = None


@dataclass
class ClusterConfig:
    backend: str = MISSING
    workers: PositiveInt | None = None
    threads: PositiveInt = 1
    ranks: PositiveInt = 1
    nodes: PositiveInt = 1
    shard_over: Annotated[str, Literal["job", "node"]] = "job"
    sampling_nodes: NonNegativeInt = 0
    pack: PositiveInt = 1
    retries: NonNegativeInt = 1
    hung_min: PositiveFloat | None = None
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    time_min: PositiveInt = MISSING
    gpus: NonNegativeInt = MISSING
    gpu: Annotated[str, Gpu] | None = None
    gpu_memory_gb: PositiveFloat | None = None
    cpus: PositiveInt | None = None
    memory_gb: PositiveFloat = MISSING
    max_parallel: PositiveInt | None = None
    requeues: NonNegativeInt = MISSING
    report: bool = MISSING
    setup: list[str] = field(default_factory=list[str])
    environment: dict[str, str] = field(default_factory=dict[str, str])
    container: str | None = None
    scratch: str | None = None
    sbatch: dict[str, Any] = field(default_factory=dict[str, Any])
    wait: bool = False


@dataclass
class CheckpointConfig:
    every: PositiveInt = MISSING
    minutes: PositiveFloat | None = None
    keep: PositiveInt = MISSING
    keep_best: bool = False
    background: bool = False


@dataclass
class RunConfig:
    """One run. Components (`Any`) are described by the signature of their `_target_`."""

    eta: PositiveFloat | None = None
    beta: PositiveFloat | None = None
    clip_high: NonNegativeFloat | None = None
    seed: NonNegativeInt = MISSING
    steps: PositiveInt = MISSING
    lr: NonNegativeFloat = MISSING
    min_entropy: PositiveFloat | None = None
    max_kl: PositiveFloat | None = None
    program: Any = None
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
    keep_rollouts: NonNegativeInt = 0
    policy: Any = None
    also: list[str] = field(default_factory=list[str])
    zip: list[str] = field(default_factory=list[str])
    exclude: list[str] = field(default_factory=list[str])
    when: list[str] = field(default_factory=list[str])
    until: str | None = None
    budget: str | None = None
    tune: str | None = None
    controls: str | None = None
    name: str | None = None
    tags: str | None = None
    baseline: str | None = None
    claims: list[Any] = field(default_factory=list[Any])


def with_null_knobs(plain: Mapping[str, Any], schema: type[Any] = RunConfig) -> dict[str, Any]:
    """A frozen config with the knobs that it lacks and that are null by default: an earlier release froze it. Null
    values are no part of a run's identity, so a run that was launched before a knob existed can be continued.
    """
    filled: dict[str, Any] = {**{knob.name: None for knob in fields(schema) if knob.default is None}, **plain}
    for knob in fields(schema):
        if isinstance(knob.type, type) and is_dataclass(knob.type) and filled.get(knob.name):
            filled[knob.name] = with_null_knobs(filled[knob.name], knob.type)
    return filled


def register() -> None:
    """Register the schema with Hydra and the resolvers with OmegaConf. May be called repeatedly."""
    version.setbase("1.3")
    ConfigStore.instance().store(name="schema", node=RunConfig)
    OmegaConf.register_new_resolver("default", _default, replace=True)
    OmegaConf.register_new_resolver("whose_logp", _whose_logp, replace=True)
    OmegaConf.register_new_resolver("default_lr", _default_lr, replace=True)
    OmegaConf.register_new_resolver("rlvr_home", lambda: str(home()), replace=True)


def _default(value: object, other: object) -> object:
    return other if value is None else value


def _whose_logp(*, _root_: DictConfig) -> str:
    """Default of `rollout.logp_old`: "trainer" in half precision, else "engine".

    In half precision engine and trainer round differently, but a ratio must compare log-probabilities that are computed
    in the same way.
    """
    dtypes = {OmegaConf.select(_root_, f"{part}.dtype") for part in ("rollout.engine", "trainer")}
    return "trainer" if dtypes & {"bfloat16", "float16"} else "engine"


def components(node: object, path: str = "") -> dict[str, dict[str, Any]]:
    """{dotted path: section} of a config's sections that have a `_target_`, those above first. path: of `node`.

    Raises ValueError for one that is no text.
    """
    found: dict[str, dict[str, Any]] = {}
    if isinstance(node, dict):
        section = cast("dict[str, Any]", node)
        if target := section.get("_target_"):
            if not isinstance(target, str):
                raise ValueError(f"{path}._target_={target}: the import path of a function or class is expected.")
            found[path] = section
        for key, inner in section.items():
            found |= components(inner, f"{path}.{key}" if path else key)
    return found


def is_pretrained(model: Mapping[str, Any] | None) -> bool:
    """Whether a `model` is made elsewhere (model=hf), not for the task. None: of an evaluation, or a program."""
    return model is not None and model.get("_target_") == HUB


def _default_lr(*, _root_: DictConfig) -> float:
    """Default of `lr`: that of adapters and of the small models made here destroys all weights of a real one."""
    model, rank = _root_.get("model"), OmegaConf.select(_root_, "trainer.lora_rank")
    return FULL_LR if model and is_pretrained(model) and rank is None else LR


def as_dict(node: DictConfig, *, resolve: bool = False, throw_on_missing: bool = False) -> dict[str, Any]:
    """A node as plain dictionaries, lists and values."""
    content = OmegaConf.to_container(node, resolve=resolve, throw_on_missing=throw_on_missing)
    return {str(key): value for key, value in cast("dict[object, Any]", content).items()}


def without_hydra(composed: DictConfig) -> tuple[DictConfig, dict[str, Any]]:
    """(a config that Hydra composed, without its section `hydra`; the chosen option of each group)"""
    choices = as_dict(composed.hydra.runtime.choices)
    with open_dict(composed):
        del composed["hydra"]
    return composed, choices


class Section(dict[str, Any]):
    """A frozen config, or a section of it, whose knobs are attributes too: as a DictConfig, but much faster to read."""

    def __getitem__(self, name: str) -> Any:
        value = super().__getitem__(name)
        return Section(cast("dict[str, Any]", value)) if isinstance(value, dict) else value

    def __getattr__(self, name: str) -> Any:
        if name not in self:
            raise ConfigAttributeError(f"Key '{name}' is not in struct")
        return self[name]

    def __missing__(self, name: str) -> Any:
        raise ConfigKeyError(f"Key '{name}' is not in struct")

    def get(self, name: str, default: Any = None) -> Any:
        return self[name] if name in self else default  # noqa: SIM401 - this is `get`


Knobs = DictConfig | Section
Choices = Mapping[str, str | None]  # group -> chosen option
