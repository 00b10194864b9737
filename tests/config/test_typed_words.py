"""A few thousand typed words, always the same: each gives a run that could be launched, or an error of one line."""

import pickle
import random
import re
from pathlib import Path

import pytest
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from omegaconf import OmegaConf

from rlvr.config.checks import Checker
from rlvr.config.explain import BAD_INPUT, explain
from rlvr.config.overrides import check, command_line, parse
from rlvr.config.registry import Registry
from rlvr.run import main

VALUES = re.findall(
    r"\S+",
    """0 1 -1 2 0.5 1e3 1e-300 1e400 99999999999999999999 nan inf -inf null none true false auto abc '1' "x" [] [1]
    [1,2] [0.9] [nan] {} {a:1} {a:[} ${seed} ${nowhere} ${ ??? 1:2 a,b 1,1 range(3) choice(1,2) interval(0,1) glob(*) é
    ١ ; | \\ / . .. ~ @ % 0x10 1_000 +5 refill token float32 local /nowhere http://u:p@h""",
)
SHAPES = re.findall(r"\S+", "{k}={v} {k}={v} {k}={v} {k}={v} +{k}={v} ++{k}={v} ~{k} {k} {k}={v}={v} {v}={k} -{k}")
RAW = re.compile(r"Traceback|Exception\b|usage:|hydra\.cc|object_type|full_key|LexerNo|Error in call|pydantic", re.I)


def keys() -> list[str]:
    """Every knob and group, and some of them with a letter missing."""
    config, _ = Registry().compose()

    def paths(prefix: str, node: object) -> list[str]:
        if not isinstance(node, dict):
            return [prefix]
        return [prefix, *(p for k, v in node.items() for p in paths(f"{prefix}.{k}".lstrip("."), v))]

    known = [*paths("", OmegaConf.to_container(config))[1:], *Registry().groups()]
    dice = random.Random(0)
    return [*known, *(k[:i] + k[i + 1 :] for k in dice.sample(known, 40) for i in [dice.randrange(len(k))])]


def words(number: int) -> list[str]:
    dice, known = random.Random(1), keys()
    return [dice.choice(SHAPES).format(k=dice.choice(known), v=dice.choice(VALUES)) for _ in range(number)]


@pytest.mark.slow
def test_every_word_is_accepted_or_refused_in_one_line() -> None:
    """Composed by patching, as the points of a sweep are: a word that chooses options is for the next test."""
    registry = Registry()
    checker, groups = Checker(registry), registry.groups()
    config, choices = registry.compose()
    base = pickle.dumps(config)
    taken = refused = 0
    for word in words(2500):
        try:
            typed = command_line([word]).overrides
            check(typed, groups)
            if not typed:
                continue  # an option
            (override,) = parse(typed)
            if override.key_or_group in groups or override.is_sweep_override():
                continue
            patched = pickle.loads(base)  # noqa: S301 - our own bytes
            ConfigLoaderImpl._apply_overrides_to_config([override], patched)
            checker.check(patched, choices)
            taken += 1
        except BAD_INPUT as error:
            line = explain(error, [word], registry)
            assert line, word
            assert "\n" not in line.strip(), (word, line)
            assert not RAW.search(line.replace(word, "")), (word, line)
            refused += 1
    assert taken > 50
    assert refused > 1500


@pytest.mark.slow
def test_every_command_is_a_plan_or_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The whole command, options of groups and sweeps among its words; nothing is written."""
    monkeypatch.setenv("RLVR_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    dice, typed = random.Random(2), words(400)
    groups = [f"{g}={o}" for g in ("loss", "advantage", "divergence", "rollout", "task") for o in Registry().options(g)]
    codes, commands = set[object](), [["loss=grpo"], ["model.architecture.rope_parameters=x"]]
    for _ in range(40):
        command = [*dice.sample(typed, dice.choice((1, 1, 2))), *dice.sample(groups, dice.choice((0, 1)))]
        commands.append([*command, *dice.choice(([], ["-m"], ["-m", "seed=0,1"]))])
    for command in commands:
        try:
            code = main([*command, "cluster=local", "--dry-run"])
        except SystemExit as end:
            code = end.code
        printed = capsys.readouterr()
        codes.add(code)
        assert code == 0 or 1 <= printed.err.count("\n") <= 2, (command, printed.err)
        assert not RAW.search(printed.err) or any(RAW.search(word) for word in command), (command, printed.err)
    assert (codes, list(tmp_path.iterdir())) == ({0, 2}, [])
