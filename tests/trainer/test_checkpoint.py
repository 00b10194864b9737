import itertools
import json
import multiprocessing
import os
import signal
import threading
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlvr.model.load import load_model
from rlvr.model.structure import stored_buffers
from rlvr.model.tokenizer import load_tokenizer
from rlvr.trainer import checkpoint, distributed
from rlvr.trainer.fsdp import Trainer
from tests.compatibility.architectures import LATENT, built
from tests.support.ranks import results
from tests.trainer.losses import with_log_z, with_value
from tests.trainer.test_loss_scale import steep
from tests.trainer.tiny import batch, gradients, make_trainer, plain_logp, qwen2, save_base, weights

KNOBS: dict[str, Any] = {
    **{"updates": 2, "lr": 0.01, "betas": (0.9, 0.99), "schedule": "cosine", "warmup_steps": 3},
    **{"clip_norm": 0.1, "kl": 0.1, "base_kl": True, "token_budget": 10},
}
RESETS = {"reference_every": 2, "reference_resets_optimiser": True}
CONTINUED: dict[str, dict[str, Any]] = {
    "plain": {},
    "value head": {"loss": with_value, "head_lr": 0.02},
    "critic": {"loss": with_value, "critic": "own"},
    "log Z": {"loss": with_log_z, "head_lr": 0.02},
    "reference with resets": RESETS,
    "adapters": {"lora_rank": 3},
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "dtype"), [*itertools.product(CONTINUED, ("float32", "bfloat16")), ("plain", "float16")]
)
def test_continued_training_is_bitwise_uninterrupted_training(tmp_path: Path, case: str, dtype: str) -> None:
    """In float16 the first updates overflow, before the checkpoint and after it."""
    knobs, saved_after = {**KNOBS, **CONTINUED[case], "dtype": dtype}, 3
    if dtype == "float16":
        knobs["loss"], saved_after = steep, 1
    data = [batch(seed=s, logp_ref=None) for s in range(5)]
    uninterrupted = make_trainer(**knobs)
    expected = [uninterrupted.learn(rollouts) for rollouts in data]
    assert dtype != "float16" or sum(2 * metrics["optim/skipped"] for metrics in expected) > 2
    first = make_trainer(**knobs)
    actual = [first.learn(rollouts) for rollouts in data[:saved_after]]
    first.save(tmp_path / "step-00000003", {"position": 17})
    torch.manual_seed(99)
    second = make_trainer(**knobs)
    second.logp(data[0])
    assert (second.load(tmp_path / "step-00000003"), second.loss_scale) == ({"position": 17}, first.loss_scale)
    actual += [second.learn(rollouts) for rollouts in data[saved_after:]]
    assert actual == expected
    for name, parameter in uninterrupted.actor.named_parameters():
        assert torch.equal(dict(second.actor.named_parameters())[name], parameter), name
    assert all(torch.equal(gradients(second)[name], g) for name, g in gradients(uninterrupted).items())


def test_a_save_replaces_an_older_one_and_keeps_torchs_random_state(tmp_path: Path) -> None:
    trainer = make_trainer()
    for step in (1, 2):
        trainer.learn(batch())
        trainer.save(tmp_path / "a", {"step": step})
    expected = torch.rand(3)
    torch.rand(5)
    assert trainer.load(tmp_path / "a") == {"step": 2}
    assert torch.equal(torch.rand(3), expected)
    assert [p.name for p in tmp_path.iterdir()] == ["a"]
    with pytest.raises(ValueError, match=r"is not a checkpoint of this trainer: it has no trainer\.json"):
        trainer.load(tmp_path)


def test_a_save_in_the_background_writes_the_state_when_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training goes on while a slow disk delays the save."""
    trainer = make_trainer(**KNOBS)
    trainer.learn(batch(logp_ref=None))
    expected, disk_is_ready, fsync = weights(trainer), threading.Event(), os.fsync

    def slow(descriptor: int) -> None:
        assert disk_is_ready.wait(60)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", slow)
    trainer.save(tmp_path / "a", {"step": 1}, background=True, when_visible=lambda: (tmp_path / "visible").touch())
    trainer.learn(batch(seed=1, logp_ref=None))
    trainer.writer.wait(block=False)
    assert not {"a", "visible"} & {p.name for p in tmp_path.iterdir()}
    disk_is_ready.set()
    trainer.writer.wait()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "visible"]
    other = make_trainer(qwen2(seed=5), **KNOBS)
    assert other.load(tmp_path / "a") == {"step": 1}
    assert all(torch.equal(w, expected[name]) for name, w in weights(other).items())
    assert any(not torch.equal(w, expected[name]) for name, w in weights(trainer).items())


SEALING = """
import json, os, sys, threading
from pathlib import Path
from rlvr.trainer import checkpoint, distributed

rank = distributed.join_group()[0]
view, other_view = Path(sys.argv[1 + rank]), Path(sys.argv[2 - rank])
(view / f"shard-{rank}").write_text(str(rank))
distributed.barrier()
link = threading.Timer(0.5, (view / f"shard-{1 - rank}").symlink_to, [other_view / f"shard-{1 - rank}"])
link.start()
digests = checkpoint.digests_of_all(view)
os.write(1, f"{json.dumps(digests)}\\n".encode())
link.join()
distributed.barrier()
distributed.end_process(0)
"""


@pytest.mark.slow
def test_a_file_that_a_rank_has_just_written_is_sealed_though_no_other_sees_it_yet(tmp_path: Path) -> None:
    """Each of two ranks sees its own file at once, and the other's after half a second. SHA-256 of "0" and of "1"."""
    views = [tmp_path / "first", tmp_path / "other"]
    for view in views:
        view.mkdir()
    expected = {
        "shard-0": "5feceb66ffc86f38d952786c6d696c79c2dbc239dd4e91b46729d73a27fb57e9",
        "shard-1": "6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b",
    }
    assert results(2, "-c", SEALING, *map(str, views)) == [expected] * 2


@pytest.mark.parametrize("block", [True, False])
def test_an_error_in_the_thread_is_raised(tmp_path: Path, block: bool) -> None:
    trainer = make_trainer()
    (tmp_path / "file").touch()
    trainer.save(tmp_path / "file" / "a", {}, background=True)

    def wait() -> None:
        trainer.writer.wait(block=block)
        while not block:  # returns at once; the first call after the failure raises its error
            time.sleep(0.01)
            trainer.writer.wait(block=False)

    with pytest.raises(NotADirectoryError):
        wait()
    trainer.writer.wait()  # the error is raised only once


@pytest.mark.slow
@pytest.mark.parametrize("background", [False, True])
def test_save_killed_at_any_moment_leaves_a_whole_checkpoint_or_none(tmp_path: Path, background: bool) -> None:
    """A process is killed with SIGKILL at its first, second, … fsync of a save, until a save survives.

    In a process of its own: if the tests' process were forked, the child could wait for ever for a lock that another
    thread held."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        assert pool.submit(_saves_killed, tmp_path, background).result() >= 4  # tensors, metadata, state, directory


def _saves_killed(tmp_path: Path, background: bool) -> int:
    """The number of fsyncs at which a save was killed. Asserts that each left a complete checkpoint or none."""
    distributed.join_group()
    trainer = make_trainer()
    expected = weights(trainer)
    killed = 0
    for number in range(1, 30):
        path = tmp_path / str(number) / "step-00000001"
        if not _dies_saving(trainer, path, number, background):
            break
        killed += 1
        visible = [p for p in path.parent.iterdir() if not p.name.startswith(".")]
        if visible:
            assert visible == [path]
            other = make_trainer(qwen2(seed=5))
            assert other.load(path) == {"step": 1}
            assert all(torch.equal(w, expected[name]) for name, w in weights(other).items())
        trainer.save(path, {"step": 1})  # files of the killed process do not prevent it
        assert [p.name for p in path.parent.iterdir()] == ["step-00000001"]
    return killed


def _dies_saving(trainer: Trainer, path: Path, number: int, background: bool) -> bool:
    """Save in a child process that kills itself at fsync `number`. True if it did."""
    distributed.leave_group()  # a group does not survive a fork
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        distributed.join_group()
        calls, fsync = [0], os.fsync

        def deadly(descriptor: int) -> None:
            calls[0] += 1
            if calls[0] == number:
                os.kill(os.getpid(), signal.SIGKILL)
            fsync(descriptor)

        os.fsync = deadly
        try:
            trainer.save(path, {"step": 1}, background=background)
            trainer.writer.wait()
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    distributed.join_group()
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("knobs", [{}, {"lora_rank": 3, "lr": 0.05}])
def test_export_is_a_model_with_the_same_log_probabilities(tmp_path: Path, knobs: dict[str, Any], tied: bool) -> None:
    save_base(tmp_path / "base", tied=tied)
    trainer = make_trainer(qwen2(tied=tied), **{"lr": 0.01, **knobs})
    trainer.learn(batch())
    trainer.save(tmp_path / "step-00000001", {})
    checkpoint.export(tmp_path / "policy", tmp_path / "step-00000001", tmp_path / "base", dtype=torch.float32)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "policy").eval()
    assert (type(model).__name__, model.config._attn_implementation) == ("Qwen2ForCausalLM", "sdpa")
    assert AutoTokenizer.from_pretrained(tmp_path / "policy").eos_token == "end"
    assert {name: p.shape for name, p in model.named_parameters()} == {n: w.shape for n, w in weights(trainer).items()}
    assert all(torch.equal(p, weights(trainer)[name]) for name, p in model.named_parameters())
    actual = trainer.logp(batch())[batch().mask]
    assert torch.allclose(actual, torch.cat(plain_logp(model, batch())), atol=2e-6)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["base", "policy", "step-00000001"]


def test_export_has_the_wanted_precision_and_settings_that_transformers_refuses_to_write(tmp_path: Path) -> None:
    save_base(tmp_path / "base")
    settings = '{"eos_token_id": [14, 3], "temperature": 0.6, "top_p": 0.9}'  # without do_sample
    (tmp_path / "base/generation_config.json").write_text(settings)
    trainer = make_trainer()
    trainer.save(tmp_path / "step-00000001", {})
    checkpoint.export(tmp_path / "policy", tmp_path / "step-00000001", tmp_path / "base", dtype=torch.bfloat16)
    assert (tmp_path / "policy/generation_config.json").read_text() == settings
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "policy")
    assert model.config.dtype == torch.bfloat16
    assert all(torch.equal(p, weights(trainer)[name].bfloat16()) for name, p in model.named_parameters())


def test_export_keeps_the_buffers_of_the_base_policys_files(tmp_path: Path) -> None:
    save_base(tmp_path / "base")  # for its tokenizer
    model = built("deepseek_v3", LATENT)
    ((name, bias),) = stored_buffers(model).items()  # the router adds it to the scores by which it chooses experts
    bias.copy_(torch.tensor([0.4, 1.7, 0.8, 1.3]))
    model.save_pretrained(tmp_path / "base")
    make_trainer(model).save(tmp_path / "step-00000001", {})
    checkpoint.export(tmp_path / "policy", tmp_path / "step-00000001", tmp_path / "base", dtype=torch.bfloat16)
    assert torch.equal(stored_buffers(load_model(tmp_path / "policy", dtype="float32"))[name], bias)


@pytest.mark.parametrize(("ids", "chat", "exported"), [(14, True, [3, 14]), (14, False, 14), ([3, 14], True, [3, 14])])
def test_an_exported_chat_model_ends_its_turns_elsewhere_too(
    tmp_path: Path, ids: Any, chat: bool, exported: Any
) -> None:
    """As vLLM and transformers read generation_config.json. The base model's names only the end of a text, 14."""
    save_base(tmp_path / "base")
    (tmp_path / "base/generation_config.json").write_text(json.dumps({"eos_token_id": ids, "top_p": 0.9}))
    tokenizer = load_tokenizer(tmp_path / "base")
    turn = tokenizer.convert_ids_to_tokens(3)
    tokenizer.add_special_tokens({"additional_special_tokens": [turn]})
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }} " + turn + " {% endfor %}"
    tokenizer.save_pretrained(tmp_path / "base")
    make_trainer().save(tmp_path / "step-00000001", {})
    paths = (tmp_path / name for name in ("policy", "step-00000001", "base"))
    checkpoint.export(*paths, dtype=torch.float32, chat=chat)
    settings = json.loads((tmp_path / "policy/generation_config.json").read_text())
    assert settings == {"eos_token_id": exported, "top_p": 0.9}


def test_weights_have_hugging_face_names_tied_ones_once() -> None:
    for tied in (True, False):
        expected = dict(qwen2(tied=tied).named_parameters())
        actual = weights(make_trainer(qwen2(tied=tied)))
        assert list(actual) == list(expected)
        assert all(torch.equal(actual[name], expected[name]) for name in expected)
