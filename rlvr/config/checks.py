"""All checks of a composed config before launch. Each error is one line: what came, what is allowed, what to type."""

import contextlib
import functools
import os
import re
from collections.abc import Callable, Collection, Generator, Mapping
from typing import Any, cast

from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig

from rlvr.config import base_model, engine, memory, nodes, own_code, pairing, program, revisions, schema, unread, values
from rlvr.config.binding import UnresolvedConfig, bind, check_partial, close_match
from rlvr.config.freeze import frozen_config, missing_of_task
from rlvr.config.look import FirstLook, look
from rlvr.config.pairing import TaskAbilities
from rlvr.config.registry import SHORTHANDS, Registry, check_option_names, key_reading
from rlvr.config.schema import Choices, Knobs, Section
from rlvr.config.signature import declared
from rlvr.ledger.runs import flatten
from rlvr.ledger.tags import redact
from rlvr.records import NotAvailable
from rlvr.task.read import BriefHub

SECRET = re.compile(  # whole words in names of variables: TOKENIZERS_PARALLELISM does not match
    r"(TOKEN|PASSWORD|PASSWD|PASSPHRASE|(^|_)PASS|(?<=_)PWD|SECRETS?|CREDENTIALS?|APIKEY|(^|_)KEY)\d*(_|$)",
    re.IGNORECASE,
)
SHORTEST_SECRET = 8  # characters
LOGIN = re.compile(r"\w://[^/?#\s:@]*:(?!\$)[^/?#\s]+@")  # user:password@ of an address, and no reference to a password
ASSIGNMENT = re.compile(r"(\w+)=\"?(\S?)")  # of a shell variable: its name, and the first character of its value
MOST_DIVISORS = 1000  # the largest number of mini-batches that a message proposes


class NotRead(ValueError):
    """Raised for a shorthand that the loss of a point does not read."""

    def __init__(self, message: str, knob: str, loss: str) -> None:
        super().__init__(message)
        self.knob, self.loss = knob, loss


class Checker:
    """Checks the points of one launch. What many points share is checked once."""

    def __init__(self, registry: Registry | None = None, *, dry_run: bool = False, show: int = 0) -> None:
        """registry: of the search path that the configs were composed from; None: conf/ alone.

        dry_run: what this machine lacks (data of the hub, vLLM) is listed in `unchecked` instead of being an error.
        show: number of prompts in each look at a task.
        """
        self.registry = registry or Registry()
        self.dry_run, self._show = dry_run, show
        self.unchecked: dict[str, None] = {}  # lines, in order (a dict as an ordered set)
        self._valid_sections: set[str] = set()  # sections of configs, with their values, that passed the checks
        # By what `_setting` names; None: its data are not on this machine.
        self._tasks: dict[str, tuple[TaskAbilities, FirstLook] | None] = {}
        self._hub = BriefHub()

    def check(
        self,
        config: DictConfig,
        choices: Choices,
        plain: Mapping[str, Any] | None = None,
        written: UnresolvedConfig | None = None,
    ) -> None:
        """Checks all but the task, which `check_task` builds. Raises ValueError.

        plain: the config, frozen. written: of this config, or of one that differs from it in values alone.
        """
        check_option_names(choices)
        plain, written = plain or self._frozen(config, choices), written or UnresolvedConfig(config)
        knobs = Section(plain)
        self._check_values(written, choices, plain)
        check_secrets(plain)
        is_evaluation = bool(knobs.get("policy"))
        usual = functools.partial(self.registry.as_written, choices)
        nodes.check(plain["cluster"], trains=not is_evaluation, usual=usual)
        if plain["program"]:
            with self._missing_noted():
                program.check(plain, choices, self.registry)
            check_evaluation(knobs)
            return
        if is_evaluation:
            check_evaluation(knobs)
            return
        self._check_shorthands(knobs, choices, written)
        check_shapes(knobs, choices)
        unread.check(knobs, choices, self.registry)
        pairing.check(knobs, choices, self.registry)
        engine.check(knobs, choices)
        with self._missing_noted():
            engine.check_engine(knobs, choices)
        with self._missing_noted():
            base_model.check(knobs)
        memory.check(plain)

    def check_task(self, config: DictConfig, choices: Choices, plain: Mapping[str, Any] | None = None) -> None:
        """Builds the task, once for each of its settings, and checks that objective and model go with it.

        So a missing data file is an error before launch, not in a job. Raises ValueError or OSError.
        """
        plain = plain or self._frozen(config, choices)
        knobs, setting = Section(plain), _setting(plain)
        if setting not in self._tasks:
            # Stays None if data are missing, so that they are requested once: an unreachable hub may take long to fail.
            built = None
            with self._missing_noted(), self.brief_hub():
                check_data(config)
                built = _built(plain, choices, self._show)
            self._tasks[setting] = built
        built = self._tasks[setting]
        with self._missing_noted():
            revisions.check(plain if built is not None else {"model": plain["model"]})
        if built is not None:
            abilities, _ = built
            pairing.check_task(knobs, choices, abilities)
            if plain["program"]:
                return
            base_model.check_context(knobs, choices, abilities)
            base_model.check_words(knobs, choices, abilities)

    def train_problems(self, plain: Mapping[str, Any]) -> int | None:
        """Number of training problems of a checked run; None: an endless stream, or missing data."""
        built = self._tasks.get(_setting(plain))
        return None if built is None else built[0].train_problems

    def look(self, plain: Mapping[str, Any]) -> FirstLook:
        """The look at the task of a checked run; an empty one if its data are missing."""
        built = self._tasks.get(_setting(plain))
        return FirstLook() if built is None else built[1].within(plain["rollout"]["max_tokens"])

    def brief_hub(self) -> contextlib.AbstractContextManager[None]:
        """A context in which a dry run does not wait for a hub that is not reachable."""
        return self._hub.in_use() if self.dry_run else contextlib.nullcontext()

    def _frozen(self, config: DictConfig, choices: Choices) -> dict[str, Any]:
        return frozen_config(config, choices, on_paper=self.dry_run)

    @contextlib.contextmanager
    def _missing_noted(self) -> Generator[None, None, None]:
        """In a dry run, what this machine lacks is noted in `unchecked`; otherwise it is an error."""
        try:
            yield
        except NotAvailable as error:
            if not self.dry_run:
                raise
            self.unchecked[str(error)] = None

    def _check_values(self, written: UnresolvedConfig, choices: Choices, plain: Mapping[str, Any]) -> None:
        """Every knob is known, of its type and in its range. Sections that passed before are not checked again."""
        usual = functools.partial(self.registry.as_written, choices)
        texts = {section: f"{section}={value!r}" for section, value in plain.items()}
        fresh = {section: plain[section] for section, text in texts.items() if text not in self._valid_sections}
        check_schema(plain, usual, fresh)
        for section in fresh:
            for path in written.components(section):
                if path == "program" or not plain[section] or not values.value_at(plain, path):
                    continue  # `program.check` is for the first; a program reads no others
                bind(path, values.value_at(plain, path), usual)
                _check_flags(path, values.value_at(plain, path), usual)
                check_partial(path, values.value_at(plain, path))
        values.check_finite(fresh)
        self._valid_sections.update(texts[section] for section in fresh)

    def _check_shorthands(self, knobs: Section, choices: Choices, written: UnresolvedConfig) -> None:
        for name in SHORTHANDS:
            of_recipe = self.registry.as_written(choices, f"paper.{name}")  # a recipe sets it for losses that read it
            if knobs[name] in (None, of_recipe) or name in written.shorthands:
                continue
            readers = self.registry.losses_reading(name)
            if (loss := str(choices.get("loss"))) in readers:
                raise ValueError(_set_below(name, knobs, self.registry.node("loss", loss)))
            advice = f"Drop {name} or pass loss={readers[0]}." if readers else f"Drop {name}."
            raise NotRead(
                f"{name}={knobs[name]} has no effect with loss={loss}. "
                f"Losses that read {name}: {', '.join(readers) or 'none'}. {advice}",
                name,
                loss,
            )
        own_lr = Section(knobs.trainer or {}).get("lr", knobs.lr)
        if not written.reads_lr and own_lr != knobs.lr:  # a frozen config has the same number twice
            raise ValueError(
                f"trainer.lr={own_lr} would leave lr={knobs.lr} without effect, by which arms are named and compared. "
                f"Type lr={own_lr}."
            )


def _set_below(name: str, knobs: Section, node: DictConfig) -> str:
    """The message for a shorthand beside a value of the very knob that it is a shorthand for.

    node: the option of the loss as its file has it, in which that knob is an interpolation of the shorthand.
    """
    key = key_reading(name, schema.as_dict(node))
    assert key is not None
    value = values.value_at(knobs.loss, key)
    return (
        f"{name}={knobs[name]} has no effect beside loss.{key}={value}, for which it is a shorthand. Drop {name}, or "
        f"set loss.{key}={knobs[name]}."
    )


def _check_flags(path: str, node: Mapping[str, Any], usual: Callable[[str], object]) -> None:
    """Raises ValueError if `_partial_` or `_convert_` differs from the option's file."""
    for flag in ("_partial_", "_convert_"):
        if usual(f"{path}._target_") is not None and node.get(flag) != usual(f"{path}.{flag}"):
            typed = f"{path}.{flag}={values.typed(node.get(flag))}"
            raise ValueError(f"{typed} is no knob: the option's file decides how it is called. Drop it.")


def check_data(config: DictConfig) -> None:
    """Raises NotAvailable for knobs of the task without a value: a recipe cannot name data that are on no hub."""
    if missing := missing_of_task(config):
        needed = " ".join(f"{key}=..." for key in missing)
        raise NotAvailable(
            f"{', '.join(missing)} without a value. A launch needs {needed}, and its run has another id."
        )


def _setting(plain: Mapping[str, Any]) -> str:
    """All that a task and the look at it depend on."""
    policy: Mapping[str, Any] = plain.get("policy") or plain.get("model") or {}
    return repr((plain["task"], *(policy.get(knob) for knob in ("path", "chat", "system"))))


def _built(plain: Mapping[str, Any], choices: Choices, show: int) -> tuple[TaskAbilities, FirstLook]:
    """The abilities of a config's task, which is built for it, and a look at it.

    Raises the task's own ValueError or OSError, and ValueError for any other exception while it is built.
    """
    try:
        task = instantiate(plain["task"], _convert_="all")
    except InstantiationException as error:
        cause = component_error(error)
        if isinstance(cause, ValueError | OSError):
            raise cause from None
        raise ValueError(
            f"task={choices.get('task')} cannot be built: {type(cause).__name__}: {cause}{own_code.line_of(cause)}"
        ) from error
    abilities = TaskAbilities.of(task, choices.get("task"))
    try:
        return abilities, look(task, plain, show)
    finally:
        task.close()


def component_error(error: BaseException) -> BaseException:
    """The error that a component itself raised: Hydra wraps it, once for each component that contains it."""
    while isinstance(error, InstantiationException) and error.__cause__ is not None:
        error = error.__cause__
    return error


def check_schema(plain: Mapping[str, Any], usual: Callable[[str], object], within: Collection[str]) -> None:
    """Raises ValueError for a key that the schema does not know, or a value that is not of its type or in its range.

    within: the top-level keys that are checked.
    """
    known = values.types_of(schema.RunConfig)
    skipped = plain.keys() - within
    for section, names in values.sections_of(schema.RunConfig).items():
        if section.split(".")[0] in skipped:
            continue
        above, _, name = section.rpartition(".")
        if section and name not in values.value_at(plain, above):
            raise ValueError(f"~{section}: every run has a {name}. Leave it out.")
        below = values.value_at(plain, section)
        if not isinstance(below, Mapping):
            raise ValueError(f"{section}={below} has no knobs: {section} is a section of the config. Set a knob of it.")
        for name in cast("Mapping[str, object]", below).keys() - names - {"choices"}:
            key = f"{section}.{name}".lstrip(".")
            raise ValueError(f"{key} is not a knob.{close_match(key, known)} `python -m rlvr.run --cfg job` lists all.")
    for key, kind in known.items():
        if key.split(".")[0] in skipped:
            continue
        if (name := key.rpartition(".")[2]) not in values.value_at(plain, key.rpartition(".")[0]):
            raise ValueError(f"~{key}: every run has a {name}. Leave it out.")
        value = values.value_at(plain, key)
        if value is not None or not plain["program"]:  # what a program does not read is null
            values.check(key, value, kind, usual)


def check_secrets(plain: Mapping[str, Any]) -> None:
    """Raises ValueError for a password or a token in the config, which is copied to runs, sweeps and reports."""
    uri = plain["tracker"]["uri"] or ""
    if redact(uri) != uri:
        raise ValueError(
            f"tracker.uri={redact(uri)} with a user or a password would be kept in runs/ and reports. Export the whole "
            "address as MLFLOW_TRACKING_URI, or user and password as MLFLOW_TRACKING_USERNAME and "
            "MLFLOW_TRACKING_PASSWORD, and type the address without them."
        )
    for name, value in plain["cluster"]["environment"].items():
        if SECRET.search(name) and not str(value).startswith("$"):
            raise ValueError(
                f"cluster.environment.{name} would be kept in runs/. Export it before the launch: jobs inherit the "
                f"environment of the launch. On a site where they do not, type '+cluster.environment.{name}=${name}'."
            )
        if LOGIN.search(str(value)):
            raise ValueError(
                f"cluster.environment.{name}={redact(str(value))}: the password in it would be kept in runs/. Export "
                f"{name} before the launch: jobs inherit its environment."
            )
    for line in plain["cluster"]["setup"]:
        for name, first_character in ASSIGNMENT.findall(line):
            if SECRET.search(name) and first_character not in ("", "$"):
                raise ValueError(
                    f"cluster.setup: the value of {name} would be kept in runs/. Export it before the launch, or "
                    f"read it from a file on the node: {name}=$(cat FILE)."
                )
        if LOGIN.search(line):
            raise ValueError(
                f"cluster.setup: the password in {redact(line)} would be kept in runs/. Export it before the launch, "
                "and write a reference, such as https://ann:$PASSWORD@host."
            )

    held = {value: name for name, value in os.environ.items() if SECRET.search(name) and _is_secret(value)}
    for key, value in flatten(plain).items() if held else ():
        if names := [name for secret, name in held.items() if secret in str(value)]:
            raise ValueError(
                f"{key} has the value of ${names[0]}, which would be kept in runs/ and MLflow. Drop it: jobs inherit "
                f"the environment of the launch. cluster.setup and cluster.environment may refer to it: ${names[0]}."
            )


def _is_secret(value: str) -> bool:
    """Whether the value of a variable with the name of a secret is one, and no switch or path."""
    return len(value) >= SHORTEST_SECRET and not value.startswith("/")


def check_shapes(config: Knobs, choices: Choices) -> None:
    """Raises ValueError for numbers of groups, mini-batches, ranks or samples that do not fit each other."""
    P, G, U = config.rollout.prompts, config.rollout.samples, config.trainer.updates
    if P % U:
        divisors = [u for u in range(1, min(P, MOST_DIVISORS) + 1) if P % u == 0]
        raise ValueError(
            f"rollout.prompts={P} groups do not divide into trainer.updates={U} equal mini-batches. "
            f"Divisors of {P}: {', '.join(map(str, divisors))}."
        )
    if config.cluster.ranks > P // U:
        raise ValueError(
            f"cluster.ranks={config.cluster.ranks} processes share mini-batches of only {P // U} groups "
            f"(rollout.prompts={P} / trainer.updates={U}). Pass fewer ranks or updates, or more prompts."
        )
    for group in ("advantage", "loss"):
        if G < 2 and "compares_responses" in declared(config[group]["_target_"]):
            raise ValueError(
                f"rollout.samples={G} makes {group}={choices.get(group)} zero for every response: it compares the "
                "responses of a group. Pass rollout.samples=2 or more."
            )
    check_evaluation(config)


def check_evaluation(config: Knobs) -> None:
    """Raises ValueError for copies of a greedy answer, and for k of pass@k that these samples cannot measure."""
    if config.evaluation.temperature == 0 and config.evaluation.samples > 1:
        raise ValueError(
            f"evaluation.temperature=0 gives one answer, and evaluation.samples={config.evaluation.samples} would be "
            "copies of it. Pass evaluation.samples=1 evaluation.k=[1], or another temperature."
        )
    if not config.evaluation.k or min(config.evaluation.k) < 1:
        raise ValueError(f"evaluation.k={list(config.evaluation.k)} must list at least one k, each 1 or more.")
    if len(set(config.evaluation.k)) < len(config.evaluation.k):
        raise ValueError(f"evaluation.k={list(config.evaluation.k)} lists a k twice. Drop one.")
    if max(config.evaluation.k) > config.evaluation.samples:
        raise ValueError(
            f"evaluation.k={max(config.evaluation.k)} is larger than evaluation.samples={config.evaluation.samples}: "
            f"pass@k needs k samples. Pass evaluation.samples={max(config.evaluation.k)} or a smaller k."
        )
