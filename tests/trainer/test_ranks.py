"""Two real processes train, save and load as a single one does, and four resume from a checkpoint of two."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from rlvr.trainer import checkpoint, distributed
from tests.support.ranks import lines
from tests.support.ranks import start as start_ranks
from tests.trainer import ranks
from tests.trainer.tiny import batch, gradients, make_trainer, qwen2, save_base, weights, worst

pytestmark = pytest.mark.slow

# Two processes add in another order than one: float32 rounding, as a fraction of the largest gradient.
CLOSE = 2e-6


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    trainer = make_trainer(**ranks.TRAINING)
    path = tmp_path_factory.mktemp("ranks")
    for seed in range(2):
        trainer.learn(batch(seed=seed))
    trainer.save(path / "step-1", {"seen": 2})
    save_base(path / "base", seed=3)
    start(2, path)
    return path


def start(num_ranks: int, path: Path, *arguments: str) -> None:
    lines(start_ranks(num_ranks, str(Path(ranks.__file__)), str(path), *arguments), timeout_s=600)


@pytest.fixture(scope="module")
def results(directory: Path) -> list[dict[str, Any]]:
    return [torch.load(directory / f"rank-{rank}-of-2.pt") for rank in range(2)]


@pytest.mark.parametrize("case", ranks.CASES)
def test_two_ranks_have_the_gradient_and_the_metrics_of_one(case: str, results: list[dict[str, Any]]) -> None:
    single = ranks.learn(ranks.CASES[case])
    half = "float16" in case
    close = 0.02 if half else CLOSE
    for rank in results:
        assert worst(rank[case]["gradients"], single["gradients"]) < close
        assert rank[case]["metrics"] == pytest.approx(single["metrics"], rel=max(close, 1e-5), abs=1e-6)
        assert torch.allclose(rank[case]["logp"], single["logp"], atol=0.3 if half else 1e-5)


def test_full_weights_of_frozen_copies_are_freed_after_use(results: list[dict[str, Any]]) -> None:
    """After `learn`, before an engine samples, and after `policy_of`: of every rank and every layer."""
    for case in ranks.CASES:
        assert [rank[case]["gathered"] for rank in results] == [[0, 0]] * 2, case


def test_weights_for_an_engine_in_half_precision_are_gathered_in_it(results: list[dict[str, Any]]) -> None:
    for rank in results:
        assert rank["gathered types"] == {torch.bfloat16}
        half, whole = rank["half weights"], rank["weights"]
        assert half.keys() == whole.keys()
        assert all(torch.equal(half[name], weight.to(torch.bfloat16)) for name, weight in whole.items())


def test_ranks_agree_to_the_last_bit_and_skip_the_same_updates(results: list[dict[str, Any]]) -> None:
    for case in ranks.CASES:
        assert results[0][case]["metrics"] == results[1][case]["metrics"]
        assert torch.equal(results[0][case]["logp"], results[1][case]["logp"])
    assert 0 < results[0]["float16, overflowing"]["metrics"]["optim/skipped"] < 1  # of nine


def test_ranks_read_what_others_have_posted_and_gathered(results: list[dict[str, Any]]) -> None:
    for rank in results:
        assert rank["board"] == [None, "0", "1", None]
        assert rank["collectives"] == {"gather": [[0], [1]], "any": (True, False), "device": "cpu"}


def test_checkpoint_of_two_ranks_is_read_by_one_to_the_last_bit(directory: Path, results: list[dict[str, Any]]) -> None:
    trainer = make_trainer(**ranks.TRAINING)
    assert trainer.load(directory / "step-2") == {"seen": 2}
    assert all(torch.equal(w, results[0]["weights"][name]) for name, w in weights(trainer).items())
    trainer.learn(batch(seed=2))


def test_checkpoint_of_two_ranks_is_continued_by_four(directory: Path, results: list[dict[str, Any]]) -> None:
    start(4, directory)
    single = make_trainer(**ranks.TRAINING)
    single.load(directory / "step-2")
    expected = single.learn(batch(seed=2))
    for rank in range(4):
        resumed = torch.load(directory / f"resumed-{rank}.pt")
        assert all(torch.equal(w, results[0]["weights"][name]) for name, w in resumed["weights"].items())
        assert resumed["metrics"] == pytest.approx(expected, rel=1e-5, abs=1e-6)


@pytest.fixture(scope="module")
def copied(directory: Path) -> list[dict[str, Any]]:
    """Four ranks, as if on two nodes that have a copy of the weights each."""
    start(4, directory, "2")
    return [torch.load(directory / f"copied-{rank}.pt") for rank in range(4)]


@pytest.mark.parametrize("case", ranks.COPIED)
def test_nodes_with_copies_have_gradient_and_metrics_of_one_rank(case: str, copied: list[dict[str, Any]]) -> None:
    single = ranks.learn(ranks.CASES[case])
    for rank in copied:
        assert worst(rank[case]["gradients"], single["gradients"]) < CLOSE
        assert rank[case]["metrics"] == pytest.approx(single["metrics"], rel=1e-5, abs=1e-6)
        assert torch.equal(rank[case]["logp"], copied[0][case]["logp"])


def test_nodes_with_copies_add_up_gradients_once_per_update(copied: list[dict[str, Any]]) -> None:
    """One update of several micro-batches, the gradients of which are summed within a node."""
    for rank in copied:
        assert rank["reductions"]["c10d::allreduce_"] == rank["layers"]
        assert rank["reductions"]["c10d::_reduce_scatter_base_"] >= 2 * rank["layers"]
        assert rank["timeouts"] == [distributed.TIMEOUT.total_seconds()] * 2  # of the groups, as of all ranks


def test_the_checkpoint_of_nodes_with_copies_holds_one_and_is_read_by_one_rank(
    directory: Path, copied: list[dict[str, Any]]
) -> None:
    trainer = make_trainer(**ranks.TRAINING)
    assert trainer.load(directory / "copied") == {"seen": 2}
    for rank in copied:
        assert all(torch.equal(w, rank["weights"][name]) for name, w in weights(trainer).items())
    sizes = [(directory / "copied" / f"shard-{rank}.safetensors").stat().st_size for rank in range(4)]
    assert min(sizes[:2]) > 10_000
    assert max(sizes[2:]) < 200  # a header without tensors


def test_checkpoint_of_one_rank_is_read_by_two_to_the_last_bit(directory: Path, results: list[dict[str, Any]]) -> None:
    trainer = make_trainer(**ranks.TRAINING)
    trainer.load(directory / "step-1")
    for rank in results:
        assert all(torch.equal(w, rank["loaded"]["weights"][name]) for name, w in weights(trainer).items())
        assert all(torch.equal(g, rank["loaded"]["averages"][name]) for name, g in gradients(trainer).items())


def test_what_two_ranks_saved_is_exported_by_one(directory: Path, results: list[dict[str, Any]]) -> None:
    checkpoint.export(directory / "policy", directory / "step-2", directory / "base", dtype=torch.float32)
    model = AutoModelForCausalLM.from_pretrained(directory / "policy")
    assert all(torch.equal(p, results[0]["weights"][name]) for name, p in model.named_parameters())


def test_ranks_that_read_their_own_rows_have_the_model_of_one(results: list[dict[str, Any]]) -> None:
    """Bit for bit after the load; after an update as near as two ranks ever are to one."""
    single = make_trainer(qwen2(seed=3), kl=0.1, base_kl=True, lr=0.01)
    before, metrics, after = weights(single), single.learn(ranks.data()), weights(single)
    for rank in (of_rank["sharded load"] for of_rank in results):
        assert all(torch.equal(w, before[name]) for name, w in rank["weights"].items())
        assert rank["weights"].keys() == before.keys()
        assert rank["metrics"] == pytest.approx(metrics, rel=1e-5, abs=1e-6)
        assert worst(rank["after"], after) < 1e-3  # Adam's first step is lr times the sign of the gradient
        assert all(2 * rows == len(before[name]) for name, rows in rank["rows"].items())


@pytest.mark.parametrize("case", ranks.SHARDED)
def test_heads_beside_weights_that_ranks_read_themselves_start_alike(case: str, results: list[dict[str, Any]]) -> None:
    """Three updates on two ranks, with fresh memory filled with NaN."""
    single = ranks.learn_three_times(make_trainer(qwen2(seed=3), base_kl=True, **ranks.SHARDED[case]))
    for rank in (of_rank[f"sharded load, {case}"] for of_rank in results):
        for actual, expected in zip(rank["metrics"], single["metrics"], strict=True):
            assert actual == pytest.approx(expected, rel=1e-4, abs=1e-6)
        assert worst(rank["weights"], single["weights"]) < 1e-4


def test_flowrl_learns_the_same_policy_and_log_z_on_two_ranks(results: list[dict[str, Any]]) -> None:
    single = ranks.learn_three_times(make_trainer(**ranks.FLOWRL_OFTEN))
    assert abs(single["metrics"][-1]["loss/log_z"]) > 0.01  # it starts at 0
    for rank in (of_rank["FlowRL"] for of_rank in results):
        for actual, expected in zip(rank["metrics"], single["metrics"], strict=True):
            assert actual == pytest.approx(expected, rel=1e-5, abs=5e-6)  # log Z is a sum of 16 terms that cancel
        assert worst(rank["weights"], single["weights"]) < CLOSE


def test_adapters_beside_weights_that_each_rank_reads_itself(results: list[dict[str, Any]]) -> None:
    single = make_trainer(qwen2(seed=3), lora_rank=2, kl=0.1, base_kl=True)
    metrics = single.learn(ranks.data())
    for rank in (of_rank["sharded load, adapters"] for of_rank in results):
        assert rank["metrics"] == pytest.approx(metrics, rel=1e-5, abs=1e-6)
        assert worst(rank["gradients"], gradients(single)) < CLOSE


def test_curves_are_the_same_for_any_ranks_micro_batches_and_layouts(results: list[dict[str, Any]]) -> None:
    """One rank and two, groups one by one and all at once, packed and padded: ten updates in float32, 1e-4."""
    expected = ranks.curve()
    assert len({f"{value:.3f}" for value in expected["loss/total"]}) == 5
    ways: list[dict[str, Any]] = [
        *({"token_budget": 1}, {"token_budget": 16384}, {"packing": False}, {"shared_prompt": "always"}),
        *({"packing": False, "token_budget": 1}, {"activation_checkpointing": True}),
    ]
    for actual in [*(rank["curve"] for rank in results), *(ranks.curve(**way) for way in ways)]:
        for name, values in expected.items():
            assert actual[name] == pytest.approx(values, rel=1e-4, abs=1e-5)


ALONE = """
import sys, time
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
from rlvr.trainer import distributed

dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
dist.destroy_process_group = lambda: time.sleep(600)  # as NCCL's does while another rank sits in a collective
distributed.end_process(int(sys.argv[1]), alone=True)
"""


def test_a_rank_that_fails_alone_does_not_wait_for_the_others_to_leave() -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    assert subprocess.run([sys.executable, "-c", ALONE, "5"], env=environment, timeout=120).returncode == 5
