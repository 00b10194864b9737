"""The program of each rank of tests/trainer/test_ranks.py, started by rlvr.job.ranks: `ranks.py DIRECTORY [RANKS]`.

RANKS: train with a copy of the weights for each so many ranks, as if these were a node.
"""

import contextlib
import os
import pickle
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule
from torch.utils._python_dispatch import TorchDispatchMode

from rlvr.loss import dph
from rlvr.loss.clip_cov import clip_cov
from rlvr.loss.entadv import entadv
from rlvr.loss.flowrl import flowrl
from rlvr.loss.kl_cov import kl_cov
from rlvr.loss.lad import lad
from rlvr.loss.pacs import pacs
from rlvr.loss.ppo import ppo
from rlvr.loss.simko import simko
from rlvr.objective import divergence
from rlvr.objective.batch import Batch, Policy, Terms
from rlvr.trainer import distributed
from rlvr.trainer.fsdp import Trainer
from rlvr.trainer.sharded_load import load_for_shards
from tests.trainer.losses import SELECTIVE
from tests.trainer.tiny import batch, frozen_gathered, gradients, make_trainer, surrogate, weights

# Rows of two kinds, each averaged over its own tokens, and a reference policy that runs along.
STREAMS = partial(dph.js_definition, clip_low=0.2, clip_high=0.2, coef=0.5)

CLIP: dict[str, Any] = {"clip_low": 0.2, "clip_high": 0.28}
CLIP_COV = partial(clip_cov, **CLIP, fraction=0.2, low=0.0, high=9.0)
PPO = partial(ppo, **CLIP, dual_clip=None, value_coefficient=0.5, value_clip=0.2)
FLOWRL = partial(flowrl, **CLIP, beta=15.0, weight="clip")


def lopsided(policy: Policy, batch: Batch) -> Terms:
    """A row that begins with word 7 is weighted by 2^10, so that one rank overflows."""
    terms = surrogate(policy, batch)
    return replace(terms, loss=terms.loss * torch.where(batch.tokens[:, :1] == 7, 2.0**10, 1.0))


# One update, then its gradient. With small micro-batches and single groups a rank is sometimes without work.
SIMKO: Any = {"num_candidates": 3, "quantile": 0.5, "share": 0.25, "penalty": 1.1}
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "small micro-batches": {"token_budget": 1},
    "padded": {"packing": False, "token_budget": 30},
    "clipped, to the base policy": {"clip_norm": 0.05, "kl": 0.3, "base_kl": True, "entropy": 0.1},
    "sequence mean": {"aggregation": "seq-mean-token-mean", "shared_prompt": "always"},
    "recomputed": {"activation_checkpointing": True, "token_budget": 1},
    "two streams": {"loss": STREAMS, "token_budget": 1},
    "bfloat16": {"dtype": "bfloat16"},
    "float16": {"dtype": "float16", "token_budget": 1, "clip_norm": 0.05},
    "float16, overflowing": {"loss": lopsided, "dtype": "float16", "token_budget": 1, "epochs": 9, "lr": 1e-6},
    "one group": {"updates": 3},
    "first pass": {"loss": SELECTIVE, "token_budget": 1},
    "kl_cov": {"loss": partial(kl_cov, fraction=0.3, coefficient=1.0), "token_budget": 1},
    "clip_cov": {"loss": CLIP_COV, "shared_prompt": "always"},
    "entadv": {"loss": partial(entadv, **CLIP, dual_clip=None, alpha=0.4, kappa=2.0), "token_budget": 1},
    "simko": {"loss": partial(simko, **SIMKO, **CLIP, dual_clip=None), "token_budget": 1},
    "lad": {"loss": partial(lad, divergence=divergence.js, eta=0.25, ratio="sequence"), "token_budget": 1},
    "pacs": {"loss": partial(pacs, beta=1.0, score="rloo", weight="balanced", std_floor=0.1), "token_budget": 1},
    "value head": {"loss": PPO, "token_budget": 1},
    "value head, clipped, one group": {"loss": PPO, "updates": 3, "clip_norm": 0.05},
    "log Z": {"loss": FLOWRL, "token_budget": 1},
    "adapters, to the base policy": {"lora_rank": 2, "kl": 0.3, "base_kl": True, "token_budget": 1},
    "adapters, bfloat16": {"lora_rank": 2, "dtype": "bfloat16"},
    "log Z, reference reset": {"loss": FLOWRL, "updates": 3, "reference_every": 1},
}


# From weights that each rank reads itself: the heads beside them are in no file.
SHARDED: dict[str, dict[str, Any]] = {
    "value head": {"loss": PPO},
    "critic": {"loss": PPO, "critic": "own"},
    "log Z": {"loss": FLOWRL},
    "no head": {},
}


# Six updates in all, the later ones off-policy; `eps` makes Adam's step a smooth function of the gradient.
FLOWRL_OFTEN: dict[str, Any] = {
    "loss": FLOWRL,
    "updates": 2,
    "lr": 0.005,
    "head_lr": 0.02,
    "eps": 0.01,
    "token_budget": 1,
}


def data() -> Batch:
    rows = batch(logp_ref=None)
    return replace(rows, value_old=rows.logp_old / 9, returns=rows.mask * rows.reward[:, None])


@contextlib.contextmanager
def fresh_memory_is_nan() -> Iterator[None]:
    """Context in which memory that has not been written to reads as NaN."""
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.utils.deterministic.fill_uninitialized_memory
        assert bool(torch.empty(3).isnan().all())
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def learn_three_times(trainer: Trainer) -> dict[str, Any]:
    metrics = [trainer.learn(data()) for _ in range(3)]
    named = {f"heads.{name}": distributed.full(p.detach()) for name, p in trainer.actor.heads.named_parameters()}
    return {"metrics": metrics, "weights": weights(trainer) | named}


def learn(knobs: dict[str, Any]) -> dict[str, Any]:
    trainer = make_trainer(**knobs)
    rows = data()
    metrics = trainer.learn(replace(rows, kind=(rows.group == 1).long()) if knobs.get("loss") is STREAMS else rows)
    result = {"gradients": gradients(trainer), "metrics": metrics, "gathered": [frozen_gathered(trainer)]}
    result["logp"] = trainer.logp(data())
    result["gathered"].append(frozen_gathered(trainer))
    return result


# As in a run: several updates of several rollouts, stopped in between.
TRAINING: dict[str, Any] = {"updates": 2, "lr": 0.01, "betas": (0.9, 0.99), "clip_norm": 0.1, "token_budget": 20}


def read(directory: Path, rank: int) -> None:
    """Go on from the checkpoint of two ranks with any number of them."""
    trainer = make_trainer(**TRAINING)
    trainer.load(directory / "step-2")
    kept = weights(trainer)
    metrics = trainer.learn(batch(seed=2))
    torch.save({"weights": kept, "metrics": metrics}, directory / f"resumed-{rank}.pt")


def curve(**knobs: Any) -> dict[str, list[float]]:
    """Loss, entropy and gradient norm over five rollouts of two updates each."""
    trainer = make_trainer(**{**TRAINING, **knobs})
    steps = [trainer.learn(batch(seed=seed)) for seed in range(5)]
    return {name: [step[name] for step in steps] for name in ("loss/total", "policy/entropy", "optim/grad_norm")}


# Cases of training with a copy of the weights on each node.
COPIED = ("plain", "small micro-batches", "clipped, to the base policy", "one group", "value head", "log Z")
COPIED += ("adapters, to the base policy", "float16, overflowing")


class Reductions(TorchDispatchMode):
    """Counts the sums of tensors over ranks, by operation; not those of single numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: tuple[Any, ...] = (), knobs: dict[str, Any] | None = None
    ) -> Any:
        name = function.name()
        if name in ("c10d::allreduce_", "c10d::_reduce_scatter_base_"):
            tensors = arguments[0] if isinstance(arguments[0], list) else [arguments[0]]
            self.counts[name] += any(tensor.numel() > 1 for tensor in tensors)
        return function(*arguments, **(knobs or {}))


def train_copies(directory: Path, rank: int) -> None:
    """Train with a copy of the weights on each of two nodes."""
    results: dict[str, Any] = {name: learn({**CASES[name], "shard_over": "node"}) for name in COPIED}
    with Reductions() as reductions:
        make_trainer(token_budget=1, shard_over="node").learn(data())
    trainer = make_trainer(**TRAINING, shard_over="node")
    for seed in range(2):
        trainer.learn(batch(seed=seed))
    results["reductions"] = dict(reductions.counts)
    results["layers"] = sum(isinstance(module, FSDPModule) for module in trainer.actor.modules())
    cpu = torch.device("cpu")
    backends: list[Any] = [group._get_backend(cpu) for group in distributed.mesh(cpu, "node").get_all_groups()]
    results["timeouts"] = [backend.options._timeout.total_seconds() for backend in backends]
    trainer.save(directory / "copied", {"seen": 2}, background=True)
    trainer.writer.wait()
    torch.save({**results, "weights": weights(trainer)}, directory / f"copied-{rank}.pt")


class GatheredTypes(TorchDispatchMode):
    """Collects the types of the tensors that ranks gather."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[torch.dtype] = set()

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: tuple[Any, ...] = (), knobs: dict[str, Any] | None = None
    ) -> Any:
        if function is torch.ops._c10d_functional.all_gather_into_tensor.default:
            self.seen.add(arguments[0].dtype)
        return function(*arguments, **(knobs or {}))


def _refuse_pickles(*_: object) -> None:
    raise AssertionError("data from another rank was unpickled")


def main(directory: Path, ranks_of_node: str | None = None) -> None:
    rank, world, device = distributed.join_group()
    pickle.load = pickle.loads = pickle.Unpickler = _refuse_pickles  # type: ignore[assignment,misc]
    torch.distributed.distributed_c10d._unpickler = _refuse_pickles  # type: ignore[attr-defined]
    if ranks_of_node is not None:
        os.environ["LOCAL_WORLD_SIZE"] = ranks_of_node
        train_copies(directory, rank)
        distributed.end_process(0)
    if world > 2:
        read(directory, rank)
        distributed.end_process(0)
    results = {name: learn(knobs) for name, knobs in CASES.items()}
    results["FlowRL"] = learn_three_times(make_trainer(**FLOWRL_OFTEN))
    trainer = make_trainer(**TRAINING)
    for seed in range(2):
        trainer.learn(batch(seed=seed))
    trainer.save(directory / f"step-{world}", {"seen": 2}, background=True)
    trainer.logp(batch())  # collectives of its own, while the checkpoint is written
    trainer.writer.wait()
    kept = weights(trainer)
    with GatheredTypes() as types:
        results["half weights"] = {name: tensor.clone() for name, tensor in trainer.weights(torch.bfloat16)}
    results["gathered types"] = types.seen
    if (directory / "step-1").exists() and world > 1:
        trainer.load(directory / "step-1")
        results["loaded"] = {"weights": weights(trainer), "averages": gradients(trainer)}
    if (directory / "base").exists():
        empty = make_trainer(load_for_shards(directory / "base"), kl=0.1, base_kl=True, lr=0.01)
        local = {name: distributed.local(p).shape[0] for name, p in empty.actor.model.named_parameters()}
        results["sharded load"] = {"weights": weights(empty), "metrics": empty.learn(data()), "rows": local}
        results["sharded load"]["after"] = weights(empty)
        adapted = make_trainer(load_for_shards(directory / "base"), lora_rank=2, kl=0.1, base_kl=True)
        with fresh_memory_is_nan():
            for name, knobs in SHARDED.items():
                sharded = make_trainer(load_for_shards(directory / "base"), base_kl=True, **knobs)
                results[f"sharded load, {name}"] = learn_three_times(sharded)
        results["sharded load, adapters"] = {"metrics": adapted.learn(data()), "gradients": gradients(adapted)}
    board = distributed.new_board()
    other = distributed.new_board()
    assert board is not None
    assert other is not None
    nothing = board.read(f"of {1 - rank}") if rank == 0 else None  # rank 1 has not posted yet
    distributed.barrier()
    board.post(f"of {rank}", str(rank))
    distributed.barrier()
    results["board"] = [nothing, board.read("of 0"), board.read("of 1"), other.read("of 0")]
    results["curve"] = curve()
    results["collectives"] = {
        "gather": distributed.gather([rank]),
        "any": (distributed.any_rank(rank == world - 1), distributed.any_rank(False)),
        "device": str(device),
    }
    torch.save({**results, "weights": kept}, directory / f"rank-{rank}-of-{world}.pt")
    distributed.end_process(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
