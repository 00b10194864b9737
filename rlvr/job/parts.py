"""The parts of a run that exist before it trains: its task, its base policy, the engine that samples from it."""

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from hydra.utils import instantiate
from omegaconf import DictConfig

from rlvr.config import memory
from rlvr.config.engine import gpus_of_workers, ranks_per_engine
from rlvr.config.schema import as_dict
from rlvr.job.first_responses import FirstResponses
from rlvr.job.policy import evaluated
from rlvr.ledger import digests, rollouts
from rlvr.ledger.policies import weights_digest
from rlvr.ledger.stages import presample_settings
from rlvr.model.hugging_face import PreTrainedTokenizerBase
from rlvr.model.load import load_model, skeleton
from rlvr.model.tokenizer import encode as token_ids
from rlvr.model.tokenizer import end_tokens, load_tokenizer, pad_token
from rlvr.records import Engine, Rollout, Task, TaughtTask
from rlvr.rollout.presample import Presample, Samples
from rlvr.rollout.sampler import Sampler
from rlvr.trainer import distributed
from rlvr.trainer.collate import decode, encode, end_of_turn
from rlvr.trainer.fsdp import Trainer
from rlvr.trainer.knobs import Knobs, Place
from rlvr.trainer.sharded_load import load_for_shards

log = logging.getLogger("rlvr")
A = TypeVar("A")
B = TypeVar("B")
USUALLY_FREE = 0.85  # share of a GPU's memory, before a run uses it
ENDING_S = 30.0  # within which a killed process gives its memory back


def gather_rollouts(mine: list[Rollout], group: dist.ProcessGroup | None = None) -> list[list[Rollout]]:
    """Every rank's groups, in the order of ranks, on every rank; with several ranks, without the problems' text."""
    if dist.get_world_size() == 1:
        return [mine]
    return [rollouts.rollouts_from_bytes(data) for data in distributed.gather_bytes(rollouts.to_bytes(mine), group)]


def special_ids(
    base: Path, tokenizer: PreTrainedTokenizerBase, task: Task, *, chat: bool
) -> tuple[tuple[int, ...], list[int], int | None, int]:
    """(ids that end a response, those of them that are no part of its text, the one that ends a turn if there is one,
    the one that fills rows).

    The task's own end word is part of the answer; a model's end-of-turn token is not.
    """
    turn = end_of_turn(base, tokenizer) if chat else None
    model = skeleton(base)
    ends = end_tokens(model, tokenizer, turn)
    end_word = tokenizer.get_vocab().get(task.end_word) if isinstance(task, TaughtTask) else None
    silent = [token for token in ends if token != end_word]
    return ends, silent, turn, pad_token(model, tokenizer, ends)


def one_thread_at_a_time(work: Callable[[A], B], lock: threading.Lock) -> Callable[[A], B]:
    """A function that does `work`, in one thread at a time."""

    def locked(argument: A) -> B:
        with lock:
            return work(argument)

    return locked


def _room_for_cache(config: DictConfig, device: torch.device, base: Path) -> dict[str, float]:
    """`max_cache_gb`, if the config leaves it open for the engine: computed from the memory of the ranks' GPUs."""
    if config.rollout.engine.get("max_cache_gb", 0) is not None:
        return {}
    gpu_gb = _free_on_gpus(device) / memory.GB if device.type == "cuda" else None
    cache_gb = memory.cache_gb(as_dict(config, resolve=True), gpu_gb, base)
    log.info("rollout.engine.max_cache_gb=%.3g, from the memory that is free while responses are sampled", cache_gb)
    return {"max_cache_gb": cache_gb}


def _free_on_gpus(device: torch.device) -> int:
    """Bytes that are free on this rank's GPU, or on another rank's if there are fewer: vLLM may lie on several.

    The run has nothing on its GPUs yet. Where much is in use, an earlier attempt may still be ending: it is waited for.
    """
    began = time.monotonic()
    while True:
        free, total = torch.cuda.mem_get_info(device)
        free += torch.cuda.memory_reserved(device)  # cached by torch
        waited = time.monotonic() - began
        if free >= USUALLY_FREE * total or waited > ENDING_S:
            break
        if waited < 1:
            log.info("waiting up to %.0f s for other processes to free this GPU's memory", ENDING_S)
        time.sleep(1)
    if free < USUALLY_FREE * total:
        used, all_gb = (total - free) / memory.GB, total / memory.GB
        log.warning("other processes use %.3g of this GPU's %.3g GB: vLLM's cache is smaller by it", used, all_gb)
    least = torch.tensor(free)
    dist.all_reduce(least, dist.ReduceOp.MIN)
    return int(least)


class Parts:
    """Task, base policy, tokenizer, engine and sampler, built from a run's frozen config."""

    def __init__(self, config: DictConfig, store: Path, on_answer: Callable[[], None] = lambda: None) -> None:
        """store: the directory of stages; the first rank builds missing ones. on_answer: see `Sampler`."""
        self.config, self.store = config, store
        rank, world, device = distributed.join_group()
        self.task: Task = instantiate(config.task, _convert_="all")
        self.base = self._shared_base(config, store, rank)
        self.stages = [self.base.name] if self.base.parent == store else []  # ids of the stages that the run uses
        self.tokenizer = tokenizer = load_tokenizer(self.base)
        policy = config.policy or config.model
        chat, system = bool(policy.get("chat")), policy.get("system")
        ends, silent, turn, pad = special_ids(self.base, tokenizer, self.task, chat=chat)
        self.end: Any = tokenizer.eos_token_id if turn is None else turn  # of a known answer
        self.first_responses = FirstResponses(tokenizer.convert_ids_to_tokens(list(ends))) if rank == 0 else None
        self.devices = world + gpus_of_workers(config.rollout.engine)
        shard_over = config.cluster.get("shard_over", "job")  # only SLURM can place ranks on several nodes
        max_tokens = config.rollout.max_tokens or self.task.max_tokens
        self.place = Place(device, pad, max_tokens, shard_over)
        open_engine = instantiate(config.rollout.engine, _partial_=True, _convert_="all")
        self.engine: Engine = open_engine(
            self.base, device=device, eos_token_ids=ends, pad_token_id=pad, **_room_for_cache(config, device, self.base)
        )
        tokenizing = threading.Lock()  # fast tokenizers fail if two threads use one at the same time
        self.sampler = Sampler(
            self.task,
            self.engine,
            encode=one_thread_at_a_time(
                lambda problems: encode(tokenizer, problems, chat=chat, system=system), tokenizing
            ),
            decode=one_thread_at_a_time(lambda tokens: decode(tokenizer, tokens, silent), tokenizing),
            encode_reply=one_thread_at_a_time(lambda text: token_ids(tokenizer, text), tokenizing),
            rank=rank,
            world=world,
            gather=gather_rollouts,
            new_board=distributed.new_board,
            ranks_per_engine=ranks_per_engine(config.rollout.engine, world) if world > 1 else 1,
            on_answer=on_answer,
        )

    def _shared_base(self, config: DictConfig, store: Path, rank: int) -> Path:
        """The directory of the base policy, the same on all ranks.

        If it is a stage, the first rank builds it (transformers saves on no other rank), and the others wait until they
        see it. Raises RuntimeError if a rank reads other bytes than were written.
        """
        base = None if rank else self._base(config, store)
        stage = distributed.of_first_rank(base.name if base is not None and base.parent == store else None)
        if stage is not None:
            distributed.await_paths([store / stage])
        if base is not None:
            return base
        if stage is None:
            return self._base(config, store)
        if fault := digests.fault_of(store / stage):
            raise RuntimeError(f"stage {stage}, as rank {rank} reads it, differs from what rank 0 wrote: {fault}")
        return store / stage

    def _base(self, config: DictConfig, store: Path) -> Path:
        """The directory of the policy that training starts from, or that an evaluation evaluates."""
        if config.policy:
            return evaluated(config.policy, store, dtype=config.rollout.engine.dtype)
        return instantiate(config.model, self.task, store, _convert_="all")

    def trainer(self) -> Trainer:
        """A trainer that starts from the base policy."""
        # With several ranks each reads its part of the weights only: none holds the whole model beside the engine's.
        model = load_for_shards(self.base) if distributed.world() > 1 else load_model(self.base, dtype=torch.float32)
        knobs: Knobs = instantiate(self.config.trainer, _convert_="all")
        base = "" if knobs.lora_rank is None else weights_digest(self.base)
        return Trainer(model, instantiate(self.config.loss), self.place, knobs, base=base)

    def samples(self) -> Samples | None:
        """The base policy's own answers, if the loss selects `presample`. The engine must still hold its weights."""
        if self.config.get("presample") is None:
            return None
        knobs: Presample = instantiate(self.config.presample, _convert_="all")
        settings, max_tokens = presample_settings(as_dict(self.config)), self.place.max_tokens
        samples = knobs.open(self.sampler, self.store, base=self.base, max_tokens=max_tokens, settings=settings)
        self.stages.append(samples.stage_id)
        return samples

    def close(self) -> None:
        self.engine.close()
        self.task.close()
