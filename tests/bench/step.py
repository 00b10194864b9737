"""Seconds of a whole training step, ours and TRL's GRPOTrainer in turn: generate, judge, one optimiser update.

Both start from one model directory (random weights of the shape of conf/model/maze_3m.yaml, and of SmolLM2-135M) and
have the same prompts, numbers of samples and lengths of responses; neither has a KL term. Ours is all that `rlvr.run`
does for a step, the transfer of weights to the engine included.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from hydra import compose
from hydra.utils import instantiate
from omegaconf import DictConfig
from transformers import AutoConfig, AutoModelForCausalLM

from rlvr.model.load import load
from rlvr.model.tokenizer import word_tokenizer
from rlvr.records import Problem, Reward, Sampling, Split
from rlvr.rollout.sampler import Sampler
from rlvr.rollout.selection import Selection, select_groups
from rlvr.rollout.stream import Stream
from rlvr.task.maze import VOCABULARY, Maze
from rlvr.trainer import distributed
from rlvr.trainer.collate import collate, decode, encode
from rlvr.trainer.fsdp import Trainer
from rlvr.trainer.knobs import Place
from tests.bench.rollout import MAZE_3M, SMOLLM2, Sampled
from tests.bench.row import Row, in_turn, row
from tests.support.composing import composing

# Peers are (precision, responses per forward pass). "autocast" keeps float32 weights, as we do. For mazes, 64, 128 and
# 256 of the 512 responses differ by less than a tenth at every precision, and 512 at once are slower.
TARGET = 3.0


@dataclass(frozen=True)
class Work(Sampled):
    """One step, and TRL's settings."""

    peers: Sequence[tuple[str, int]] = ()


MAZE = Work(
    "training step", MAZE_3M, prompts=32, new_tokens=32, peers=(("float32", 128), ("autocast", 128), ("bfloat16", 64))
)
PRETRAINED = Work(
    "training step of SmolLM2",
    SMOLLM2,
    prompts=8,
    samples=8,
    new_tokens=16,
    rounds=1,
    peers=(("float32", 16), ("bfloat16", 16)),  # at 64 both together need more than 24 GB
)


class Parity:
    """A task whose verifier costs nothing: 1 for a response with an odd number of different words."""

    name = "parity"

    def __init__(self, prompts: Sequence[str]) -> None:
        self.prompts = prompts

    def size(self, split: Split) -> int | None:
        return None

    def problem(self, split: Split, index: int) -> Problem:
        return Problem(str(index), self.prompts[index % len(self.prompts)])

    def reward(self, answers: Sequence[tuple[Problem, str]]) -> list[Reward]:
        odd = [len(set(text.split())) % 2 for _, text in answers]
        return [Reward(float(value), "correct" if value else "wrong") for value in odd]

    def close(self) -> None: ...


def composed(work: Work, dtype: str) -> DictConfig:
    """A user's config for this work; all that TRL does not compute is off."""
    overrides = [
        *("loss=grpo", "model=maze_3m", "lr=1e-5", f"rollout.prompts={work.prompts}"),
        *(f"rollout.samples={work.samples}", f"rollout.max_tokens={work.new_tokens}"),
        *("rollout.dynamic_sampling=none", f"rollout.engine.dtype={dtype}", "rollout.logp_old=engine"),
        *("trainer.updates=1", f"trainer.dtype={dtype}", "trainer.base_kl=false"),
    ]
    with composing():
        return compose("run", overrides)


def save_model(directory: Path, work: Work) -> None:
    """Random weights, tokenizer and prompts.json, for both sides."""
    torch.manual_seed(0)
    words = [*VOCABULARY, *(f"word{i}" for i in range(work.architecture["vocab_size"] - len(VOCABULARY)))]
    AutoModelForCausalLM.from_config(AutoConfig.for_model(**work.architecture)).save_pretrained(directory)
    word_tokenizer(words, Maze.end_word).save_pretrained(directory)
    draw = np.random.default_rng(0)
    shown = [word for word in VOCABULARY if word != Maze.end_word]
    texts = [" ".join(draw.choice(shown, size=64 + 4 * (index % 4))) for index in range(work.prompts)]
    (directory / "prompts.json").write_text(json.dumps(texts))


def ours(directory: Path, work: Work, dtype: str) -> Callable[[], float]:
    """A function that does one step, as rlvr/job/loop.py does it, and returns its seconds."""
    config = composed(work, dtype)
    rollout = config.rollout
    model, tokenizer = load(directory, dtype="float32")
    engine_model, _ = load(directory, dtype="float32")
    pad = tokenizer.pad_token_id
    distributed.join_group()
    place = Place(torch.device("cpu"), pad, work.new_tokens)
    trainer = Trainer(model, instantiate(config.loss), place, instantiate(config.trainer, _convert_="all"))
    # End token −1 never comes: responses have full length, as TRL's have under min_new_tokens.
    engine = instantiate(rollout.engine, _partial_=True)(engine_model, eos_token_ids=[-1], pad_token_id=pad)
    advantage = instantiate(config.advantage)
    task = Parity(json.loads((directory / "prompts.json").read_text()))
    stream = Stream(task, config.seed)
    sampler = Sampler(task, engine, lambda p: encode(tokenizer, p, chat=False), lambda t: decode(tokenizer, t, []))

    def step() -> float:
        start = time.perf_counter()
        engine.sync(trainer.weights())
        sampling = Sampling(work.new_tokens, config.seed, stream.position, rollout.temperature, rollout.top_p)
        selection = Selection(rollout.prompts, rollout.samples, rollout.dynamic_sampling, rollout.max_rounds)
        groups, spent = select_groups(sampler, stream, sampling, selection)
        assert spent.tokens == work.prompts * work.samples * work.new_tokens
        trainer.learn(collate(groups, advantage, pad_token_id=engine.pad_token_id))
        return time.perf_counter() - start

    return step


class Peer:
    """TRL in a process of its own, one step at a time."""

    def __init__(self, directory: Path, work: Work, precision: str, micro_batch: int) -> None:
        self.name = f"TRL GRPOTrainer, {precision}, micro-batch {micro_batch}"
        self.log = directory / f"trl-{precision}-{micro_batch}.log"
        options = {"precision": precision, "micro-batch": micro_batch, "prompts": work.prompts, "samples": work.samples}
        options |= {"new-tokens": work.new_tokens, "steps": 1 + work.rounds, "threads": torch.get_num_threads()}
        # -P: else `import vllm` would find tests/bench/vllm.py.
        command = [sys.executable, "-P", Path(__file__).with_name("trl_peer.py"), directory]
        command += [f"--{name}={value}" for name, value in options.items()]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                list(map(str, command)),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=os.environ | {"HF_HUB_OFFLINE": "1"},
            )

    def __call__(self) -> float:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # the process has ended, which the empty line below shows
            print(file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} ended early:\n{self.log.read_text()[-3000:]}")
        return json.loads(line)["seconds"]

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


def measure(work: Work, peers: Sequence[tuple[str, int]]) -> tuple[dict[str, float], dict[str, float]]:
    """Median seconds per step of our precisions and of TRL's settings, one step of each in turn."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        save_model(Path(folder), work)
        started = [stack.enter_context(contextlib.closing(Peer(Path(folder), work, *setting))) for setting in peers]
        steps: dict[str, Callable[[], float]] = {d: ours(Path(folder), work, d) for d in ("float32", "bfloat16")}
        median = in_turn(steps | {peer.name: peer for peer in started}, work.rounds)
    return {d: median[d] for d in steps}, {p.name: median[p.name] for p in started}


def rows(*, quick: bool) -> Iterator[Row]:
    """float32 beside TRL's best float32 setting, bfloat16 beside TRL's best setting of all."""
    for work in (replace(MAZE, prompts=2, samples=4, new_tokens=4, rounds=1),) if quick else (MAZE, PRETRAINED):
        ours_s, peers_s = measure(work, () if quick else work.peers)
        for name, seconds in peers_s.items():
            print(f"{work.name}, {name}: {seconds:.2f} s", file=sys.stderr)
        for dtype, seconds in ours_s.items():
            settings = [name for name in peers_s if dtype != "float32" or "float32" in name]
            best = min(settings, key=lambda name: peers_s[name], default=None)
            peer_s = None if best is None else peers_s[best]
            yield row(f"{work.name}, {dtype}", seconds, "s", best, peer_s, smaller=True, target=TARGET)
