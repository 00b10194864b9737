"""The native engine: sampling with the Hugging Face model itself, in the trainer's process."""

import contextlib
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from rlvr.model.hugging_face import AttentionInterface, PreTrainedModel
from rlvr.model.load import load, parse_dtype
from rlvr.noise import uniform
from rlvr.records import Completion, Progress, Request, Sampling, Tolerance
from rlvr.rollout.cache import SHARED_PROMPT, shared_prompt_attention
from rlvr.rollout.decoder import Decoder, RecomputingDecoder, SharedPromptDecoder
from rlvr.rollout.draw import draw
from rlvr.rollout.packed import pack_layers
from rlvr.rollout.request_checks import NOT_NUMBERS, check_requests, check_synced
from rlvr.task.prompt_length import context_in

log = logging.getLogger(__name__)

NOISE_BLOCK = 64  # positions whose noise is computed at once
FULL, SLIDING = "full_attention", "sliding_attention"  # the layers that the shared-prompt decoder knows
FINISHED_SHARE = 1 / 8  # finished rows are removed when they are at least this share of the batch


@dataclass(frozen=True)
class Piece:
    """Samples first … first + count − 1 of a request: the part of it that goes into one batch."""

    request: int
    first: int
    count: int


class NativeEngine:
    """Batched sampling from a causal language model, with shared prompts and counter-based noise.

    Tokens do not depend on the batch, its order or its size beyond the rounding of matrix products
    (log-probabilities agree to about 1e-6 in float32; a token changes if a uniform number falls into that gap).
    """

    tolerance: Tolerance | None = None  # the trainer's own code and weights: they cannot disagree
    copies = 1

    def __init__(
        self,
        model: PreTrainedModel | Path,
        *,
        device: torch.device | None = None,
        eos_token_ids: Sequence[int],
        pad_token_id: int,
        dtype: Literal["float32", "bfloat16", "float16"] = "float32",
        max_batch_sequences: PositiveInt = 512,
        max_cache_gb: PositiveFloat = 8.0,
    ) -> None:
        """model: a directory, loaded to `device`, or the engine's own copy of a model, used where it is.

        max_batch_sequences: responses sampled at once. max_cache_gb: keys and values of a batch, at full length.
        """
        if isinstance(model, Path):
            model, _ = load(model, dtype=torch.float32, device=device or "cpu")
        # buffers keep their type: rotary frequencies in half precision would shift positions
        self.dtype = parse_dtype(dtype)
        for parameter in model.parameters():
            parameter.data = parameter.data.to(self.dtype)
        self.model = model.eval().requires_grad_(False)
        self.eos = torch.tensor(sorted(eos_token_ids), device=model.device)
        self.pad_token_id = pad_token_id
        self.max_batch_sequences = max_batch_sequences
        self.max_cache_bytes = max_cache_gb * 2**30
        self.synced = True
        self.packed = pack_layers(self.model)
        self.decoder = choose_decoder(self.model)

    def sync(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Copy (Hugging Face parameter name, full tensor) pairs, in any float format, into the engine's model.

        A tied head may come under either name or both. Unknown, missing or misshapen parameters raise ValueError,
        and the engine then refuses to sample until a sync succeeds.
        """
        self.synced = False
        targets = dict(self.model.named_parameters(remove_duplicate=False))
        missing = {id(parameter): name for name, parameter in targets.items()}
        with torch.no_grad():
            for name, tensor in weights:
                if name not in targets:
                    raise ValueError(f"sync got {name!r}, which the model does not have. Its names: {sorted(targets)}")
                if targets[name].shape != tensor.shape:
                    expected = list(targets[name].shape)
                    raise ValueError(f"sync got {name!r} with shape {list(tensor.shape)}, expected {expected}")
                if layer := self.packed.get(id(targets[name])):
                    layer.pack(tensor)
                else:
                    targets[name].copy_(tensor)
                missing.pop(id(targets[name]), None)
        if missing:
            raise ValueError(f"sync did not get {sorted(missing.values())}: the engine would mix old and new weights")
        self.synced = True

    @torch.inference_mode()
    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[tuple[Completion, ...]]:
        """Sample every request `num_samples` times; results in the order of the requests."""
        self._check_requests(requests, sampling)
        whole = [range(len(requests))]
        sampled = dict(pair for answered in self._answered(requests, whole, sampling) for pair in answered)
        return [sampled[row] for row in range(len(requests))]

    @torch.inference_mode()
    def generate_until(self, requests: Sequence[Request], sampling: Sampling, progress: Progress) -> None:
        """See StoppingEngine. Finished rows are reported when they leave their batch."""
        self._check_requests(requests, sampling)
        for answered in self._answered(requests, self._waves(requests), sampling):
            for row, samples in answered:
                progress.take(row, samples)
            if progress.enough:
                return

    def _answered(
        self, requests: Sequence[Request], waves: Iterable[range], sampling: Sampling
    ) -> Iterator[list[tuple[int, tuple[Completion, ...]]]]:
        """The requests that have become complete, with all their samples, each time it is checked which have."""
        sampled = [dict[int, Completion]() for _ in requests]
        for wave in waves:
            for batch in self._batches(requests, wave, sampling.max_tokens):
                for finished in self._sample(requests, batch, sampling):
                    for row, number, completion in finished:
                        sampled[row][number] = completion
                    rows = dict.fromkeys(row for row, *_ in finished)
                    complete = [row for row in rows if len(sampled[row]) == requests[row].num_samples]
                    yield [(row, tuple(sampled[row][number] for number in sorted(sampled[row]))) for row in complete]

    def sleep(self) -> None:
        """Nothing to free: keys and values live only while a batch is sampled."""

    def close(self) -> None:
        """Nothing to stop: the engine has no process of its own."""

    def _check_requests(self, requests: Sequence[Request], sampling: Sampling) -> None:
        check_synced(self.synced)
        longest = check_requests(requests, sampling)
        limit = context_in(self.model.config.to_dict())
        if limit is not None and longest + sampling.max_tokens > limit:
            raise ValueError(
                f"A prompt of {longest} tokens and {sampling.max_tokens} new ones exceed the model's {limit} "
                "positions. Lower rollout.max_tokens or drop long prompts."
            )

    def _waves(self, requests: Sequence[Request]) -> Iterator[range]:
        """Ranges of consecutive requests, each as many as are sampled at once."""
        first = rows = 0
        for index, request in enumerate(requests):
            if rows and rows + request.num_samples > self.max_batch_sequences:
                yield range(first, index)
                first, rows = index, 0
            rows += request.num_samples
        if first < len(requests):
            yield range(first, len(requests))

    def _batches(self, requests: Sequence[Request], chosen: range, max_tokens: int) -> Iterator[list[Piece]]:
        """Divide the chosen requests into batches within the limits, with prompts of similar length together."""
        token_bytes = cache_bytes_per_token(self.model)
        batch: list[Piece] = []
        rows, width = 0, 0
        for index in sorted(chosen, key=lambda i: len(requests[i].prompt)):
            width = len(requests[index].prompt)  # ascending, so this is the batch's padded width
            first = 0
            while first < requests[index].num_samples:
                room = self.max_cache_bytes / max(token_bytes, 1) - (len(batch) + 1) * width
                room = min(self.max_batch_sequences, int(room // max_tokens)) - rows
                if room < 1 and batch:
                    yield batch
                    batch, rows = [], 0
                    continue
                count = min(requests[index].num_samples - first, max(room, 1))
                batch.append(Piece(index, first, count))
                rows, first = rows + count, first + count
        if batch:
            yield batch

    def _sample(
        self, requests: Sequence[Request], batch: list[Piece], sampling: Sampling
    ) -> Iterator[list[tuple[int, int, Completion]]]:
        """Sample one batch. Yields lists of (request, number of the sample within the request, completion)."""
        device = self.model.device
        prompts = [requests[piece.request].prompt for piece in batch]
        lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
        padded = np.full((len(batch), max(map(len, prompts))), self.pad_token_id, dtype=np.int64)
        for row, prompt in enumerate(prompts):
            padded[row, : len(prompt)] = prompt
        decoder = self.decoder(self.model, torch.from_numpy(padded).to(device), lengths)
        counts = torch.tensor([piece.count for piece in batch])
        group = torch.repeat_interleave(torch.arange(len(batch)), counts).to(device)
        places = [(piece.request, piece.first + i) for piece in batch for i in range(piece.count)]
        noise_keys = [(requests[request].key, requests[request].first + number) for request, number in places]
        for finished in self._decode(decoder, decoder.start(group, sampling.max_tokens), noise_keys, sampling):
            yield [(*places[row], completion) for row, completion in finished]

    def _decode(
        self, decoder: Decoder, logits: Tensor, noise_keys: list[tuple[int, int]], sampling: Sampling
    ) -> Iterator[list[tuple[int, Completion]]]:
        """Sample until every row has finished or has `max_tokens` tokens; finished rows are removed in bulk.

        Yields the (row, completion) pairs of removed rows, mostly none, at each check which rows have finished.

        logits: [B, V] of the first token. noise_keys: (request key, sample) of each row, which determine its noise.
        """
        device, B, T = logits.device, len(noise_keys), sampling.max_tokens
        tokens = torch.full((B, T), -1, device=device)
        logps = torch.zeros(2, B, T, device=device)  # under the policy and under the distribution drawn from
        rows, done = torch.arange(B, device=device), torch.zeros(B, dtype=torch.bool, device=device)
        noise = torch.empty(B, 0)
        check_every = 1 if device.type == "cpu" else 8  # checking whether rows are done stalls a GPU
        for t in range(T):
            if t % NOISE_BLOCK == 0:
                keys, samples = zip(*(noise_keys[row] for row in rows.tolist()), strict=True)
                block = uniform(sampling.seed, sampling.step, keys, samples, t, min(NOISE_BLOCK, T - t))
                noise = torch.from_numpy(block).to(device)
            token, logp, logp_sampling = draw(
                logits, noise[:, t % NOISE_BLOCK], temperature=sampling.temperature, top_p=sampling.top_p
            )
            tokens[rows, t], logps[0, rows, t], logps[1, rows, t] = token, logp, logp_sampling
            done |= (token[:, None] == self.eos).any(dim=1)
            if t % check_every == 0 or t + 1 == T:
                num_done = int(done.sum())
                if num_done == len(done) or t + 1 == T:
                    break
                if num_done >= FINISHED_SHARE * len(done):
                    yield self._completions(rows[done], tokens, logps)
                    alive = (~done).nonzero()[:, 0]
                    decoder.keep(alive)
                    rows, done, noise, token = rows[alive], done[alive], noise[alive], token[alive]
                else:
                    yield []
            logits = decoder.step(token)
        yield self._completions(rows, tokens, logps)

    def _completions(self, rows: Tensor, tokens: Tensor, logps: Tensor) -> list[tuple[int, Completion]]:
        """The completions of some rows, up to the first end token. tokens: [B, T], −1 where none; logps: [2, B, T]."""
        tokens, logps = tokens[rows].cpu(), logps[:, rows].cpu()
        if not bool(torch.isfinite(logps[:, tokens >= 0]).all()):
            raise FloatingPointError(NOT_NUMBERS)
        is_end = torch.isin(tokens, self.eos.cpu())
        finished = is_end.any(dim=1)
        length = torch.where(finished, is_end.int().argmax(dim=1) + 1, tokens.shape[1])
        arrays = tokens.numpy(), logps[0].numpy(), logps[1].numpy()
        completions = list[tuple[int, Completion]]()
        for i, row in enumerate(rows.tolist()):
            ids, logp, logp_sampling = (array[i, : int(length[i])].copy() for array in arrays)
            completions.append((row, Completion(ids, logp, logp_sampling, bool(finished[i]))))
        return completions


def cache_bytes_per_token(model: PreTrainedModel) -> int:
    """Bytes of the keys and values of one token over all layers; 0 for a model without attention."""
    config = model.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or getattr(config, "num_attention_heads", 0)
    if not heads:
        return 0
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return 2 * config.num_hidden_layers * heads * head_dim * (4 if model.device.type == "cpu" else model.dtype.itemsize)


def choose_decoder(model: PreTrainedModel) -> type[SharedPromptDecoder] | type[RecomputingDecoder]:
    """The shared-prompt decoder if it reproduces the model's own logits; else the decoder that makes no assumptions."""
    config = model.config.get_text_config()  # the sizes of a model that reads images, too, stand in a part of its own
    if not getattr(config, "num_hidden_layers", 0):
        return RecomputingDecoder  # a table: nothing to cache
    kinds = set(getattr(config, "layer_types", None) or [])
    original = model.config._attn_implementation or "eager"
    if model._supports_attention_backend and kinds <= {FULL, SLIDING}:
        unlimited: Tensor | None = None
        if SLIDING in kinds:
            with _windows(model, 1 << 20):
                unlimited = _trial(model, RecomputingDecoder)
        with _windows(model, 4):
            expected = _trial(model, RecomputingDecoder)
            AttentionInterface.register(SHARED_PROMPT, shared_prompt_attention)
            model.set_attn_implementation(SHARED_PROMPT)
            with contextlib.suppress(RuntimeError):  # keys and values of different widths (DeepSeek's latent attention)
                error = (_trial(model, SharedPromptDecoder) - expected).std()
                seen = unlimited is None or not torch.equal(expected, unlimited)  # else windows are kept elsewhere
                if seen and float(error) <= (1e-3 if model.dtype == torch.float32 else 0.1) * float(expected.std()):
                    return SharedPromptDecoder
        model.set_attn_implementation(original)
    log.warning("%s does not fit the shared-prompt cache: sampling without a cache, slowly", type(model).__name__)
    return RecomputingDecoder


@contextlib.contextmanager
def _windows(model: PreTrainedModel, width: int) -> Iterator[None]:
    """Sliding windows of another width: a trial of a few tokens then shows whether attention keeps to them."""
    holders: list[Any] = [model.config.get_text_config(), *model.modules()]
    sizes = {id(holder): (holder, holder.sliding_window) for holder in holders if getattr(holder, "sliding_window", 0)}
    for holder, _ in sizes.values():
        holder.sliding_window = width
    try:
        yield
    finally:
        for holder, size in sizes.values():
            holder.sliding_window = size


@torch.inference_mode()
def _trial(model: PreTrainedModel, decoder: type[SharedPromptDecoder] | type[RecomputingDecoder]) -> Tensor:
    """Logits [3, 4, V] of three steps of four rows that continue two prompts of different length."""
    device, size = model.device, model.config.get_text_config().vocab_size
    prompt = (torch.arange(18, device=device) * 7 + 3).view(2, 9) % size
    rows = decoder(model, prompt, torch.tensor([9, 5], device=device))
    logits = [rows.start(torch.tensor([0, 0, 0, 1], device=device), 2)]
    logits += [rows.step((torch.arange(4, device=device) * 5 + step) % size) for step in range(2)]
    return torch.stack(logits).float()
