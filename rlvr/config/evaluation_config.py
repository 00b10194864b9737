"""The config of an evaluation: that of the evaluated run, changed by typed overrides, without what only training reads.

An evaluation is a run whose config names a policy. The ledger, sweeps and SLURM treat it as any other run.
"""

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from rlvr.config import engine, values
from rlvr.config.compose import Composed
from rlvr.config.overrides import key_of
from rlvr.config.registry import SHORTHANDS
from rlvr.config.schema import HUB, as_dict
from rlvr.config.signature import signature
from rlvr.ledger.identity import GRID_KEYS, NAMING

# Groups that only training reads: an evaluation has none of them.
TRAINING = ("loss", "divergence", "advantage", "presample", "trainer", "model")
KNOBS = ("samples", "k", "temperature", "top_p", "problems")  # of `evaluation`, without its schedule during training
# Overrides that an evaluation reads; all others are errors.
READ = (
    *("task", "rollout.engine", "rollout.max_tokens", "cluster", "tracker", "seed", "hydra", *GRID_KEYS, *NAMING),
    *(f"evaluation.{knob}" for knob in KNOBS),
    *("policy.chat", "policy.system"),
)


def check_words(words: Sequence[str]) -> None:
    """Raises ValueError for an override that no evaluation reads."""
    for key in map(key_of, words):
        if key != "rollout" and not any(key == read or key.startswith(f"{read}.") for read in READ):
            close = difflib.get_close_matches(key, READ, n=1, cutoff=0.85)
            advice = f"Did you mean {close[0]}?" if close else "Drop it."
            raise ValueError(
                f"{key} has no effect on an evaluation, which reads only rollout, {', '.join(READ)}. {advice}"
            )


def evaluation_point(
    composed: Composed, policy: Mapping[str, Any], trained: Mapping[str, Any] | None, typed: Sequence[str]
) -> Composed:
    """A composed point in which a policy replaces all that only training reads.

    policy: the knobs of conf/policy/evaluated.yaml; tables show its `name`. trained: the frozen config of the run that
    the policy comes from; None: a model from elsewhere. typed: the user's overrides, which take precedence over that
    run's config.
    """
    overrides, config, choices = composed
    typed_values = {key_of(word): word.partition("=")[2] for word in typed}
    with open_dict(config):
        config.policy = OmegaConf.merge(config.policy, dict(policy))
        if trained is not None:
            choices = {**choices, **_set_as_trained(config, trained, typed_values)}
            model: Mapping[str, Any] = trained["model"]
            if config.policy.chat is None:
                config.policy.chat = model.get("chat", False)
            if config.policy.system is None:
                config.policy.system = model.get("system")
            config.seed = trained["seed"]
        values.check("policy.chat", config.policy.chat, bool | None)
        values.check("policy.system", config.policy.system, str | None)
        config.policy.chat = bool(config.policy.chat)
        _check_engine(config, choices, trained)
        config.steps = 1
        config.rollout.engine = OmegaConf.create(as_dict(config.rollout, resolve=True)["engine"])
        if "task.train" not in typed_values and _may_lack_training_data(config.task):
            config.task.train = None
        if "reader" in config.task:
            config.task.reader = {
                "path": policy["path"] if trained is None else trained["model"].get("path"),
                "chat": config.policy.chat,
                "system": config.policy.system,
                "max_tokens": config.rollout.max_tokens,
            }
        for group in TRAINING:
            config[group] = None
        config.evaluation.validation = None
        for name in SHORTHANDS:
            config[name] = None
        _set_samples_and_k(config, typed_values)
        if config.policy.system is not None and not config.policy.chat:
            raise ValueError(
                "policy.system is a turn of the chat template. Add policy.chat=true, or drop policy.system."
            )
    remaining = {k: v for k, v in choices.items() if k.partition("@")[0] not in (*TRAINING, "paper", "policy")}
    seed = [] if trained is None else [f"seed={config.seed}"]
    words = [f"policy={policy['name']}", *(word for word in overrides if key_of(word) != "policy"), *seed]
    return words, config, remaining


def _may_lack_training_data(task: DictConfig) -> bool:
    """Whether an evaluation can build the task without its training data, which may be gone."""
    parameters = signature(task["_target_"]).parameters
    return any(p.name == "train" and "None" in p.annotation for p in parameters)


def _set_as_trained(config: DictConfig, trained: Mapping[str, Any], typed: Mapping[str, str]) -> dict[str, Any]:
    """Sets the run's own task, engine, length and evaluation where nothing is typed; returns their options by group."""
    options: dict[str, Any] = {}
    if "task" not in typed:
        config.task = _with_typed(trained["task"], config, "task", typed)
        options["task"] = trained["choices"]["task"]
        if "rollout.max_tokens" not in typed:  # with another task, the run's length of responses does not apply
            config.rollout.max_tokens = trained["rollout"]["max_tokens"]
    if "rollout" not in typed:
        config.rollout.engine = _with_typed(trained["rollout"]["engine"], config, "rollout.engine", typed)
        options["rollout"] = trained["choices"]["rollout"]
    for knob in KNOBS:
        if f"evaluation.{knob}" not in typed:
            config.evaluation[knob] = trained["evaluation"][knob]
    return options


def _with_typed(node: Mapping[str, Any], config: DictConfig, section: str, typed: Mapping[str, str]) -> DictConfig:
    """A section of the run's config, with the composed values of the knobs that were typed in it."""
    merged = OmegaConf.create(dict(node))
    for key in (key for key in typed if key.startswith(f"{section}.")):
        OmegaConf.update(merged, key.removeprefix(f"{section}."), OmegaConf.select(config, key), force_add=True)
    return merged


def _check_engine(config: DictConfig, choices: Mapping[str, Any], trained: Mapping[str, Any] | None) -> None:
    """`engine.check_engine` with the model of the run; a model from elsewhere is in Hugging Face format."""
    model = {"_target_": HUB} if trained is None else dict(trained["model"])
    option = "hf" if trained is None else trained["choices"].get("model")
    sections = OmegaConf.create({"rollout": as_dict(config.rollout, resolve=False), "cluster": config.cluster})
    sections.model = OmegaConf.create(model)
    engine.check_engine(sections, {**choices, "model": option})


def _set_samples_and_k(config: DictConfig, typed: Mapping[str, str]) -> None:
    """One sample if greedy (temperature 0); pass@k at all powers of two, and at the number of samples, unless typed."""
    evaluation = config.evaluation
    if evaluation.temperature == 0 and "evaluation.samples" not in typed:
        evaluation.samples = 1
    if "evaluation.k" not in typed:
        powers = [2**i for i in range(evaluation.samples.bit_length())]
        evaluation.k = list(dict.fromkeys([*powers, evaluation.samples]))
