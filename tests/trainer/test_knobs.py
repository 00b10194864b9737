from dataclasses import FrozenInstanceError, fields
from typing import Any, get_args, get_type_hints

import pytest
import torch
from omegaconf import OmegaConf

from rlvr.config.binding import bind
from rlvr.objective import penalty, reduce
from rlvr.trainer import packer
from rlvr.trainer.knobs import Knobs
from tests.trainer.tiny import YAML, make_knobs


def config(**knobs: Any) -> Any:
    """conf/trainer/fsdp.yaml with the knobs that it takes from the run filled in."""
    plain = OmegaConf.to_container(OmegaConf.load(YAML))
    assert isinstance(plain, dict)
    return OmegaConf.create({**plain, "seed": 0, "steps": 1, "temperature": 1.0, "lr": 1e-3, **knobs})


def test_the_yaml_has_every_knob_and_python_no_default() -> None:
    assert {field.name for field in fields(Knobs)} == set(config()) - {"_target_"}
    with pytest.raises(TypeError, match="missing"):
        Knobs()  # type: ignore[call-arg]


def test_a_misspelt_knob_and_a_wrong_value_are_refused_before_launch() -> None:
    bind("trainer", config())
    with pytest.raises(ValueError, match=r"trainer\.warmup_step is unknown: .*Did you mean warmup_steps\?"):
        bind("trainer", config(warmup_step=3))
    with pytest.raises(ValueError, match=r"trainer\.schedule=sine: "):
        bind("trainer", config(schedule="sine"))
    with pytest.raises(ValueError, match=r"trainer\.device is unknown"):
        bind("trainer", config(device="cpu"))  # a place, no knob
    bind("trainer", config(compile="auto", dtype="float16"))
    with pytest.raises(ValueError, match=r"trainer\.compile=maybe"):
        bind("trainer", config(compile="maybe"))


def test_choices_are_those_that_their_readers_know() -> None:
    known = get_type_hints(Knobs)
    for knob, choices in (
        ("aggregation", reduce.Mode),
        ("kl_estimator", penalty.Penalty),
        ("shared_prompt", packer.Sharing),
    ):
        assert set(get_args(known[knob])) == set(get_args(choices))


def test_knobs_are_frozen_and_say_how_long_the_schedule_is() -> None:
    knobs = make_knobs(steps=10, epochs=3, updates=4, dtype="bfloat16")
    assert knobs.total_updates == 120
    assert knobs.precision is torch.bfloat16
    with pytest.raises(FrozenInstanceError):
        knobs.lr = 1.0  # type: ignore[misc]


def test_layers_are_compiled_by_themselves_on_a_gpu_where_sequences_are_packed() -> None:
    for name, packed, compiled in (("cpu", True, False), ("cuda", True, True), ("cuda", False, False)):
        device = torch.device(name)
        assert make_knobs(compile="auto").compiles(device, packed=packed) is compiled
        assert make_knobs(compile=True).compiles(device, packed=packed)
        assert not make_knobs(compile=False).compiles(device, packed=packed)
