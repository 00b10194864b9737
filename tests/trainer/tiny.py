"""Small models, batches and trainers, and reference computations without packing or sharding."""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
import yaml
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from rlvr.model.tokenizer import word_tokenizer
from rlvr.objective.batch import Batch, Policy, Terms
from rlvr.trainer import distributed
from rlvr.trainer.fsdp import Trainer
from rlvr.trainer.knobs import Knobs, Place
from tests.support.factories import make_batch
from tests.support.fake_cuda.tensors import numbers_of

YAML = Path(__file__).parents[2] / "conf" / "trainer" / "fsdp.yaml"
# One update of all rows, and an optimiser whose first average is the gradient; the other knobs are those of the YAML.
KNOBS: dict[str, Any] = {
    **{name: value for name, value in yaml.safe_load(YAML.read_text()).items() if name != "_target_"},
    **{"seed": 0, "temperature": 1.0, "steps": 10, "updates": 1, "lr": 1e-3, "clip_norm": 0.0},
    **{"betas": (0.0, 0.999), "eps": 1e-8, "base_kl": False},
}


def qwen2(*, tied: bool = True, seed: int = 0, spread: float = 0.2, hidden: int = 16) -> Qwen2ForCausalLM:
    """Two layers, 16 words. `spread`: deviation of the weights, large enough for attention to matter."""
    torch.manual_seed(seed)
    sizes = {"vocab_size": 16, "hidden_size": hidden, "intermediate_size": 32, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
    return Qwen2ForCausalLM(Qwen2Config(**sizes, **heads, tie_word_embeddings=tied, initializer_range=spread))


def save_base(directory: Path, *, tied: bool = True, seed: int = 0) -> Path:
    """A base policy in Hugging Face format: `qwen2`, and a tokenizer of fifteen words."""
    qwen2(tied=tied, seed=seed).save_pretrained(directory)
    word_tokenizer([f"w{i}" for i in range(14)] + ["end"], "end").save_pretrained(directory)
    return directory


def batch(*, num_groups: int = 3, num_samples: int = 3, lengths: Sequence[int] | None = None, **fields: Any) -> Batch:
    """Prompts of unequal lengths, responses of 0 to 6 tokens; with the default lengths some have 0 or 1."""
    lengths = lengths or [6, 1, 3, 0, 2, 5, 4, 6, 1, 2, 3, 6, 6, 5, 0, 1][: num_groups * num_samples]
    unpadded = make_batch(num_groups=num_groups, num_samples=num_samples, num_tokens=6, lengths=lengths, **fields)
    num_padding = torch.arange(num_groups) % 3  # at the left of each prompt
    mask = torch.arange(unpadded.prompt.shape[1]) >= num_padding[:, None]
    return Batch(**{**vars(unpadded), "prompt": unpadded.prompt * mask, "prompt_mask": mask})


def surrogate(policy: Policy, batch: Batch) -> Terms:
    """GRPO's loss with the ratio clipped to 0.8 to 1.2: its gradient depends on logp_old and advantage."""
    ratio = (policy.logp - batch.logp_old).exp()
    advantage = batch.advantage[:, None]
    loss = -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
    return Terms(loss, {"clip_fraction": (ratio > 1.2).float(), "ratio": ratio})


def make_knobs(**knobs: Any) -> Knobs:
    return Knobs(**{**KNOBS, **knobs})


def make_trainer(
    model: PreTrainedModel | None = None,
    loss: Any = surrogate,
    *,
    device: torch.device | None = None,
    max_tokens: int = 8,
    shard_over: Literal["job", "node"] = "job",
    **knobs: Any,
) -> Trainer:
    distributed.join_group()
    place = Place(device or torch.device("cpu"), 0, max_tokens, shard_over)
    return Trainer(qwen2() if model is None else model, loss, place, make_knobs(**knobs))


def by_sequence(
    query: Tensor, key: Tensor, value: Tensor, query_ends: Tensor, key_ends: Tensor, *_: int, scale: Any, **__: Any
) -> Tensor:
    """`varlen_attn` on any device, one sequence after the other: a query attends up to the key at its own place,
    counted from the end. query [N, H, D], key and value [n, K, D] → [N, H, D]."""
    parts = list[Tensor]()
    for (a, b), (c, d) in zip(*(itertools.pairwise(ends.tolist()) for ends in (query_ends, key_ends)), strict=True):
        q, k, v = (x.transpose(0, 1)[None] for x in (query[a:b], key[c:d], value[c:d]))
        mask = torch.ones(b - a, d - c, dtype=torch.bool).tril(d - c - (b - a))
        attended = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=True)
        parts.append(attended[0].transpose(0, 1))
    return torch.cat(parts)


def gradients(trainer: Trainer) -> dict[str, Tensor]:
    """Gradient of the last update by name, after clipping: AdamW's first average, where betas[0] is 0."""
    named = dict(trainer.actor.model.named_parameters())
    named |= {f"heads.{name}": p for name, p in trainer.actor.heads.named_parameters()}
    trained = {name: p for name, p in named.items() if p.requires_grad}
    return {name: distributed.full(trainer.optimiser.state[p]["exp_avg"]).clone() for name, p in trained.items()}


def learned(model: PreTrainedModel | None = None, data: Batch | None = None, **knobs: Any) -> dict[str, Tensor]:
    """The gradient of a new trainer's last update, after it has learned from the data."""
    trainer = make_trainer(model, **knobs)
    trainer.learn(batch() if data is None else data)
    return gradients(trainer)


def _groups(state: Any) -> list[Any]:
    """A module's groups of sharded weights, of which it had one at most before torch 2.13."""
    if hasattr(state, "_fsdp_param_groups"):
        return state._fsdp_param_groups
    return [state._fsdp_param_group] if state._fsdp_param_group else []


def gathered(module: nn.Module) -> int:
    """Bytes of memory that hold full weights beside the shards, all layers together."""
    sharded = [m for m in module.modules() if isinstance(m, FSDPModule)]
    groups = [group for m in sharded for group in _groups(m._get_fsdp_state())]
    full = [tensor for group in groups for p in group.fsdp_params for tensor in p.all_gather_outputs]
    return sum(numbers_of(tensor).untyped_storage().nbytes() for tensor in full)


def frozen_gathered(trainer: Trainer) -> int:
    """`gathered` of the trainer's frozen copies."""
    frozen = (trainer.frozen.base, trainer.frozen.resettable)
    return sum(gathered(policy) for policy in frozen if isinstance(policy, nn.Module))


def frozen_passes(trainer: Trainer) -> int:
    """Entries of FSDP's records of forward passes of the trainer's frozen copies."""
    frozen = [policy for policy in (trainer.frozen.base, trainer.frozen.resettable) if isinstance(policy, FSDPModule)]
    order = [entry for policy in frozen for entry in policy._get_fsdp_state()._comm_ctx.post_forward_order]
    states = [m._get_fsdp_state() for policy in frozen for m in policy.modules() if isinstance(m, FSDPModule)]
    groups = [group for state in states for group in _groups(state)]
    return len(order) + sum(len(group._post_forward_indices) for group in groups)


def weights(trainer: Trainer) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in trainer.weights()}


def worst(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """Largest difference over all tensors, as a fraction of the largest expected value."""
    assert actual.keys() == expected.keys()
    largest = max(float(e.abs().max()) for e in expected.values())
    return max(float((actual[name].double() - e.double()).abs().max()) for name, e in expected.items()) / largest


def sequences(batch: Batch) -> Iterator[tuple[Tensor, Tensor]]:
    """(prompt, response) of each row, without padding."""
    for group, tokens, mask in zip(batch.group.tolist(), batch.tokens, batch.mask, strict=True):
        yield batch.prompt[group][batch.prompt_mask[group]], tokens[mask]


def plain_logp(model: PreTrainedModel, batch: Batch, temperature: float = 1.0) -> list[Tensor]:
    """[n] log-probabilities of each response, one sequence at a time, from the model's own logits."""
    rows = []
    for prompt, response in sequences(batch):
        if not len(response):
            rows.append(torch.zeros(0))
            continue
        logits = model(input_ids=torch.cat([prompt, response])[None], use_cache=False).logits[0] / temperature
        logp = logits[len(prompt) - 1 : -1].log_softmax(-1)
        rows.append(logp.gather(-1, response[:, None])[:, 0])
    return rows
