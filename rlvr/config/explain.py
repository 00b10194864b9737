"""Explains errors of Hydra and OmegaConf in one line: what came, what is allowed, what to type.

Hydra's messages are not read. The words of a command that it refused are examined, one after the other, against the
options and knobs that there are, until one is at fault; Hydra's own text is shown only if none is.
"""

import contextlib
import functools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast, get_origin

import yaml
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.types import IntervalSweep, Override
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import (
    ConfigAttributeError,
    ConfigKeyError,
    InterpolationResolutionError,
    MissingMandatoryValue,
    OmegaConfBaseException,
)

from rlvr.config import option_files, schema, values
from rlvr.config.binding import close_match
from rlvr.config.checks import NotRead, component_error
from rlvr.config.overrides import as_text, key_of, parse, quoted
from rlvr.config.registry import SHORTHANDS, Registry
from rlvr.ledger.files import DISK_FULL_ERRORS, permission_advice
from rlvr.ledger.identity import NOT_IDENTITY
from rlvr.ledger.layout import home
from rlvr.ledger.runs import flatten
from rlvr.ledger.terminal import one_line

MULTIRUN = frozenset({"-m", "--multirun"})
# Errors that a command reports in one line and with exit code 2; any other is a bug of ours and keeps its traceback.
BAD_INPUT = (HydraException, OmegaConfBaseException, yaml.YAMLError, ValueError, OSError)
_NO_KNOB = " is not a knob."
LIST_ALL = "`python -m rlvr.run --cfg job` lists all."

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
    of_point, error = getattr(error, "__notes__", []), _innermost(component_error(error))  # see `Points.setting`
    if isinstance(error, InterpolationResolutionError):
        return _interpolation_error(error, arguments, registry)
    if isinstance(error, MissingConfigException) and error.missing_cfg_file and error.options is not None:
        group, _, option = error.missing_cfg_file.rpartition("/")
        typed = any(option in word for word in arguments)
        place = "" if typed else option_files.place_of(option, arguments, registry)
        return place + _no_option(group, option, registry)
    command = _Command(arguments, registry)
    if isinstance(error, NotRead):
        explanations = command.not_read(error.knob, error.loss)
    elif isinstance(error, HydraException | OmegaConfBaseException):
        explanations = (text for part in (command, _Command(of_point, registry)) for text in part.faults(error, sweep))
    else:
        explanations = command.dropped_knobs()
    text = next(explanations, "") or _without_internals(str(error))
    if _NO_KNOB in text:  # there may be several
        text = " ".join(dict.fromkeys([text, *(further for further in explanations if _NO_KNOB in further)]))
    target = text.split(":")[1].strip() if text.startswith("_target_: ") else ""
    return (option_files.place_of(target, arguments, registry) if target else "") + text


def unreadable_option_lines(registry: Registry) -> list[str]:
    """A line for each option that was left out because its file cannot be read."""
    return [
        f"{group}={option} cannot be chosen: {explain(error, (), registry)}"
        for (group, option), error in registry.unreadable.items()
    ]


class _Command:
    """The words of a command that was refused. Its methods give explanations, the most precise first."""

    def __init__(self, arguments: Sequence[str], registry: Registry) -> None:
        self.arguments, self.registry = arguments, registry
        self.typed = dict(argument.lstrip("+~").split("=", 1) for argument in arguments if "=" in argument)
        self.overrides = [override for word in quoted(arguments) for override in _override(word)]

    def faults(self, error: BaseException, sweep: str) -> Iterator[str]:
        """What is wrong with words that Hydra refused with this error. sweep: see `explain`."""
        if not MULTIRUN & set(self.arguments) and not self._of_study("hydra.mode"):
            yield from (self._several_values(o, sweep) for o in self.overrides if o.is_sweep_override())
        yield from self.dropped_knobs()
        for override in self.overrides:
            if override.is_delete():
                yield self._not_dropped(override.key_or_group)
            else:
                yield from self._unknown(override)
        for key in self._of_study("hydra.sweeper.params"):
            if key in SHORTHANDS or self.registry.losses_with(key.partition(".")[0]):
                yield from filter(None, [self._set_by_study(key, self.losses)])
        if isinstance(error, MissingMandatoryValue):
            yield f"{error.full_key} has no value: pass {error.full_key}=..."
        yield from self._rules_that_are_no_lists()
        for key, value in self._set_in_study():
            place = option_files.place_of(f"{key.rpartition('.')[2]}:", self.arguments, self.registry)
            for override in _override(f"{key}={value}"):
                yield from (place + fault for fault in self._unknown(override))
        for key, value in self.typed.items():
            if self.registry.losses_with(key):
                yield self._without_effect_in_arm(f"{key}={value}")
            if key.startswith("hydra."):
                yield _type_error(key, value, self.registry)

    def not_read(self, knob: str, loss: str) -> Iterator[str]:
        """What is wrong with a shorthand that a loss of the command does not read."""
        yield from filter(None, [self._missing_in_some(knob), self._set_by_study(knob, loss)])
        if knob in self.typed and loss not in self.losses.split(","):
            yield self._without_effect_in_arm(f"{knob}={self.typed[knob]}")

    def dropped_knobs(self) -> Iterator[str]:
        """Explanations for typed `~KEY` where KEY is a knob or a group, which runs cannot lack."""
        for key in (key_of(word) for word in self.arguments if word.startswith("~")):
            if any(name == key or name.startswith(f"{key}.") for name in self.registry.names()):
                yield f"~{key}: only entries of a mapping can be dropped. Leave ~{key} out, or set {key}=VALUE."

    def _several_values(self, override: Override, sweep: str) -> str:
        key, _, value = str(override.input_line).partition("=")
        sweep = "" if key.partition(".")[0] in NOT_IDENTITY else sweep  # a sweep of it makes the same run
        as_list = "" if key in self.registry.groups() or "(" in value else f" One list is {key}=[{value}]."
        return f"{key}={value} is several values.{as_list} {f'To sweep over them, {sweep}' if sweep else 'Pass one.'}"

    def _not_dropped(self, key: str) -> str:
        section, _, name = key.rpartition(".")
        if not section:
            return f"~{name}: there is no such knob or group.{close_match(name, self.registry.names())}"
        node = OmegaConf.select(self._config, section, throw_on_missing=False) if self._config else None
        names = map(str, node) if isinstance(node, DictConfig) else ()
        if entries := [entry for entry in names if not entry.startswith("_")]:
            near = close_match(name, entries)
            return f"~{key}: there is no such entry to drop. {section} has: {', '.join(entries)}.{near}"
        return f"~{key}: there is no such entry to drop. A knob that is off is {key}=null."

    def _unknown(self, override: Override) -> Iterator[str]:
        """What is wrong with a word that sets a knob or chooses an option of a group; nothing if it is right."""
        key, registry = override.key_or_group, self.registry
        group = key.partition(".")[0]
        if key.startswith(("hydra.sweeper.", "hydra/sweeper/")):
            yield from filter(None, [self._not_of_sweeper(key)])
        if explanation := self._missing_in_some(key):
            yield explanation
        if registry.losses_with(group):
            typed = f"{key}={self.typed.get(key, '')}" if key == group else key
            yield from filter(None, [self._set_by_study(key, self.losses), self._without_effect(typed, group)])
        if key in registry.groups() and not isinstance(override.value(), dict):
            if override.is_add():
                yield f"{key} is chosen already: type {key}=OPTION without +."
            return
        for value in _values(override):
            refusal = self._refusal(override, value)
            if isinstance(refusal, ConfigAttributeError | ConfigKeyError):
                yield self._no_knob(key)
            elif refusal is not None:
                yield _type_error(key, value, registry)

    def _refusal(self, override: Override, value: str) -> BaseException | None:
        """The error of OmegaConf for one value of an override, in a run with the command's options."""
        key = override.key_or_group
        if self._config is None or key.startswith("hydra"):
            return None
        try:
            overrides = parse([f"{str(override.input_line).partition('=')[0]}={value}"])
            ConfigLoaderImpl._apply_overrides_to_config(overrides, self._config)  # pyright: ignore[reportPrivateUsage]
        except HydraException as error:
            return error.__cause__
        return None

    def _no_knob(self, key: str) -> str:
        if _is_entry(key):
            typed = f"{key}={self.typed.get(key, '...')}"
            return f"{typed}: a new entry of a mapping is typed with a plus: +{typed}"
        if others := _options_with(key, self.registry):
            return f"{key} is a knob of {key.split('.')[0]}={', '.join(others)}. Pass one of them, or drop {key}."
        return f"{key} is not a knob.{self._proposal(key)} {LIST_ALL}"

    def _not_of_sweeper(self, key: str) -> str:
        """Explanation for a knob that the sweeper of the command does not have; else ""."""
        name = key.removeprefix("hydra").lstrip("./").removeprefix("sweeper").lstrip("./")
        knobs = [str(knob) for knob in self.registry.node("hydra/sweeper", "optuna") if not str(knob).startswith("_")]
        knobs += ["sampler", "pruner"]
        is_known, is_search = name.split(".")[0] in knobs, self.typed.get("hydra/sweeper") == "optuna"
        if is_known and is_search and "." not in name:
            return ""
        if is_known and not is_search:
            return f"{key} has an effect on searches only. Search with -m hydra/sweeper=optuna, or drop it."
        near = "" if "." in name else close_match(name, knobs)
        return f"{key} is not a knob. Those of hydra.sweeper in a search: {', '.join(knobs)}.{near}"

    def _missing_in_some(self, key: str) -> str:
        """Explanation for a typed knob that only some of the swept options have, of its group or of `loss`; else ""."""
        group, readers = _readers(key, self.registry)
        options = [o for o in self.typed.get(group, "").split(",") if o in self.registry.options(group)]
        having = [option for option in options if option in readers]
        if key not in self.typed or not having or having == options:
            return ""
        lacking, others = ",".join(option for option in options if option not in having), ",".join(having)
        return f"{key} is no knob of {group}={lacking}. {self._to_others_alone(key, f'{group}={others}')}"

    def _to_others_alone(self, key: str, condition: str) -> str:
        """What to type for a knob, given on the command line, that only points with this condition can have."""
        rule, typed = f"{key} if {condition}", self.typed.get("when", "")
        told = f'extend `when` to when="{typed}; {rule}".' if typed[:1] not in ("", "[") else f'add when="{rule}".'
        return f"Give it to the others alone: {told}"

    def _set_by_study(self, key: str, losses: str) -> str:
        """Explanation for a knob that the study sets, not the user, and that the typed losses do not read; else ""."""
        readers = _readers(key, self.registry)[1]
        if key in self.typed or not {"study", "loss"} <= self.typed.keys() or set(losses.split(",")) <= set(readers):
            return ""
        return (
            f"study={self.typed['study']} sets {key}, which loss={losses} does not read. Losses that do: "
            f"{', '.join(readers)}. Drop loss={self.typed['loss']} or pass one of these."
        )

    def _without_effect_in_arm(self, typed: str) -> str:
        """The losses of the command read the key that was typed, but that of an arm of `also`, or of a study, not."""
        return (
            f"{typed} has no effect with the loss of some arm, of `also` for example. "
            f"{self._to_others_alone(typed.partition('=')[0], f'loss={self.losses}')}"
        )

    def _without_effect(self, typed: str, group: str) -> str:
        """`divergence=js has no effect with loss=grpo. …` for a group that only other losses take; else ""."""
        takers = self.registry.losses_with(group)
        if set(self.losses.split(",")) <= set(takers):
            return ""
        return (
            f"{typed} has no effect with loss={self.losses}. Losses that take a {group}: {', '.join(takers)}. "
            f"Drop {typed.partition('=')[0]} or pass loss={takers[0]}."
        )

    def _proposal(self, key: str) -> str:
        """` Did you mean ...?` from the knobs and groups of a run with the chosen options; "" if none is similar."""
        if ours := [knob for knob, names in OTHER_NAMES.items() if key.rpartition(".")[2] in names]:
            return f" Did you mean {ours[0]}?"
        known = self.registry.names()
        with contextlib.suppress(*BAD_INPUT):
            known = self.registry.names(tuple(self._chosen))
        by_name = {k.rpartition(".")[2]: k for k in known}  # for a knob under the wrong group
        return close_match(key, known) or (close_match(key.rpartition(".")[2], by_name) if "." in key else "")

    def _rules_that_are_no_lists(self) -> Iterator[str]:
        """Explanation for a study file in which a list of the schema is one text."""
        for key, kind in values.types_of(schema.RunConfig).items():
            if get_origin(kind) is list and isinstance(self._of_study(key), str):
                yield f"In 'study/{self.typed['study']}': {key} is a list: under `{key}:` each line as `- LINE`."

    # --- the config of the command

    @property
    def _chosen(self) -> list[str]:
        """Overrides that choose the command's options; of several options in a group the first."""
        groups = self.registry.groups()
        return [word.split(",")[0] for word in self.arguments if word.partition("=")[0] in groups]

    @functools.cached_property
    def _config(self) -> DictConfig | None:
        """The config with the chosen options; None if they cannot be composed. Applied overrides change it."""
        study = self.typed.get("study", "")
        brought = self.registry.brought("study", study) if study in self.registry.readable("study") else ()
        without_study = [f"{option.group}={option.option}" for option in brought if option.is_override]
        without_study += [word for word in self._chosen if word != f"study={study}"]
        for chosen in (self._chosen, without_study):
            with contextlib.suppress(*BAD_INPUT):
                return self.registry.compose(chosen)[0]
        return None

    @functools.cached_property
    def losses(self) -> str:
        """The losses that were typed, as they were; else that of the recipe, the study or the default."""
        if "loss" in self.typed:
            return self.typed["loss"]
        with contextlib.suppress(*BAD_INPUT):
            return str(self.registry.compose([w for w in self._chosen if not w.startswith("divergence=")])[1]["loss"])
        return "?"

    @functools.cached_property
    def _study(self) -> DictConfig:
        """The file of the command's study; empty if there is none."""
        study = self.typed.get("study", "")
        is_readable = study in self.registry.readable("study")
        return self.registry.node("study", study) if is_readable else OmegaConf.create({})

    def _set_in_study(self) -> list[tuple[str, str]]:
        """(key, value as it is typed) of the axes and of the knobs that the file of the command's study sets."""
        knobs = {key: value for key, value in schema.as_dict(self._study).items() if key != "hydra"}
        texts = {k: as_text(v) if isinstance(v, str) else values.typed(v) for k, v in flatten(knobs).items()}
        return [*dict(self._of_study("hydra.sweeper.params")).items(), *texts.items()]

    def _of_study(self, key: str) -> Any:
        """The value of a key in the file of the command's study; () if there is none."""
        return OmegaConf.select(self._study, key) or ()


def _override(word: str) -> list[Override]:
    """A word as an override; [] for an option of the command, and for what Hydra cannot read."""
    with contextlib.suppress(HydraException):
        return [] if word.startswith("-") else parse([word])
    return []


def _values(override: Override) -> list[str]:
    """The values of an override, as typed; several of a sweep, the first of an interval."""
    if override.is_interval_sweep():
        return [str(cast("IntervalSweep", override.value()).start)]
    if override.is_discrete_sweep():
        with contextlib.suppress(HydraException, ValueError):
            return list(override.sweep_string_iterator())
        return []  # a glob
    return [str(override.input_line).partition("=")[2]]


def _without_internals(text: str) -> str:
    """A library's message without the lines for its own developers: references, addresses, types."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    internal = ("ref", "full_key:", "object_type=", "reference_type=", "See https://hydra.cc")
    return " ".join(line for line in lines if not line.startswith(internal))


def _yaml_error(error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.reader.ReaderError):
        return f"{error.name}: no YAML, character {error.position + 1} is {error.character!r}, which no text has."
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return f"a config is no YAML: {_without_internals(str(error))}"
    mark = error.problem_mark
    return f"{mark.name}, line {mark.line + 1}, column {mark.column + 1}: no YAML, {error.problem}."


def _encoding_error(error: UnicodeDecodeError, registry: Registry) -> str:
    """The error does not name its file, which is the one of the search path that begins with the same bytes."""
    files = (path for folder in registry.directories for path in Path(folder).rglob("*.yaml"))
    file = next((str(path) for path in files if path.read_bytes().startswith(error.object)), "a config")
    return f"{file}: no YAML, byte {error.start + 1} is not valid in UTF-8."


def _interpolation_error(error: InterpolationResolutionError, words: Sequence[str], registry: Registry) -> str:
    key, reason = str(error.full_key or ""), _without_internals(str(error))
    missing = re.search(r"'(.+)'", reason)
    if place := option_files.place_of("${" + (missing[1] if missing else ""), words, registry):
        return f"{place}{reason}. A knob's value is ${{KEY}}; {LIST_ALL}"
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
    if "/" in group and not group.startswith("hydra/"):  # a folder of options, as in paper=small/coins
        group, _, folder = group.partition("/")
        option, options = f"{folder}/{option}", [f"{folder}/{name}" for name in options]
    if group == "model" and "/" in option:
        return f"model={option} is no option. For a model of the hub or in a directory: model=hf model.path={option}."
    below = (path for folder in registry.directories for path in Path(folder).rglob(f"{option}.y*ml"))
    if not option.startswith((".", "/", "*")) and (file := next(below, None)):
        where = Path(registry.directories[0], group, f"{option}.yaml")
        return f"{group}={option} does not exist: {file} is no option of {group}. Move it to {where}."
    absent = f" {Path(registry.directories[0], group, f'{option}.yaml')} is not there." if registry.directories else ""
    return (
        f"{group}={option} does not exist.{absent} {group} takes: {', '.join(options)}.{close_match(option, options)}"
    )


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


def _readers(key: str, registry: Registry) -> tuple[str, list[str]]:
    """(a group, those of its options that have a knob, or read it)."""
    group = key.partition(".")[0]
    if key in SHORTHANDS:
        return "loss", registry.losses_reading(key)
    if takers := registry.losses_with(group):
        return "loss", takers
    return group, _options_with(key, registry)


def _is_entry(key: str) -> bool:
    """Whether the key is a mapping of the schema with free names, or an entry of one."""
    types = values.types_of(schema.RunConfig)
    return any(get_origin(types.get(mapping)) is dict for mapping in (key, key.rpartition(".")[0]))


def _options_with(key: str, registry: Registry) -> list[str]:
    """The options of the key's group that have this knob."""
    group, _, knob = key.partition(".")
    if not knob or group not in registry.groups():
        return []
    knobs = {option: flatten(schema.as_dict(registry.node(group, option))) for option in registry.readable(group)}
    return [option for option, names in knobs.items() if any(f"{name}.".startswith(f"{knob}.") for name in names)]
