"""A run whose training is another program's (`program=`): what is left of its config, and which words have an effect.

Our own trainer is `program=rlvr`, and its runs have no `program` in their config. Any other program has the knobs of
its own file, and of the rest what does not depend on the trainer: seed, steps, task, evaluation, and of `rollout` the
number of problems of a step and false rewards. What else it reads, such as `lr`, its file lists under `reads`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from hydra.utils import get_method

from rlvr.config import values
from rlvr.config.binding import close_match
from rlvr.config.overrides import key_of
from rlvr.config.registry import SHORTHANDS, Registry, key_reading
from rlvr.config.schema import Choices, as_dict
from rlvr.config.signature import signature
from rlvr.ledger.runs import flatten

READABLE = ("loss", "divergence", "advantage", "model", "lr", *SHORTHANDS)  # of the knobs of our trainer
OF_TRAINER = (*READABLE, "presample", "trainer", "min_entropy", "max_kl", "keep_rollouts")
USED = {"rollout": ("prompts", "reward"), "checkpoint": ("every", "minutes", "keep")}  # of these sections, always
ARGUMENTS = ["config", "run"]
ONE_PROCESS = ("ranks", "nodes")  # knobs of `cluster` that start ranks of our trainer


def trimmed(plain: dict[str, Any], choices: Choices) -> tuple[dict[str, Any], Choices]:
    """A resolved config, and its options, without what its program does not read; as they are without a program."""
    program: Mapping[str, Any] = plain.get("program") or {}
    if not program:
        return plain, {group: option for group, option in choices.items() if group != "program"}
    unread = {key for key in OF_TRAINER if not _is_read(key, program)} - {"keep_rollouts"}  # 0, and in no identity
    rollout: dict[str, Any] = {
        knob: value if _is_read(f"rollout.{knob}", program) else None for knob, value in plain["rollout"].items()
    }
    kept: dict[str, Any] = {**plain, **dict.fromkeys(unread), "rollout": rollout | {"engine": {}}}
    return kept, {k: option for k, option in choices.items() if k.partition("@")[0] not in (*unread, "rollout")}


def check_words(words: Iterable[str], plain: Mapping[str, Any], registry: Registry) -> None:
    """Raises ValueError for a typed word that the program of a frozen config does not read.

    A knob to which its file refers, as in `updates: ${trainer.updates}`, is read.
    """
    program: Mapping[str, Any] = plain.get("program") or {}
    referring = as_dict(registry.node("program", str(plain["choices"]["program"]))) if program else {}
    for key in map(key_of, words) if program else ():
        section, _, knob = key.partition(".")
        is_read = _is_read(key, program) or key_reading(key, referring) is not None
        if (section in OF_TRAINER or section in USED) and not is_read:
            listed = section in READABLE or (section == "rollout" and knob and not knob.startswith("engine"))
            advice = f", or list {section if section in READABLE else key} under `reads` in its file" if listed else ""
            raise ValueError(
                f"{key} has no effect with program={plain['choices']['program']}, which does not read it. "
                f"Drop it{advice}."
            )


def _is_read(key: str, program: Mapping[str, Any]) -> bool:
    section, _, knob = key.partition(".")
    listed = any(key == name or key.startswith(f"{name}.") for name in program.get("reads") or ())
    return listed or knob.split(".")[0] in USED.get(section, ())


def check(plain: Mapping[str, Any], choices: Choices, registry: Registry) -> None:
    """Checks the knobs of a program against its file, and what it reads. Raises ValueError."""
    program: Mapping[str, Any] = plain["program"]
    known = signature(program["_target_"])
    required = [parameter.name for parameter in known.parameters if parameter.required]
    if required != ARGUMENTS and not known.takes_any:
        raise ValueError(
            f"program: {program['_target_']} takes {', '.join(required) or 'nothing'}. A program is a function of "
            f"{' and '.join(ARGUMENTS)}: its knobs are in config.program (docs/programs.md)."
        )
    rollout = [f"rollout.{knob}" for knob in plain["rollout"] if knob != "engine"]
    for name in cast("Sequence[str]", program.get("reads") or ()):
        if name not in (*READABLE, *rollout):
            raise ValueError(
                f"program.reads: {name} is none of {', '.join((*READABLE, 'rollout.KNOB'))}."
                f"{close_match(name, rollout)}"
            )
    for knob in ONE_PROCESS:
        if plain["cluster"][knob] > 1:
            raise ValueError(f"cluster.{knob}={plain['cluster'][knob]}: a program has one process. Drop it.")
    written = flatten(as_dict(registry.node("program", str(choices["program"]))))
    takes_any = tuple(f"{key}." for key, value in written.items() if value == {})
    for name, value in flatten(program).items():
        if name not in written and not name.startswith(takes_any):
            raise ValueError(
                f"program.{name} is not in the file of program={choices['program']}, which lists its knobs."
                f"{close_match(name, written)}"
            )
        default = written.get(name)
        if default is not None and not (isinstance(default, str) and ("${" in default or default == "???")):
            values.check(f"program.{name}", value, type(default), lambda _, default=default: default)
    if own := program.get("check"):
        get_method(str(own))(plain)
