"""Explains errors of Hydra and OmegaConf in one line: what came, what is allowed, what to type."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast, get_origin

import yaml
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationResolutionError, OmegaConfBaseException

from rlvr.config import schema, values
from rlvr.config.binding import close_match
from rlvr.config.overrides import key_of
from rlvr.config.registry import SHORTHANDS, Registry
from rlvr.ledger.files import DISK_FULL_ERRORS, permission_advice
from rlvr.ledger.layout import home
from rlvr.ledger.terminal import one_line

# Errors that a command reports in one line and with exit code 2; any other is a bug of ours and keeps its traceback.
BAD_INPUT = (HydraException, OmegaConfBaseException, yaml.YAMLError, ValueError, OSError)
LIST_ALL = "`python -m rlvr.run --cfg job` lists all."

COPIES = ("tensorboard", "trackio", "wandb")  # to which rlvr/tracker/copies.py copies runs

# Our knob -> its names in other trainers (TRL, verl, OpenRLHF, prime-rl).
OTHER_NAMES = {
    "lr": ("learning_rate",),
    "steps": ("max_steps", "num_steps", "total_steps", "total_training_steps"),
    "rollout.prompts": ("batch_size", "train_batch_size", "rollout_batch_size"),
    "rollout.samples": ("n", "num_generations", "group_size", "n_samples_per_prompt", "rollouts_per_example"),
    "rollout.max_tokens": ("max_new_tokens", "max_completion_length", "max_response_length"),
    "rollout.temperature": ("temperature",),
    "trainer.kl": ("kl_coef", "kl_loss_coef", "init_kl_coef"),
    "trainer.entropy": ("entropy_coeff", "entropy_coef", "entropy_loss_coef"),
    "trainer.updates": ("num_iterations", "ppo_epochs"),
    "trainer.clip_norm": ("max_grad_norm", "max_norm", "grad_clip"),
    "loss.clip_low": ("epsilon", "clip_ratio", "clip_ratio_low"),
    "clip_high": ("epsilon_high", "clip_ratio_high"),
    "evaluation.every": ("eval_steps", "test_freq"),
    "checkpoint.every": ("save_steps", "save_freq"),
    "model.path": ("model_name_or_path", "model_name"),
}


def explain(error: BaseException, arguments: Sequence[str], registry: Registry, sweep: str = "") -> str:
    """One line for an error of Hydra, OmegaConf or our own: what came, what is allowed, what to type.

    arguments: of the command. registry: of its search path. sweep: how to do the same with several values of a key.
    """
    if isinstance(error, OSError) and error.errno in DISK_FULL_ERRORS:
        return f"no space left for {home()}. Free some; the same command then goes on from the newest checkpoints."
    if denial := permission_advice(error, home()):
        return denial
    if isinstance(error, OSError) and error.filename is not None:
        return one_line(error)
    if isinstance(error, yaml.YAMLError):
        return _yaml_error(error)
    if isinstance(error, UnicodeDecodeError):
        return _encoding_error(error, registry)
    error = _innermost(error)
    if isinstance(error, InterpolationResolutionError):
        return _interpolation_error(error)
    text = str(error)
    return _several_values(text, registry, sweep) or next(_explanations(text, arguments, registry))


def unreadable_option_lines(registry: Registry) -> list[str]:
    """A line for each option that was left out because its file cannot be read."""
    return [
        f"{group}={option} cannot be chosen: {explain(error, (), registry)}"
        for (group, option), error in registry.unreadable.items()
    ]


def _explanations(text: str, arguments: Sequence[str], registry: Registry) -> Iterator[str]:
    """Explanations of a message, the most precise first; the last one is the message itself."""
    keys = dict(argument.lstrip("+~").split("=", 1) for argument in arguments if "=" in argument)
    yield from _dropped_knobs(text, arguments, registry)
    yield from _not_read(text, keys, arguments, registry)
    if unknown := re.search(r"Could not find '([\w./]+)/([^'/]+)'", text):
        yield _no_option(unknown.group(1), unknown.group(2), registry)
    if unknown := re.search(r"Could not override '([^']+)'", text) or re.search(r"Key '([^']+)' (?:is )?not in", text):
        key = unknown.group(1)
        group = key.split(".")[0]
        if key.startswith(("hydra.sweeper.", "hydra/sweeper/")):
            yield _not_of_sweeper(key, keys, registry)
        if explanation := _missing_in_some(key, keys, registry):
            yield explanation
        # Finding the losses composes a config: only for groups that a loss may have.
        if registry.losses_with(group):
            losses = _losses(arguments, registry)
            if explanation := (
                _set_by_study(key, losses, keys, registry) or _without_effect(key, group, losses, registry)
            ):
                yield explanation
        if _is_entry(key):
            typed = f"{key}={keys.get(key, '...')}"
            yield f"{typed}: a new entry of a mapping is typed with a plus: +{typed}"
        if others := _options_with(key, registry):
            yield f"{key} is a knob of {key.split('.')[0]}={', '.join(others)}. Pass one of them, or drop {key}."
        yield f"{key} is not a knob.{_proposal(key, arguments, registry)} {LIST_ALL}"
    if unmerged := re.search(r"Error merging override \+*([\w./]+)=(.*)", text):
        yield _type_error(unmerged.group(1), unmerged.group(2), registry)
    if missing := re.search(r"Missing mandatory value: ([\w.]+)", text):
        yield f"{missing.group(1)} has no value: pass {missing.group(1)}=..."
    if repeated := re.search(r"Multiple values for ([\w./]+)\.", text):
        yield f"{repeated.group(1)} is chosen already: type {repeated.group(1)}=OPTION without +."
    if absent := re.search(r"Could not delete from config\. (?:The value of )?'([\w.]+)'", text):
        section, _, name = absent.group(1).rpartition(".")
        if not section:
            yield f"~{name}: there is no such knob or group.{close_match(name, registry.names())}"
        if entries := _entries(section, arguments, registry):
            near = close_match(name, entries)
            yield f"~{absent.group(1)}: there is no such entry to drop. {section} has: {', '.join(entries)}.{near}"
        yield f"~{absent.group(1)}: there is no such entry to drop. A knob that is off is {absent.group(1)}=null."
    if scalar := re.search(r"AnyNode is not a ListConfig.*full_key: ([\w.]+)", text, re.DOTALL):
        key, file = scalar.group(1), re.match(r"In '[^']+': ", text)
        yield f"{file.group() if file else ''}{key} is a list: under `{key}:` each line as `- LINE`."
    yield _without_internals(text)


def _several_values(text: str, registry: Registry, sweep: str) -> str:
    """Explanation for a command that gives a key of one run several values; "" if the message is another."""
    several = re.search(r"Ambiguous value for argument '(.+?)'\s+1\. To use", text, re.DOTALL)
    several = several or re.search(r"Sweep parameters? '(.+)' requires? --multirun", text)
    if several is None:
        return ""
    key, _, value = several.group(1).partition("=")
    as_list = "" if key in registry.groups() or "(" in value else f" One list is {key}=[{value}]."
    return f"{key}={value} is several values.{as_list} {f'To sweep over them, {sweep}' if sweep else 'Pass one.'}"


def _not_read(text: str, keys: Mapping[str, str], arguments: Sequence[str], registry: Registry) -> Iterator[str]:
    """Explanations of a message about a divergence, or a shorthand, that some loss of the command does not read."""
    if "divergence" in keys and "'divergence'" in text and "No match in the defaults list" in text:
        typed, losses = f"divergence={keys['divergence']}", _losses(arguments, registry)
        yield (
            _missing_in_some("divergence", keys, registry)
            or _without_effect(typed, "divergence", losses, registry)
            or _without_effect_in_arm(typed, losses, keys)
        )
    if unread := re.match(rf"({'|'.join(SHORTHANDS)})=\S+ has no effect with loss=(\w+)\. Losses that read", text):
        key, loss = unread.groups()
        if explanation := _missing_in_some(key, keys, registry) or _set_by_study(key, loss, keys, registry):
            yield explanation
        if key in keys and loss not in (losses := _losses(arguments, registry)).split(","):
            yield _without_effect_in_arm(f"{key}={keys[key]}", losses, keys)


def _dropped_knobs(text: str, arguments: Sequence[str], registry: Registry) -> Iterator[str]:
    """Explanations of a message about a typed `~KEY` where KEY is a knob or a group, which runs cannot lack."""
    for key in (key_of(word) for word in arguments if word.startswith("~")):
        about = rf"Interpolation key '{key}|override ~{key}\b|pass {key}\b|from config\. .*'{key}'"
        if re.search(about, text) and any(name == key or name.startswith(f"{key}.") for name in registry.names()):
            yield f"~{key}: only entries of a mapping can be dropped. Leave ~{key} out, or set {key}=VALUE."


def _not_of_sweeper(key: str, keys: Mapping[str, str], registry: Registry) -> str:
    """Explanation for a knob that the sweeper of the command does not have."""
    name = re.split(r"[./]", key, maxsplit=2)[2]
    knobs = [str(knob) for knob in registry.node("hydra/sweeper", "optuna") if not str(knob).startswith("_")]
    knobs += ["sampler", "pruner"]
    if keys.get("hydra/sweeper") != "optuna" and name.split(".")[0] in knobs:
        return f"{key} has an effect on searches only. Search with -m hydra/sweeper=optuna, or drop it."
    near = "" if "." in name else close_match(name, knobs)
    return f"{key} is not a knob. Those of hydra.sweeper in a search: {', '.join(knobs)}.{near}"


def _entries(key: str, arguments: Sequence[str], registry: Registry) -> list[str]:
    """The names in a mapping of the config with the chosen options; [] if there is no such mapping."""
    try:
        config, _ = registry.compose(_chosen(arguments, registry))
        node = OmegaConf.select(config, key, throw_on_missing=False)
    except BAD_INPUT:
        return []
    return [str(name) for name in node if not str(name).startswith("_")] if isinstance(node, DictConfig) else []


def _losses(arguments: Sequence[str], registry: Registry) -> str:
    """The losses that were typed, as they were; else that of the recipe, the study or the default."""
    for word in arguments:
        if word.startswith("loss="):
            return word.removeprefix("loss=")
    try:
        _, choices = registry.compose([w for w in _chosen(arguments, registry) if not w.startswith("divergence=")])
    except BAD_INPUT:
        return "?"
    return str(choices.get("loss"))


def _chosen(arguments: Sequence[str], registry: Registry) -> list[str]:
    """Overrides that choose the command's options; of several options in a group the first."""
    groups = registry.groups()
    return [word.split(",")[0] for word in arguments if word.partition("=")[0] in groups]


def _without_internals(text: str) -> str:
    """A library's message without the lines for its own developers: references, addresses, types."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    internal = ("ref", "full_key:", "object_type=", "reference_type=", "See https://hydra.cc")
    return " ".join(line for line in lines if not line.startswith(internal))


def _yaml_error(error: yaml.YAMLError) -> str:
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return f"a config is no YAML: {_without_internals(str(error))}"
    mark = error.problem_mark
    return f"{mark.name}, line {mark.line + 1}, column {mark.column + 1}: no YAML, {error.problem}."


def _encoding_error(error: UnicodeDecodeError, registry: Registry) -> str:
    """The error does not name its file, which is the one of the search path that begins with the same bytes."""
    files = (path for folder in registry.directories for path in Path(folder).rglob("*.yaml"))
    file = next((str(path) for path in files if path.read_bytes().startswith(error.object)), "a config")
    return f"{file}: no YAML, byte {error.start + 1} is not valid in UTF-8."


def _interpolation_error(error: InterpolationResolutionError) -> str:
    key, reason = str(error.full_key), _without_internals(str(error))
    return f"{key} cannot be resolved: {reason}. Type {key}=VALUE." if key else f"{reason}."


def _innermost(error: BaseException) -> BaseException:
    """The first error of a chain of causes whose messages only repeat it."""
    while isinstance(error, HydraException) and isinstance(error.__cause__, OmegaConfBaseException | HydraException):
        if str(error.__cause__).split("\n")[0] not in str(error):
            break
        error = error.__cause__
    return error


def _no_option(group: str, option: str, registry: Registry) -> str:
    # Hydra takes what stands before the last slash for a group: `Could not find 'model/Qwen/Qwen3-4B'`.
    while "/" in group and (group.endswith((".", "/")) or not registry.options(group)):
        group, _, below = group.rpartition("/")
        option = f"{below}/{option}"
    options = registry.options(group)
    if group == "tracker" and option in COPIES:
        return f"tracker={option} does not exist: runs are copied there, by python -m rlvr.tracker.copies {option}."
    if group == "model" and "/" in option:
        return f"model={option} is no option. For a model of the hub or in a directory: model=hf model.path={option}."
    return f"{group}={option} does not exist. {group} takes: {', '.join(options)}.{close_match(option, options)}"


def _type_error(key: str, text: str, registry: Registry) -> str:
    """Explanation for a value that does not have the type of its knob."""
    types = values.types_of(schema.RunConfig)
    if key in types:
        return values.not_read(key, text, types[key], registry.as_written({}, key))
    above = key.rpartition(".")[0]
    if above in types:
        return f"{key} is not a knob: {values.not_read(above, '...', types[above])}"
    if key.startswith("hydra."):
        return f"{key}={text} is not of the type that Hydra takes there. `python -m rlvr.run --cfg hydra` lists all."
    return (
        f"{key}: a list cannot take the place of a mapping, nor a mapping that of a list. Type {key}=VALUE for one "
        f"value, {key}={{name: value}} to set entries of a mapping, ~{key}.name to drop one."
    )


def _missing_in_some(key: str, keys: Mapping[str, str], registry: Registry) -> str:
    """Explanation for a typed knob that only some of the swept options have, of its group or of `loss`; else ""."""
    group, readers = _readers(key, registry)
    options = [option for option in keys.get(group, "").split(",") if option in registry.options(group)]
    having = [option for option in options if option in readers]
    if key not in keys or not having or having == options:
        return ""
    lacking = ",".join(option for option in options if option not in having)
    others = f"{group}={','.join(having)}"
    return f"{key} is no knob of {group}={lacking}. {_to_others_alone(key, others, keys)}"


def _to_others_alone(key: str, condition: str, keys: Mapping[str, str]) -> str:
    """What to type for a knob, given on the command line, that only points with this condition can have."""
    rule, typed = f"{key} if {condition}", keys.get("when", "")
    if typed and not typed.startswith("["):
        return f'Give it to the others alone: extend `when` to when="{typed}; {rule}".'
    return f'Give it to the others alone: add when="{rule}".'


def _readers(key: str, registry: Registry) -> tuple[str, list[str]]:
    """(a group, those of its options that have a knob, or read it)."""
    group = key.partition(".")[0]
    if key in SHORTHANDS:
        return "loss", registry.losses_reading(key)
    if takers := registry.losses_with(group):
        return "loss", takers
    return group, _options_with(key, registry)


def _set_by_study(key: str, losses: str, keys: Mapping[str, str], registry: Registry) -> str:
    """Explanation for a knob that the study sets, not the user, and that the typed losses do not read; else ""."""
    readers = _readers(key, registry)[1]
    if key in keys or not {"study", "loss"} <= keys.keys() or set(losses.split(",")) <= set(readers):
        return ""
    return (
        f"study={keys['study']} sets {key}, which loss={losses} does not read. Losses that do: {', '.join(readers)}. "
        f"Drop loss={keys['loss']} or pass one of these."
    )


def _is_entry(key: str) -> bool:
    """Whether the key is a mapping of the schema with free names, or an entry of one."""
    types = values.types_of(schema.RunConfig)
    return any(get_origin(types.get(mapping)) is dict for mapping in (key, key.rpartition(".")[0]))


def _without_effect_in_arm(typed: str, losses: str, keys: Mapping[str, str]) -> str:
    """The losses of the command read the key that was typed, but the loss of an arm of `also`, or of a study, not."""
    return (
        f"{typed} has no effect with the loss of some arm, of `also` for example. "
        f"{_to_others_alone(typed.partition('=')[0], f'loss={losses}', keys)}"
    )


def _without_effect(typed: str, group: str, losses: str, registry: Registry) -> str:
    """`divergence=js has no effect with loss=grpo. …` for a group that only other losses take; else ""."""
    takers = registry.losses_with(group)
    if not takers or set(losses.split(",")) <= set(takers):
        return ""
    return (
        f"{typed} has no effect with loss={losses}. Losses that take a {group}: {', '.join(takers)}. "
        f"Drop {typed.partition('=')[0]} or pass loss={takers[0]}."
    )


def _options_with(key: str, registry: Registry) -> list[str]:
    """The options of the key's group that have this knob."""
    group, _, knob = key.partition(".")
    if not knob or group not in registry.groups():
        return []
    return [option for option in registry.readable(group) if _has(registry.node(group, option), knob)]


def _has(node: DictConfig, knob: str) -> bool:
    inner: object = OmegaConf.to_container(node, resolve=False)
    for name in knob.split("."):
        if not isinstance(inner, dict) or name not in inner:
            return False
        inner = cast("dict[str, object]", inner)[name]
    return True


def _proposal(key: str, arguments: Sequence[str], registry: Registry) -> str:
    """` Did you mean ...?` from all knobs and groups of the config with the chosen options; "" if none is similar."""
    ours = [knob for knob, names in OTHER_NAMES.items() if key.rpartition(".")[2] in names]
    if ours:
        return f" Did you mean {ours[0]}?"
    try:
        known = registry.names(tuple(_chosen(arguments, registry)))
    except BAD_INPUT:
        known = registry.names()
    match = close_match(key, known)
    if not match and "." in key:  # a knob under the wrong group
        name = key.rsplit(".", 1)[1]
        match = close_match(name, {k.rsplit(".", 1)[-1]: k for k in known})
    return match
