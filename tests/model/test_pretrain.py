"""Pre-training teaches the task, is deterministic, and is done once."""

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import rlvr.model.pretrain as pretraining
from rlvr.job.log import share_of_base_policy
from rlvr.model.load import load
from rlvr.model.pretrain import Pretraining, _initial_model, pretrain
from rlvr.model.tokenizer import encode, word_tokenizer
from rlvr.records import Request, Sampling
from rlvr.rollout.native import NativeEngine
from tests.support.scripted import Echo

SIZES = {"num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 64, "max_position_embeddings": 64}
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1, "tie_word_embeddings": True, "initializer_range": 0.1}
ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0}}
KNOBS: dict[str, Any] = {
    "architecture": {"model_type": "qwen2", **SIZES, **HEADS, **ROPE},
    **{"steps": 3, "batch": 8, "lr": 1e-2, "weight_decay": 0.01, "warmup_steps": 2, "held_out": 16, "seed": 0},
}


def weights(directory: Path) -> dict[str, torch.Tensor]:
    return load_file(directory / "model.safetensors")


def test_pretraining_teaches_the_task(tmp_path: Path) -> None:
    task = Echo(length=3, shift=1)
    path = pretrain(task, tmp_path, **{**KNOBS, "steps": 80, "batch": 16})
    record = json.loads((path / "stage.json").read_text())
    # Guessing among 6 letters, and the end for certain, costs 3/4·ln 6 = 1.34 nats a token.
    assert record["loss"][0][1] > 1.34
    assert record["held_out_loss"] < 0.2
    assert record["identity"]["steps"] == 80
    assert record["num_parameters"] == sum(tensor.numel() for tensor in weights(path).values())
    model, tokenizer = load(path, dtype="float32")
    engine = NativeEngine(model, eos_token_ids=[tokenizer.eos_token_id], pad_token_id=tokenizer.pad_token_id)
    problems = [task.problem("test", index) for index in range(36)]
    requests = [Request(np.array(encode(tokenizer, p.prompt)), 1, key) for key, p in enumerate(problems)]
    groups = engine.generate(requests, Sampling(max_tokens=6, seed=0, step=0))
    answers = [(p, tokenizer.decode(group[0].tokens)) for p, group in zip(problems, groups, strict=True)]
    assert np.mean([reward.value for reward in task.reward(answers)]) > 0.7


def test_pretraining_is_deterministic_and_keeps_the_random_state(tmp_path: Path) -> None:
    torch.manual_seed(1)
    first = weights(pretrain(Echo(length=3), tmp_path / "a", **KNOBS))
    drawn = torch.rand(1)
    torch.manual_seed(1)
    assert torch.equal(drawn, torch.rand(1))
    again = weights(pretrain(Echo(length=3), tmp_path / "b", **KNOBS))
    assert first.keys() == again.keys()
    assert all(torch.equal(first[name], again[name]) for name in first)


def test_every_knob_and_the_task_make_another_stage_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    changes: list[dict[str, Any]] = [{}, {"steps": 2}, {"batch": 4}, {"lr": 1e-3}, {"weight_decay": 0.0}]
    changes += [{"warmup_steps": 1}, {"held_out": 0}, {"seed": 1}]
    changes += [{"architecture": {**KNOBS["architecture"], "hidden_size": 16}}]
    caplog.set_level(logging.INFO)
    paths = [pretrain(Echo(length=3), tmp_path, **{**KNOBS, **change}) for change in changes]
    paths += [pretrain(task, tmp_path, **KNOBS) for task in (Echo(length=4), Echo(length=3, shift=1))]
    assert (len(set(paths)), caplog.text.count("built the pretrain stage")) == (len(paths), len(paths))
    caplog.clear()
    assert pretrain(Echo(length=3), tmp_path, **KNOBS) == paths[0]
    assert not caplog.text


def test_the_loss_counts_response_tokens_only(monkeypatch: pytest.MonkeyPatch) -> None:
    task = Echo(length=3)
    tokenizer = word_tokenizer(task.vocabulary, task.end_word)
    run = Pretraining(task, tokenizer, _initial_model(KNOBS["architecture"], tokenizer, 0))
    total = 0.0
    for index in range(5):
        prompt, response = (encode(tokenizer, text) for text in task.demonstration(index))
        logits = run.model(input_ids=torch.tensor([[*prompt, *response]])).logits[0].detach()
        logp = logits.log_softmax(-1)
        total -= sum(float(logp[len(prompt) + i - 1, token]) for i, token in enumerate(response))
    expected = total / (5 * 4)  # three letters and the end each
    assert run.held_out_loss(range(5), 5) == pytest.approx(expected, rel=1e-5)
    monkeypatch.setattr(pretraining, "CHUNK_TOKENS", 16)  # two rows at a time
    assert run.held_out_loss(range(5), 3) == pytest.approx(expected, rel=1e-5)
    assert run._step(range(5)) == pytest.approx(expected, rel=1e-5)


def test_the_gradient_does_not_depend_on_the_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    task = Echo(length=3)
    tokenizer = word_tokenizer(task.vocabulary, task.end_word)
    gradients = []
    for chunk in (4096, 16):
        monkeypatch.setattr(pretraining, "CHUNK_TOKENS", chunk)
        run = Pretraining(task, tokenizer, _initial_model(KNOBS["architecture"], tokenizer, 0))
        run._step(range(5))
        gradients.append([parameter.grad for parameter in run.model.parameters()])
    for whole, parts in zip(*gradients, strict=True):
        torch.testing.assert_close(parts, whole)


def test_the_share_of_the_learning_rate_rises_then_falls_to_zero() -> None:
    shares = [pretraining._share_of_lr(step, 10, 2) for step in range(11)]
    assert shares[:3] == pytest.approx([0.5, 1.0, 1.0])
    assert shares[6] == pytest.approx(0.5)  # half-way of the cosine
    assert shares[10] == pytest.approx(0.0, abs=1e-6)


def test_the_share_that_is_done_reaches_the_heartbeat_of_a_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pretraining, "LOG_EVERY_S", -1.0)
    shares = list[float]()
    with caplog.at_level(logging.INFO), share_of_base_policy(shares.append):
        pretrain(Echo(length=3), tmp_path, **{**KNOBS, "steps": 4})
    assert shares == [0.25, 0.5, 0.75, 1.0]
