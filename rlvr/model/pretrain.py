"""A base policy pre-trained on a task's demonstrations, from random weights."""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor
from torch.nn import functional
from torch.optim.lr_scheduler import LambdaLR

from rlvr.ledger.stages import pretrain_identity, stage
from rlvr.model.hugging_face import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase
from rlvr.model.tokenizer import encode, word_tokenizer
from rlvr.records import TaughtTask

log = logging.getLogger(__name__)

CHUNK_TOKENS = 4096  # tokens per forward pass of pre-training
LOG_EVERY_S = 5.0


def pretrain(
    task: TaughtTask,
    store: Path,
    *,
    architecture: Mapping[str, Any],
    steps: NonNegativeInt,
    batch: PositiveInt,
    lr: PositiveFloat,
    weight_decay: NonNegativeFloat,
    warmup_steps: NonNegativeInt,
    held_out: NonNegativeInt,
    seed: NonNegativeInt,
) -> Path:
    """Supervised pre-training from random weights on the task's demonstrations, with the loss on response tokens only.

    architecture: `model_type` and the arguments of its Hugging Face config; the vocabulary is the task's. AdamW,
    linear warm-up, cosine decay to 0. Step s reads demonstrations s·batch … s·batch + batch − 1; the held-out loss
    reads the `held_out` demonstrations after the last step: none is used twice. seed: of the initial weights. On a
    CPU the weights are a function of the arguments and the number of threads.
    """
    identity = pretrain_identity(
        task,
        architecture=dict(architecture),
        steps=steps,
        batch=batch,
        lr=lr,
        weight_decay=weight_decay,
        warmup_steps=warmup_steps,
        held_out=held_out,
        seed=seed,
    )

    def build(directory: Path) -> dict[str, Any]:
        tokenizer = word_tokenizer(task.vocabulary, task.end_word)
        pretraining = Pretraining(task, tokenizer, _initial_model(architecture, tokenizer, seed))
        curve = pretraining.learn(steps, batch, lr=lr, weight_decay=weight_decay, warmup_steps=warmup_steps)
        loss = pretraining.held_out_loss(range(steps * batch, steps * batch + held_out), batch) if held_out else None
        pretraining.model.to("cpu")  # type: ignore[arg-type] - decorated without its signature
        pretraining.model.save_pretrained(directory)
        tokenizer.save_pretrained(directory)
        return {"loss": curve, "held_out_loss": loss, "num_parameters": pretraining.model.num_parameters()}

    return stage(store, identity, build)


def _initial_model(architecture: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase, seed: int) -> PreTrainedModel:
    arguments = dict(architecture)
    config = AutoConfig.for_model(
        arguments.pop("model_type"),
        **arguments,
        vocab_size=len(tokenizer),
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="sdpa")


@dataclass(frozen=True)
class Pretraining:
    """The pre-training of a model on the demonstrations of a task."""

    task: TaughtTask
    tokenizer: PreTrainedTokenizerBase
    model: PreTrainedModel

    def learn(
        self, steps: int, batch: int, *, lr: float, weight_decay: float, warmup_steps: int
    ) -> list[tuple[int, float]]:
        """Train the model. Returns about fifty (step, nats per response token) pairs."""
        device = "cuda" if torch.cuda.is_available() else "cpu"
        model = self.model.train()
        model.to(device)  # type: ignore[arg-type]
        optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.95), weight_decay=weight_decay)
        schedule = LambdaLR(optimizer, lambda step: _share_of_lr(step, steps, warmup_steps))
        curve, began = [], time.monotonic()
        logged = began
        for step in range(steps):
            loss = self._step(range(step * batch, (step + 1) * batch))
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            if step % max(1, steps // 50) == 0 or step + 1 == steps:
                curve.append((step, loss))
            if time.monotonic() - logged > LOG_EVERY_S or step + 1 == steps:
                logged = time.monotonic()
                left_s = (logged - began) / (step + 1) * (steps - step - 1)
                share = {"share": (step + 1) / steps}  # read by rlvr/job/log.py
                log.info("base policy: step %d/%d, loss %.3f, %.0f s left", step + 1, steps, loss, left_s, extra=share)
        model.eval()
        return curve

    def _step(self, indices: Sequence[int]) -> float:
        """Add the gradient of one batch. Returns its mean loss per response token, in nats."""
        chunks = list(self._chunks(indices))
        num_tokens = sum(int(chunk[2].sum()) for chunk in chunks)
        total = 0.0
        for chunk in chunks:
            loss = self._summed_loss(*chunk) / num_tokens
            loss.backward()
            total += float(loss.detach())
        return total

    @torch.no_grad()
    def held_out_loss(self, indices: Sequence[int], batch: int) -> float:
        """Mean loss per response token, in nats."""
        batches = [indices[first : first + batch] for first in range(0, len(indices), batch)]
        chunks = (chunk for rows in batches for chunk in self._chunks(rows))
        sums = [(float(self._summed_loss(*chunk)), int(chunk[2].sum())) for chunk in chunks]
        return sum(loss for loss, _ in sums) / sum(num_tokens for _, num_tokens in sums)

    def _summed_loss(self, tokens: Tensor, position: Tensor, mask: Tensor) -> Tensor:
        """Summed loss, nats, of the tokens in `mask`. tokens, mask: [b, L], padded on the right: causality hides it."""
        hidden = self.model.get_decoder()(input_ids=tokens, position_ids=position, use_cache=False).last_hidden_state
        head = self.model.get_output_embeddings()
        assert head is not None
        logits = head(hidden[:, :-1][mask[:, 1:]])
        return functional.cross_entropy(logits.float(), tokens[:, 1:][mask[:, 1:]], reduction="sum")

    def _chunks(self, indices: Sequence[int]) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Chunks of similar length and bounded size: (tokens [b, L], positions [1, L], response mask [b, L])."""
        pairs = [[encode(self.tokenizer, text) for text in self.task.demonstration(index)] for index in indices]
        pairs.sort(key=lambda pair: len(pair[0]) + len(pair[1]), reverse=True)
        while pairs:
            width = len(pairs[0][0]) + len(pairs[0][1])
            count = max(1, CHUNK_TOKENS // width)
            rows, pairs = pairs[:count], pairs[count:]
            tokens = torch.zeros(len(rows), width, dtype=torch.int64)  # padding is neither seen nor predicted
            mask = torch.zeros(len(rows), width, dtype=torch.bool)
            for row, (prompt, response) in enumerate(rows):
                tokens[row, : len(prompt) + len(response)] = torch.tensor([*prompt, *response])
                mask[row, len(prompt) : len(prompt) + len(response)] = True
            device = self.model.device
            yield tokens.to(device), torch.arange(width, device=device)[None], mask.to(device)


def _share_of_lr(step: int, steps: int, warmup_steps: int) -> float:
    """Factor on the learning rate: linear warm-up, then cosine decay to 0."""
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    return 0.5 * (1 + float(torch.cos(torch.tensor(torch.pi * (step - warmup_steps) / max(1, steps - warmup_steps)))))
