"""Everything about a composed config that can be known before launch. Each refusal is one line: what came, what is
allowed, what to type.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Collection, Generator, Mapping
from typing import Any, cast

from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig

from rlvr.config import base_model, engine, memory, pairing, schema, values
from rlvr.config.binding import Written, bind, check_partial, close_match
from rlvr.config.cost import DEVICES
from rlvr.config.freeze import frozen, missing_of_task
from rlvr.config.pairing import Abilities
from rlvr.config.registry import SHORTHANDS, Registry
from rlvr.config.schema import Choices, Knobs, Section
from rlvr.config.signature import declared
from rlvr.ledger.tags import redact
from rlvr.records import NotAtHand
from rlvr.task.read import BriefHub

SECRET = re.compile(  # in names of variables, as words: TOKENIZERS_PARALLELISM is none
    r"(TOKEN|PASSWORD|PASSWD|SECRETS?|CREDENTIALS?|APIKEY|(^|_)KEY)(_|$)", re.IGNORECASE
)
ASSIGNMENT = re.compile(r"(\w+)=\"?(\S?)")  # in shell: a name, and how its value begins
MOST_DIVISORS = 1000  # the largest number of mini-batches that is proposed


class Checker:
    """Checks the points of one launch. What many points share is looked at once."""

    def __init__(self, registry: Registry | None = None, *, dry_run: bool = False) -> None:
        """registry: of the search path that the configs were composed from; None: conf/ alone.

        dry_run: what this machine lacks (data of the hub, vLLM) is put down in `unchecked`, and refused otherwise.
        """
        self.registry = registry or Registry()
        self.dry_run = dry_run
        self.unchecked: dict[str, None] = {}  # lines, in order
        self._bound: set[str] = set()  # parts of configs that fit the parameters of their components
        self._tasks: dict[str, Abilities | None] = {}
        self._hub = BriefHub()

    def check(
        self,
        config: DictConfig,
        choices: Choices,
        plain: Mapping[str, Any] | None = None,
        written: Written | None = None,
    ) -> None:
        """All but the task, which `check_task` builds. Raises ValueError.

        plain: the config, frozen. written: of a config that differs from it in values alone, where one was looked at.
        """
        plain, written = plain or self._frozen(config, choices), written or Written(config)
        knobs = Section(plain)
        self._check_values(written, choices, plain)
        check_secrets(plain)
        if knobs.get("policy"):
            check_choices(knobs)
            check_evaluation(knobs)
            return
        self._check_shorthands(knobs, choices, written)
        check_choices(knobs)
        check_shapes(knobs, choices)
        pairing.check(knobs, choices, self.registry)
        engine.check(knobs, choices, self.registry)
        with self._at_hand():
            engine.check_engine(knobs, choices)
        with self._at_hand():
            base_model.check(knobs)
        memory.check(plain)

    def check_task(self, config: DictConfig, choices: Choices, plain: Mapping[str, Any] | None = None) -> None:
        """Build the task, once for each of its settings, and see whether objective and model go with it: a missing data
        file is told here, not in a job. Raises ValueError or OSError.
        """
        plain = plain or self._frozen(config, choices)
        knobs, setting = Section(plain), repr(plain["task"])
        if setting not in self._tasks:
            # None of data that is not at hand: it is asked for once, since a hub may be long in not answering.
            abilities = None
            with self._at_hand(), self._hub.asked() if self.dry_run else contextlib.nullcontext():
                check_data(config)
                abilities = built(plain["task"], choices)
            self._tasks[setting] = abilities
        if (abilities := self._tasks[setting]) is not None:
            pairing.check_task(knobs, choices, abilities)
            base_model.check_context(knobs, choices, abilities)

    def train_problems(self, plain: Mapping[str, Any]) -> int | None:
        """How many training problems a checked run has; None: they never end, or its data are not at hand."""
        abilities = self._tasks.get(repr(plain["task"]))
        return None if abilities is None else abilities.train_problems

    def _frozen(self, config: DictConfig, choices: Choices) -> dict[str, Any]:
        return frozen(config, choices, on_paper=self.dry_run)

    @contextlib.contextmanager
    def _at_hand(self) -> Generator[None, None, None]:
        """What this machine lacks is an error, and in a dry run only noted."""
        try:
            yield
        except NotAtHand as error:
            if not self.dry_run:
                raise
            self.unchecked[str(error)] = None

    def _check_values(self, written: Written, choices: Choices, plain: Mapping[str, Any]) -> None:
        """Every knob is known, of its type and in its range. Sections that were looked at before are not again."""
        usual = functools.partial(self.registry.as_written, choices)
        parts = {section: f"{section}={value!r}" for section, value in plain.items()}
        fresh = {section: plain[section] for section, part in parts.items() if part not in self._bound}
        check_schema(plain, usual, fresh)
        for section in fresh:
            for path in written.components(section):
                bind(path, values.at(plain, path), usual)
                _check_flags(path, values.at(plain, path), usual)
                check_partial(path, values.at(plain, path))
        values.check_finite(fresh)
        self._bound.update(map(parts.__getitem__, fresh))

    def _check_shorthands(self, knobs: Section, choices: Choices, written: Written) -> None:
        for name in SHORTHANDS:
            of_recipe = self.registry.as_written(choices, f"paper.{name}")  # for those of its losses that read it
            if knobs[name] in (None, of_recipe) or name in written.shorthands:
                continue
            readers = self.registry.losses_reading(name)
            advice = f"Drop {name} or pass loss={readers[0]}." if readers else f"Drop {name}."
            raise ValueError(
                f"{name}={knobs[name]} has no effect with loss={choices.get('loss')}. "
                f"Losses that read {name}: {', '.join(readers) or 'none'}. {advice}"
            )
        usual = {self.registry.as_written(choices, key) for key in ("lr", "paper.lr", "study.lr")}
        if not written.reads_lr and knobs.lr not in usual:
            raise ValueError(f"lr={knobs.lr} has no effect with trainer.lr={knobs.trainer.lr}. Drop one of them.")


def _check_flags(path: str, node: Mapping[str, Any], usual: Callable[[str], object]) -> None:
    """ValueError for a change of how an option is called: as a function of its knobs, or of data too."""
    for flag in ("_partial_", "_convert_"):
        if usual(f"{path}._target_") is not None and node.get(flag) != usual(f"{path}.{flag}"):
            came = f"{path}.{flag}={values.typed(node.get(flag))}"
            raise ValueError(f"{came} is no knob: the option says how it is called. Drop it.")


def check_data(config: DictConfig) -> None:
    """NotAtHand for knobs of the task without a value: a recipe cannot name data that lie on no hub."""
    if lacking := missing_of_task(config):
        needed = " ".join(f"{key}=..." for key in lacking)
        raise NotAtHand(f"{', '.join(lacking)} without a value. A launch needs {needed}, and its run has another id.")


def built(node: Mapping[str, Any], choices: Choices) -> Abilities:
    """What a task of this config can do. Raises ValueError or OSError, in the task's own words where it refuses."""
    try:
        task = instantiate(node, _convert_="all")
    except InstantiationException as error:
        cause = innermost(error)
        if isinstance(cause, ValueError | OSError):
            raise cause from None
        raise ValueError(f"task={choices.get('task')} cannot be built: {type(cause).__name__}: {cause}") from error
    abilities = Abilities.of(task, choices.get("task"))
    task.close()
    return abilities


def innermost(error: BaseException) -> BaseException:
    """What an error comes from in the end: Hydra wraps what a component raises."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def check_schema(plain: Mapping[str, Any], usual: Callable[[str], object], within: Collection[str]) -> None:
    """Raises ValueError for a key that the schema does not know, or a value that is not of its type or in its range.

    within: the sections, and values beside them, that are looked at.
    """
    known = values.types_of(schema.RunConfig)
    before = plain.keys() - within
    for section, names in values.sections_of(schema.RunConfig).items():
        if section.split(".")[0] in before:
            continue
        above, _, name = section.rpartition(".")
        if section and name not in values.at(plain, above):
            raise ValueError(f"~{section}: every run has a {name}. Leave it out.")
        below = values.at(plain, section)
        if not isinstance(below, Mapping):
            raise ValueError(f"{section}={below} has no knobs: {section} is a section of the config. Set a knob of it.")
        for name in cast("Mapping[str, object]", below).keys() - names - {"choices"}:
            key = f"{section}.{name}".lstrip(".")
            raise ValueError(f"{key} is not a knob.{close_match(key, known)} `python -m rlvr.run --cfg job` lists all.")
    for key, kind in known.items():
        if key.split(".")[0] in before:
            continue
        if (name := key.rpartition(".")[2]) not in values.at(plain, key.rpartition(".")[0]):
            raise ValueError(f"~{key}: every run has a {name}. Leave it out.")
        values.check(key, values.at(plain, key), kind, usual)


def check_choices(config: Knobs) -> None:
    if config.cluster.gpu is not None and config.cluster.gpu not in DEVICES:
        known = ", ".join(name for name in DEVICES if name != "cpu")
        raise ValueError(f"cluster.gpu={config.cluster.gpu} is not known. Pass one of {known}, or null.")
    if config.max_kl is not None and not config.trainer.base_kl:
        raise ValueError(f"max_kl={config.max_kl} needs trainer.base_kl=true.")
    if config.rollout.dynamic_sampling not in ("none", "drop", "refill"):
        raise ValueError(f"rollout.dynamic_sampling={config.rollout.dynamic_sampling} must be none, drop or refill.")
    overdraw = config.rollout.overdraw
    if overdraw is not None and config.rollout.dynamic_sampling != "refill":
        raise ValueError(
            f"rollout.overdraw={overdraw} needs rollout.dynamic_sampling=refill: without it no problem is drawn again."
        )
    if config.rollout.filter not in ("none", "greedy_fails"):
        raise ValueError(f"rollout.filter={config.rollout.filter} must be none or greedy_fails.")
    if config.rollout.reward not in (None, "random", "flipped"):
        raise ValueError(f"rollout.reward={config.rollout.reward} must be random or flipped; null: as judged.")


def check_secrets(plain: Mapping[str, Any]) -> None:
    """ValueError for a password or a token in the config: runs, sweeps and reports keep all of it."""
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
                f"cluster.environment.{name} would be kept in runs/. Export it before the launch: jobs have what the "
                f"launch has. On a site where they have not, type '+cluster.environment.{name}=\\${name}'."
            )
    for line in plain["cluster"]["setup"]:
        for name, begin in ASSIGNMENT.findall(line):
            if SECRET.search(name) and begin not in ("", "$"):
                raise ValueError(
                    f"cluster.setup: the value of {name} would be kept in runs/. Export it before the launch, or "
                    f"read it from a file on the node: {name}=$(cat FILE)."
                )


def check_shapes(config: Knobs, choices: Choices) -> None:
    """Groups, mini-batches, ranks and samples: does each divide into the next?"""
    P, G, U = config.rollout.prompts, config.rollout.samples, config.trainer.updates
    if P < U:
        raise ValueError(
            f"trainer.updates={U} mini-batches cannot be made of rollout.prompts={P} groups: a group never splits. "
            f"Pass trainer.updates={P} or less."
        )
    if P % U:
        fits = [u for u in range(1, min(P, MOST_DIVISORS) + 1) if P % u == 0]
        raise ValueError(
            f"rollout.prompts={P} groups do not divide into trainer.updates={U} equal mini-batches. "
            f"Divisors of {P}: {', '.join(map(str, fits))}."
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
    """Can pass@k be measured with these samples?"""
    if not config.evaluation.k or min(config.evaluation.k) < 1:
        raise ValueError(f"evaluation.k={list(config.evaluation.k)} must list at least one k, each 1 or more.")
    if max(config.evaluation.k) > config.evaluation.samples:
        raise ValueError(
            f"evaluation.k={max(config.evaluation.k)} is larger than evaluation.samples={config.evaluation.samples}: "
            f"pass@k needs k samples. Pass evaluation.samples={max(config.evaluation.k)} or a smaller k."
        )
