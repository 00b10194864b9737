"""The config of an evaluation: what a run trained with, where nothing else is typed, less what only training reads.

An evaluation is a run whose config names a policy. It stands on the ledger, in sweeps and on SLURM as any other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from rlvr.config import engine
from rlvr.config.compose import Composed
from rlvr.config.overrides import key_of
from rlvr.config.registry import SHORTHANDS
from rlvr.config.schema import as_dict
from rlvr.ledger.identity import LINES, NAMING

# Groups that only training reads: an evaluation has none of them.
TRAINING = ("loss", "divergence", "advantage", "presample", "trainer", "model")
KNOBS = ("samples", "k", "temperature", "top_p", "problems")  # of `evaluation`, all but when it is done
# Overrides that an evaluation reads; all others are refused.
READ = (
    *("task", "rollout.engine", "rollout.max_tokens", "cluster", "tracker", "seed", "hydra", *LINES, *NAMING),
    *(f"evaluation.{knob}" for knob in KNOBS),
    *("policy.chat", "policy.system"),
)


def check_words(words: Sequence[str]) -> None:
    """ValueError for an override that no evaluation reads."""
    for key in map(key_of, words):
        if key != "rollout" and not any(key == read or key.startswith(f"{read}.") for read in READ):
            raise ValueError(
                f"{key} has no effect on an evaluation, which reads rollout, {', '.join(READ)} alone. Drop it."
            )


def evaluated(
    composed: Composed, policy: Mapping[str, Any], trained: Mapping[str, Any] | None, typed: Sequence[str]
) -> Composed:
    """A composed point, with a policy in the place of all that only training reads.

    policy: the knobs of conf/policy/evaluated.yaml, with the name that stands in tables. trained: the frozen config of
    the run that it comes from; None: a directory. typed: overrides of the user, which hold against those of that run.
    """
    overrides, config, choices = composed
    keys = {key_of(word): word.partition("=")[2] for word in typed}
    with open_dict(config):
        config.policy = OmegaConf.merge(config.policy, dict(policy))
        if trained is not None:
            choices = {**choices, **_as_trained(config, trained, keys)}
            model: Mapping[str, Any] = trained["model"]
            config.policy.chat = _either(config.policy.chat, model.get("chat", False))
            config.policy.system = _either(config.policy.system, model.get("system"))
            config.seed = trained["seed"]
        config.policy.chat = bool(config.policy.chat)
        _check_engine(config, choices, trained)
        config.steps = 1
        config.rollout.engine = OmegaConf.create(as_dict(config.rollout, resolve=True)["engine"])
        if "reader" in config.task:
            path = policy["path"] if trained is None else trained["model"].get("path")
            said = {"chat": config.policy.chat, "system": config.policy.system}
            config.task.reader = {"path": path, **said, "max_tokens": config.rollout.max_tokens}
        for group in TRAINING:
            config[group] = None
        config.evaluation.validation = None
        for name in SHORTHANDS:
            config[name] = None
        _settle(config, keys)
    kept = {k: v for k, v in choices.items() if k.partition("@")[0] not in (*TRAINING, "paper", "policy")}
    seed = [] if trained is None else [f"seed={config.seed}"]
    return [f"policy={policy['name']}", *(o for o in overrides if key_of(o) != "policy"), *seed], config, kept


def _as_trained(config: DictConfig, trained: Mapping[str, Any], keys: Mapping[str, str]) -> dict[str, Any]:
    """Give the config the run's own task, engine, length and evaluation, but for what was typed; the options of it."""
    options: dict[str, Any] = {}
    if "task" not in keys:
        config.task = _with_typed(trained["task"], config, "task", keys)
        options["task"] = trained["choices"]["task"]
        if "rollout.max_tokens" not in keys:  # the length of another task is its own
            config.rollout.max_tokens = trained["rollout"]["max_tokens"]
    if "rollout" not in keys:
        config.rollout.engine = _with_typed(trained["rollout"]["engine"], config, "rollout.engine", keys)
        options["rollout"] = trained["choices"]["rollout"]
    for knob in KNOBS:
        if f"evaluation.{knob}" not in keys:
            config.evaluation[knob] = trained["evaluation"][knob]
    return options


def _with_typed(node: Mapping[str, Any], config: DictConfig, where: str, keys: Mapping[str, str]) -> DictConfig:
    """A node of a run with what was typed in it, as it was composed."""
    merged = OmegaConf.create(dict(node))
    for key in (key for key in keys if key.startswith(f"{where}.")):
        OmegaConf.update(merged, key.removeprefix(f"{where}."), OmegaConf.select(config, key), force_add=True)
    return merged


def _either(typed: Any, otherwise: Any) -> Any:
    return otherwise if typed is None else typed


def _check_engine(config: DictConfig, choices: Mapping[str, Any], trained: Mapping[str, Any] | None) -> None:
    """As for training: the run's own base policy says whether vLLM can load it. A directory is one that it can."""
    model = config.model if trained is None else OmegaConf.create(dict(trained["model"]))
    option = "hf" if trained is None else trained["choices"].get("model")
    if trained is None:
        model = OmegaConf.create({"_target_": "rlvr.model.hub.hub"})
    asked = OmegaConf.create({"rollout": as_dict(config.rollout, resolve=False), "cluster": config.cluster})
    asked.model = model
    engine.check_engine(asked, {**choices, "model": option})


def _settle(config: DictConfig, keys: Mapping[str, str]) -> None:
    """One sample where the most likely answer is asked for; pass@k at all powers of two, where no k was typed."""
    wanted = config.evaluation
    if wanted.temperature < 0:
        raise ValueError(f"evaluation.temperature={wanted.temperature} must be 0 (greedy) or more.")
    if wanted.temperature == 0:
        if "evaluation.samples" in keys and wanted.samples > 1:
            raise ValueError(
                f"evaluation.temperature=0 gives one answer, and evaluation.samples={wanted.samples} would be "
                "copies of it. Drop evaluation.samples."
            )
        if "evaluation.k" in keys and wanted.k not in ([1], 1):
            raise ValueError(
                f"evaluation.temperature=0 gives one answer, and evaluation.k={wanted.k} needs more. Drop evaluation.k."
            )
        wanted.samples = 1
    if "evaluation.k" not in keys or wanted.temperature == 0:
        wanted.k = [2**i for i in range(wanted.samples.bit_length())]
        wanted.k = list(dict.fromkeys([*wanted.k, wanted.samples]))
    if config.policy.system is not None and not config.policy.chat:
        raise ValueError("policy.system is a turn of the chat template. Add policy.chat=true, or drop policy.system.")
