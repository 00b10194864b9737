import logging
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from rlvr.model.table_policy import TableConfig, TablePolicy
from rlvr.trainer import lora, tensor_files
from tests.compatibility.architectures import EXPERTS, built
from tests.trainer.tiny import batch, gradients, make_trainer, plain_logp, qwen2, weights

RANK, ALPHA = 3, 6.0
KNOBS = {"lora_rank": RANK, "lora_alpha": ALPHA, "lr": 0.05, "betas": (0.9, 0.999)}


def loaded(values: dict[str, torch.Tensor], *, tied: bool = True) -> nn.Module:
    plain = qwen2(tied=tied)
    plain.load_state_dict(values, strict=False)
    return plain


@pytest.mark.parametrize("tied", [True, False])
def test_the_weights_handed_over_are_the_policy(tied: bool) -> None:
    """A plain model with the merged weights has the same log-probabilities as the model with adapters."""
    trainer = make_trainer(qwen2(tied=tied), **KNOBS)
    for seed in range(2):
        trainer.learn(batch(seed=seed))
    merged, base = weights(trainer), dict(qwen2(tied=tied).named_parameters())
    assert merged.keys() == base.keys()
    changed = {name for name, w in merged.items() if not torch.equal(w, base[name])}
    assert changed == {name for name in base if "_proj.weight" in name}
    expected = torch.cat(plain_logp(loaded(merged, tied=tied), batch()))
    assert torch.allclose(trainer.logp(batch())[batch().mask], expected, atol=2e-6)
    assert not torch.allclose(torch.cat(plain_logp(qwen2(tied=tied), batch())), expected, atol=0.01)


def test_merging_is_exact_in_float64() -> None:
    model = qwen2().double()
    lora.adapt(model, rank=RANK, alpha=ALPHA, seed=0, dtype=torch.float64)
    module = next(m for m in model.modules() if isinstance(m, lora.Adapted)).double()
    nn.init.normal_(module.lora_b)
    x = torch.randn(5, 16, dtype=torch.float64)
    weight = module.weight + ALPHA / RANK * module.lora_b @ module.lora_a
    merged = nn.functional.linear(x, weight, module.bias)
    assert torch.allclose(module(x), merged, rtol=0, atol=1e-13)
    with lora.off(model):
        assert torch.equal(module(x), nn.functional.linear(x, module.weight, module.bias))


def test_an_adapters_gradient_is_that_of_the_weight_it_adapts() -> None:
    """At B = 0: dL/dB = alpha/rank · dL/dW Aᵀ, with dL/dW from training all weights, and dL/dA = 0."""
    full_trainer, trainer = make_trainer(), make_trainer(lora_rank=RANK, lora_alpha=ALPHA)
    first = {name: p.detach().clone() for name, p in trainer.actor.model.named_parameters()}
    assert trainer.learn(batch())["policy/entropy"] == full_trainer.learn(batch())["policy/entropy"]
    of_weights, of_adapters = gradients(full_trainer), gradients(trainer)
    assert of_adapters.keys() == {name for name in first if lora.is_adapter(name)}
    for name, gradient in of_adapters.items():
        module = name.rpartition(".")[0]
        if name.endswith("lora_a"):
            assert not gradient.any()
        else:
            expected = ALPHA / RANK * of_weights[f"{module}.weight"] @ first[f"{module}.lora_a"].T
            assert torch.allclose(gradient, expected, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_base_policy_is_the_policy_without_its_adapters(dtype: str) -> None:
    """Penalty and measured divergence are those of training with a frozen copy: 0 at first, then more."""
    trainer = make_trainer(**KNOBS, kl=0.5, base_kl=True, dtype=dtype, updates=3, epochs=2)
    metrics = trainer.learn(batch(logp_ref=None))
    assert metrics["policy/kl_base"] == 0.0  # of the first update, which starts at the base policy
    assert trainer.learn(batch(logp_ref=None))["policy/kl_base"] > 1e-4
    first = trainer.packer.layout(batch(), shared=False)
    of_base, of_reference = trainer.frozen.logp(first, base=True, reference=True)
    assert of_base is of_reference
    assert of_base is not None
    expected = torch.cat(plain_logp(qwen2(), batch()))
    assert torch.allclose(of_base, expected, atol=2e-6 if dtype == "float32" else 0.3)


def test_a_checkpoint_has_the_adapters_alone(tmp_path: Path) -> None:
    trainer = make_trainer(**KNOBS, base_kl=True)
    trainer.save(tmp_path / "a", {})
    stored = load_file(tmp_path / "a" / tensor_files.FIRST)
    assert stored.keys() > {"random.cpu"}
    assert all(lora.is_adapter(name) for name in stored if not name.startswith("random."))


def test_what_adapters_cannot_do_is_refused() -> None:
    with pytest.raises(ValueError, match=r"torch\.nn\.Linear, and the layers of TablePolicy have none"):
        make_trainer(TablePolicy(TableConfig(vocab_size=16)), **KNOBS)


def test_weights_without_adapters_are_told(caplog: pytest.LogCaptureFixture) -> None:
    """Of a layer's 3072 weights in attention, 3072 in experts and 128 in their router, the first have adapters."""
    with caplog.at_level(logging.WARNING, "rlvr"):
        make_trainer(**KNOBS)
        assert "adapters" not in caplog.text
        make_trainer(built("qwen3_moe", EXPERTS), **KNOBS)
    assert "of the weights in the decoder's layers 49 % have adapters" in caplog.text
