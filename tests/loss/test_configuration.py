"""Each YAML of the objectives names an existing function, exactly its knobs, and says what it is."""

from __future__ import annotations

import importlib
import inspect
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hydra import compose
from hydra.utils import instantiate
from omegaconf import OmegaConf

from rlvr.config.compose import composing
from rlvr.config.signature import declared
from rlvr.objective.batch import Batch, Policy, declared_needs
from tests.loss import extremes
from tests.support.composed import REGISTRY

CONF = Path(__file__).parents[2] / "conf"
FILES = sorted(path for group in ("loss", "divergence", "advantage") for path in (CONF / group).glob("*.yaml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_yaml_gives_every_knob_of_its_function_and_no_other(path: Path) -> None:
    assert path.read_text().startswith("# ")
    content = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    assert isinstance(content, dict)
    content = content.get("loss", content)  # one that sets other groups' knobs too
    module, name = content["_target_"].rsplit(".", 1)
    function = getattr(importlib.import_module(module), name)
    parameters = inspect.signature(function).parameters.values()
    knobs = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY} - declared_needs(function)
    assert all(p.default is p.empty for p in parameters), "defaults live in YAML alone"
    assert set(content) - {"_target_", "_partial_", "defaults"} == knobs
    assert content["_partial_"] is True


@pytest.mark.parametrize("name", sorted(path.stem for path in (CONF / "loss").glob("*.yaml")))
def test_no_gradient_is_infinite_at_the_extremes(name: str) -> None:
    """Every loss by its name, with 1/η = 32 where it reads an η: log ratios up to ±25, in float32 and bfloat16."""
    eta = ["eta=0.03125"] if name in REGISTRY.losses_reading("eta") else []
    with composing():
        config = compose("run", [f"loss={name}", *eta])
    loss, one_token = instantiate(config.loss), "one_token_responses" in declared(config.loss["_target_"])

    def with_everything(batch: Batch, policy: Policy) -> tuple[Batch, Policy]:
        """Noise, values, returns, rehearsed rows in every group, and the heads that the loss trains."""
        B, T = len(batch.tokens), 1 if one_token else batch.tokens.shape[1]
        cut = {n: getattr(batch, n)[:, :T] for n in ("tokens", "mask", "logp_old", "logp_ref")}
        value = torch.linspace(-2, 2, B * T).view(B, T).to(batch.logp_old.dtype)
        full = replace(batch, **cut, kind=torch.arange(B) % 2, noise=value.sigmoid(), value_old=value, returns=-value)
        assert policy.entropy is not None
        heads = {"value": value.clone(), "log_z": torch.linspace(-25, 25, B).to(value.dtype)}
        heads = {head: output.requires_grad_() for head, output in heads.items() if head in declared_needs(loss)}
        return full, Policy(policy.logp.detach()[:, :T].requires_grad_(), policy.entropy[:, :T], **heads)

    extremes.check(loss, make=with_everything)
