"""What a run starts from: its task, its base policy, and the engine that samples from it.

`python -m rlvr.job.start RUN_DIR STAGE` builds a stage of the run (and what it is built on) and stops.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import sys
from pathlib import Path
from typing import Any

from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from rlvr.config import imports, schema
from rlvr.ledger.attempt import cause_of
from rlvr.model.load import skeleton
from rlvr.model.tokenizer import end_tokens, load_tokenizer
from rlvr.records import Engine, Task, TaughtTask
from rlvr.rollout.collect import Sampler
from rlvr.rollout.presample import Samples, samples
from rlvr.trainer import distributed
from rlvr.trainer.collate import decode, encode


class Start:
    """Built from a run's frozen config. `store`: where stages are kept; the first rank builds what is missing."""

    def __init__(self, config: DictConfig, store: Path) -> None:
        self.config, self.store = config, store
        self.rank, self.world, self.device = distributed.start()
        self.task: Task = instantiate(config.task, _convert_="all")
        if self.rank:
            distributed.barrier()  # the first rank makes the base policy: transformers saves on no other
        self.base: Path = instantiate(config.model, self.task, store, _convert_="all")
        if not self.rank:
            distributed.barrier()
        self.stages = [self.base.name] if self.base.parent == store else []  # ids of those used
        model, tokenizer = skeleton(self.base), load_tokenizer(self.base)
        self.tokenizer, ends = tokenizer, end_tokens(model, tokenizer)
        self.pad = tokenizer.pad_token_id if isinstance(tokenizer.pad_token_id, int) else ends[0]
        # An end word of the task's own is part of the answer; a model's end-of-turn token is not.
        spoken = tokenizer.get_vocab().get(self.task.end_word) if isinstance(self.task, TaughtTask) else None
        silent = [e for e in ends if e != spoken]
        self.max_tokens: int = config.rollout.max_tokens or self.task.max_tokens
        self.engine: Engine = partial(config.rollout.engine)(
            self.base, device=self.device, eos_token_ids=ends, pad_token_id=self.pad
        )
        self.sampler = Sampler(
            self.task,
            self.engine,
            lambda problems: encode(tokenizer, problems, chat=config.model.get("chat", False)),
            lambda tokens: decode(tokenizer, tokens, silent),
            self.rank,
            self.world,
            distributed.gather,
        )

    def samples(self) -> Samples | None:
        """The base policy's own answers, of a run whose loss brings `presample` along. The engine still holds it."""
        made = samples(self.config, self.sampler, self.base, self.store, max_tokens=self.max_tokens)
        self.stages += [made.stage_id] if made else []
        return made

    def close(self) -> None:
        self.engine.close()
        self.task.close()


def partial(node: DictConfig) -> Any:
    """The component with its knobs bound, waiting for what the caller passes."""
    return instantiate(node, _partial_=True, _convert_="all")


def build(run_dir: Path, stage_id: str) -> None:
    """Raises ValueError if the run does not start from that stage, and whatever building it raises."""
    schema.register()
    config = OmegaConf.load(run_dir / "config.yaml")
    assert isinstance(config, DictConfig)
    imports.restore(run_dir, OmegaConf.to_container(config))
    store = run_dir.parent / "stages"
    base: Path = instantiate(config.model, instantiate(config.task, _convert_="all"), store, _convert_="all")
    if base.name != stage_id:
        with contextlib.closing(Start(config, store)) as start:
            start.samples()
    if not (store / stage_id).is_dir():
        raise ValueError(f"run {run_dir.name} does not start from stage {stage_id}: was the code changed meanwhile?")


def main() -> None:
    """Exit codes: those of rlvr/ledger/attempt.py. The last line says what went wrong."""
    if len(sys.argv) != 3:
        print(__doc__)
        sys.exit(2)
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # time is nearly up: it may still suffice
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stdout)
    try:
        build(Path(sys.argv[1]), sys.argv[2])
    except Exception as error:  # as in rlvr/job/loop.py: every end gets a name
        logging.exception("the stage failed")
        cause = error.__cause__ if isinstance(error, InstantiationException) and error.__cause__ else error
        print(" ".join(f"{type(cause).__name__}: {cause}".split()), flush=True)
        distributed.leave(cause_of(cause).code)
    distributed.leave(0)


if __name__ == "__main__":
    main()
