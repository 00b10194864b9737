"""Where a run starts from: a base policy downloaded, pre-trained on a task's demonstrations, or tabular.

Each function is the `_target_` of a file in conf/model/ and returns a directory in Hugging Face format. What is made
here is a cached stage: built once under `store`, by whichever process comes first, for all runs that need it.
"""

from __future__ import annotations

import functools
import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled
from torch import Tensor
from torch.nn import functional
from torch.optim.lr_scheduler import LambdaLR
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from rlvr.model import TableConfig, TablePolicy, encode, load_tokenizer, word_tokenizer
from rlvr.records import Task, TaughtTask
from rlvr.stage import pretrain_identity, stage, table_identity

log = logging.getLogger(__name__)
F = TypeVar("F", bound=Callable[..., Path])

TABLE_DEMONSTRATIONS = 4096  # read to learn which word may follow which
CHUNK_TOKENS = 4096  # tokens per forward pass of pre-training
LOG_EVERY_S = 5.0


def hub(task: Task, store: Path, *, path: str, chat: bool) -> Path:  # noqa: ARG001 - every model source takes them
    """A local directory as it is, or a model of the Hugging Face hub, downloaded once into its own cache.

    chat: prompts will be wrapped in the model's chat template, which must then exist.
    """
    directory = Path(path).expanduser()
    if not directory.is_dir():
        if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", path):
            raise ValueError(
                f"model.path={path} is neither a directory on this machine nor a hub name (owner/model). "
                "Type model.path=/path/to/model or for example model.path=Qwen/Qwen2.5-0.5B."
            )
        directory = _download(path)
    if chat and not load_tokenizer(directory).chat_template:
        raise ValueError(f"model.chat=true, but the tokenizer of {path} has no chat template. Drop model.chat=true.")
    return directory


def _download(name: str) -> Path:
    wanted = ["*.safetensors", "*.json", "*.txt", "*.model", "*.jinja"]
    try:
        return Path(snapshot_download(name, allow_patterns=wanted))
    except (HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled, ConnectionError) as error:
        raise ValueError(
            f"model.path={name} is no directory here, and the hub did not give it ({type(error).__name__}). Check the "
            "name and the network (private models: `hf auth login`), or download it elsewhere with "
            f"`hf download {name} --local-dir DIR` and type model.path=DIR."
        ) from error


def native_only(function: F) -> F:
    """Declare that only the native engine can sample from a model: other engines are refused at launch."""
    return function


@native_only
def table(task: TaughtTask, store: Path) -> Path:
    """The tabular policy, uniform over the words that the task's demonstrations show after each word.

    For a bandit, whose demonstrations are its arms in turn: uniform over exactly the arms. A task of one-word answers
    may list them all as `answers`: too many to be shown after each prompt, they are allowed after every one.
    """

    def build(directory: Path) -> dict[str, Any]:
        tokenizer = word_tokenizer(task.vocabulary, task.end_word)
        following: dict[int, set[int]] = {}
        ids = functools.cache(functools.partial(encode, tokenizer))  # the same few texts come again and again
        answers = set(ids(" ".join(getattr(task, "answers", ()))))
        for index in range(TABLE_DEMONSTRATIONS):
            prompt, response = (ids(text) for text in task.demonstration(index))
            following.setdefault(prompt[-1], set(answers))
            for before, after in zip([prompt[-1], *response], response, strict=False):
                following.setdefault(before, set()).add(after)
        model = TablePolicy(TableConfig(vocab_size=len(tokenizer), eos_token_id=tokenizer.eos_token_id))
        model.allow({before: sorted(after) for before, after in following.items()})
        _save(model, tokenizer, directory)
        return {"num_parameters": model.num_parameters()}

    return stage(store, table_identity(task), build)


def pretrain(
    task: TaughtTask,
    store: Path,
    *,
    architecture: Mapping[str, Any],
    steps: int,
    batch: int,
    lr: float,
    weight_decay: float,
    warmup_steps: int,
    held_out: int,
    seed: int,
) -> Path:
    """Supervised pre-training from random weights on the task's demonstrations, loss on response tokens only.

    architecture: `model_type` and the arguments of its Hugging Face config; the vocabulary is the task's. AdamW, linear
    warm-up, cosine decay to 0. Step s reads demonstrations s·batch … s·batch + batch − 1, and the held-out loss the
    `held_out` that follow the last step: none is seen twice. seed: the initial weights. On a CPU the weights are a
    function of the arguments and the number of threads.
    """
    identity = pretrain_identity(
        task, architecture=dict(architecture), steps=steps, batch=batch, lr=lr, weight_decay=weight_decay,
        warmup_steps=warmup_steps, held_out=held_out, seed=seed,
    )  # fmt: skip

    def build(directory: Path) -> dict[str, Any]:
        tokenizer = word_tokenizer(task.vocabulary, task.end_word)
        pupil = Pupil(task, tokenizer, _initial(architecture, tokenizer, seed))
        curve = pupil.learn(steps, batch, lr=lr, weight_decay=weight_decay, warmup_steps=warmup_steps)
        loss = pupil.held_out_loss(range(steps * batch, steps * batch + held_out), batch) if held_out else None
        _save(pupil.model, tokenizer, directory)
        return {"loss": curve, "held_out_loss": loss, "num_parameters": pupil.model.num_parameters()}

    return stage(store, identity, build)


def _initial(architecture: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase, seed: int) -> PreTrainedModel:
    rest = dict(architecture)
    config = AutoConfig.for_model(
        rest.pop("model_type"), **rest, vocab_size=len(tokenizer), bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="sdpa")


def _save(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, directory: Path) -> None:
    model.to("cpu")  # type: ignore[arg-type]
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


@dataclass(frozen=True)
class Pupil:
    """A model that learns from demonstrations."""

    task: TaughtTask
    tokenizer: PreTrainedTokenizerBase
    model: PreTrainedModel

    def learn(
        self, steps: int, batch: int, *, lr: float, weight_decay: float, warmup_steps: int
    ) -> list[tuple[int, float]]:
        """Train; returns (step, nats per response token) about every fiftieth of the way."""
        device = "cuda" if torch.cuda.is_available() else "cpu"
        model = self.model.train()
        model.to(device)  # type: ignore[arg-type]
        optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.95), weight_decay=weight_decay)
        schedule = LambdaLR(optimizer, lambda step: _share_of_lr(step, steps, warmup_steps))
        curve, began = [], time.monotonic()
        said = began
        for step in range(steps):
            loss = self._step(range(step * batch, (step + 1) * batch))
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            if step % max(1, steps // 50) == 0 or step + 1 == steps:
                curve.append((step, loss))
            if time.monotonic() - said > LOG_EVERY_S or step + 1 == steps:
                said = time.monotonic()
                left = (said - began) / (step + 1) * (steps - step - 1)
                log.info("base policy: step %d/%d, loss %.3f, %.0f s left", step + 1, steps, loss, left)
        model.eval()
        return curve

    def _step(self, indices: Sequence[int]) -> float:
        """Add the gradient of one batch; returns its mean loss per response token."""
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
        parts = [indices[first : first + batch] for first in range(0, len(indices), batch)]
        sums = [(float(self._summed_loss(*c)), int(c[2].sum())) for part in parts for c in self._chunks(part)]
        return sum(loss for loss, _ in sums) / sum(num for _, num in sums)

    def _summed_loss(self, tokens: Tensor, position: Tensor, mask: Tensor) -> Tensor:
        """tokens, mask: [b, L]; mask marks the tokens to predict. Right-padded: causality alone hides the padding."""
        hidden = self.model.get_decoder()(input_ids=tokens, position_ids=position, use_cache=False).last_hidden_state
        head = self.model.get_output_embeddings()
        assert head is not None
        logits = head(hidden[:, :-1][mask[:, 1:]])
        return functional.cross_entropy(logits.float(), tokens[:, 1:][mask[:, 1:]], reduction="sum")

    def _chunks(self, indices: Sequence[int]) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Demonstrations in chunks of similar length and bounded size: (tokens, positions [1, L], response mask)."""
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
    """Linear warm-up, then cosine decay to 0."""
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    return 0.5 * (1 + float(torch.cos(torch.tensor(torch.pi * (step - warmup_steps) / max(1, steps - warmup_steps)))))
