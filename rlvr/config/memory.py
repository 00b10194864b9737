"""Estimates of a model's parameters and memory on a GPU, from the numbers of its config.json. No torch.

Meant to be right within a fifth.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlvr.config import published
from rlvr.config.nodes import training_nodes
from rlvr.config.signature import declared
from rlvr.ledger import gguf
from rlvr.ledger.files import read_json
from rlvr.task.prompt_length import file_of_model

GB = 2**30
STATE = 12  # bytes per trained parameter: the float32 weight and AdamW's two averages
CONTEXT_GB = 3.0  # CUDA's context, NCCL's buffers, fragmentation
SLEEPING_GB = 2.0  # the context of a sleeping vLLM beside a rank, and memory that it does not release
FILLED = 0.95  # share of a GPU that is used if the engine's cache takes all that nothing else needs
SAMPLING_GB = 2.5  # of an engine while it samples, beside weights and cache: activations of a prefill, CUDA graphs
SAMPLED = 12  # bytes per sequence and entry of the vocabulary: float32 logits, scaled logits, counts
UNKNOWN_CACHE_GB = 8.0  # if the GPU's or the model's size is unknown
LEAST_CACHE_GB = 1.0
LOGITS = 2**27  # numbers of a chunk (rlvr/trainer/logprob.py)
HEAD = 26  # bytes per token and hidden dimension around the last norm and the head, in forward and backward (measured)


@dataclass(frozen=True)
class Architecture:
    """A decoder of attention and gated feed-forward layers with RMS norms: Llama, Mistral, Qwen2, Qwen3."""

    layers: int
    hidden: int
    intermediate: int
    vocab: int
    heads: int
    kv_heads: int
    head_dim: int
    tied: bool  # embedding and head share one matrix
    qkv_bias: bool = False
    qk_norm: bool = False

    @property
    def query(self) -> int:
        return self.heads * self.head_dim

    @property
    def key(self) -> int:
        return self.kv_heads * self.head_dim

    @property
    def layer_parameters(self) -> int:
        attention = 2 * self.hidden * self.query + 2 * self.hidden * self.key
        attention += (self.query + 2 * self.key) * self.qkv_bias + 2 * self.head_dim * self.qk_norm
        return attention + 3 * self.hidden * self.intermediate + 2 * self.hidden

    @property
    def embedding_parameters(self) -> int:
        return self.vocab * self.hidden * (1 if self.tied else 2)

    @property
    def parameters(self) -> int:
        return self.layers * self.layer_parameters + self.embedding_parameters + self.hidden

    @property
    def critic_parameters(self) -> int:
        """Those of a decoder without a head."""
        return self.parameters - (0 if self.tied else self.vocab * self.hidden)


def architecture(config: Mapping[str, Any]) -> Architecture | None:
    """The architecture in a config.json; None for an unknown family.

    Without `vocab_size` the vocabulary counts as empty: the small models of `conf/model` take their task's words.
    """
    kind = config.get("model_type")
    if kind not in ("llama", "mistral", "qwen2", "qwen3"):
        return None
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    return Architecture(
        layers=config["num_hidden_layers"],
        hidden=hidden,
        intermediate=config["intermediate_size"],
        vocab=config.get("vocab_size", 0),
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or hidden // heads,
        tied=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=kind == "qwen2",
        qk_norm=kind == "qwen3",
    )


def trained_architecture(config: Mapping[str, Any]) -> Architecture | None:
    """The architecture of the model that our trainer trains in a run: only of that the memory and time are known."""
    return None if config.get("program") else architecture_of_model(config["model"])


def architecture_of_model(model: Mapping[str, Any] | None) -> Architecture | None:
    """The architecture of the `model` of a run's config; None if it is not known without a download.

    Sources: the numbers in the config itself, the config.json of a directory or of a downloaded hub model, or the
    table of models that recipes name (`published.MODELS`).
    """
    if model is None:  # the config of an evaluation, which trains no model
        return None
    if "architecture" in model:
        return architecture(model["architecture"])
    return of_path(str(model["path"])) if model.get("path") else None


@functools.cache  # called for every point of a sweep
def of_path(path: str) -> Architecture | None:
    """The architecture of a directory or of a hub name; see `architecture_of_model`."""
    file = file_of_model(gguf.as_directory(path), "config.json")
    if file is None:
        numbers = published.MODELS.get(path.partition("@")[0])
        return None if numbers is None else architecture(numbers)
    try:
        return architecture(read_json(file) or {})
    except (ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError):
        return None  # rlvr/config/base_model.py reports what is wrong


@dataclass(frozen=True)
class MemorySetting:
    """What, beside the model, decides how much memory a GPU needs."""

    ranks: int = 1  # GPUs that share weights, gradients and optimiser
    width: int = 2  # bytes per number in forward and backward: 2 for half precision, 4 for float32
    tokens: int = 16384  # of a micro-batch
    tempered: bool = False  # logits are divided by a temperature other than 1
    checkpointing: bool = False  # activations of a layer are computed again in the backward pass
    copies: int = 0  # frozen copies: base policy, reference
    offload: bool = False  # frozen copies are kept in main memory
    critic: bool = False  # a second decoder is trained, in full
    adapters: bool = False  # only low-rank adapters are trained: they count as 0 bytes, the weights they adapt `width`
    engine_width: int = 0  # bytes per weight of the engine's own full copy; 0: it has none on this GPU
    engine_gpus: int = 1  # GPUs that share this copy
    engine_sleeps: bool = False  # the engine releases its weights' memory while the policy is trained
    cache_gb: float = 0.0  # the engine's keys and values
    sequences: int = 0  # of a vLLM on this GPU, at most, in one batch; 0: there is none
    beside_gb: float = 0.0  # memory that belongs to no tensor


def per_gpu(model: Architecture, setting: MemorySetting) -> dict[str, float]:
    """Peak bytes on one GPU, by cause: at the head or in a layer's backward pass, at the last sum of gradients over
    ranks, or during sampling.

    Weights are float32 shards. To compute with them they are gathered in `width` bytes: all of them on one rank, else
    embedding and head, which stay until the end of the step, and two layers. Gradients of gathered weights are whole
    until they are summed over ranks. Attention keeps no scores (fused kernels).
    """
    n, w, t, r = model.parameters, setting.width, setting.tokens, setting.ranks
    trained = 0 if setting.adapters else 1
    gathered = _gathered(model, setting)
    permanent, critic = at_rest(model, setting), setting.critic * model.critic_parameters
    engine = {"engine weights": setting.engine_width * n / setting.engine_gpus}
    decoders = 1 + setting.copies + setting.critic
    step = {"gradients": (trained * n + critic) * 4 / r, "gathered weights": float(w * gathered * decoders)}
    layer, head_parameters = _layer_activations(model, w), model.vocab * model.hidden
    kept = (1 + setting.critic) * model.layers * (w * model.hidden if setting.checkpointing else layer)
    # In float32: four or five times if autograd differentiates them at once, in chunks three times.
    logits, at_once = t * model.vocab, 4 + setting.tempered
    head = step | {
        # The gradient of the head is summed over chunks of the logits in float32, then cast.
        "whole gradients": trained * float((w + 4) * head_parameters),
        "activations": float(t * (kept + HEAD * model.hidden)),
        "logits": float(4 * (at_once * logits if w == 4 and logits <= LOGITS else 3 * min(LOGITS, logits))),
    }
    backward = step | {
        "whole gradients": trained * float((w + 4) * (head_parameters + model.layer_parameters)),
        # Beside what is kept, two gradients of the width of the feed-forward layer.
        "activations": float(t * (kept + layer * setting.checkpointing + 2 * w * model.intermediate)),
    }
    # On one rank the "sum" is a copy, beside the gradients accumulated over micro-batches.
    summing = step | {"whole gradients": trained * float((w + 4 if r > 1 else 12) * model.embedding_parameters)}
    # The canary after a sync runs the trainer's model too, so weights are gathered while the engine holds its cache.
    sampling = engine | {"engine cache": setting.cache_gb * GB, "gathered weights": float(w * gathered)}
    if setting.sequences:
        sampling["engine at work"] = _at_work(model, setting.sequences)
    if not setting.engine_sleeps:
        permanent |= engine
    return permanent | max(head, backward, summing, sampling, key=lambda phase: sum((permanent | phase).values()))


def at_rest(model: Architecture, setting: MemorySetting) -> dict[str, float]:
    """Bytes on one GPU that are held during the whole run, without those of the engine."""
    n, w, r = model.parameters, setting.width, setting.ranks
    trained = 0 if setting.adapters else 1
    permanent = {
        "weights": (4 if trained else w) * n / r,
        "optimiser": trained * 8 * n / r,
        "frozen copies": setting.copies * w * (0 if setting.offload else n / r),
    }
    if setting.critic:
        permanent["critic"] = (4 + 8) * model.critic_parameters / r
    if setting.beside_gb:
        permanent["contexts and fragments"] = setting.beside_gb * GB
    return permanent


def _gathered(model: Architecture, setting: MemorySetting) -> int:
    """Parameters that a forward pass gathers: all on one rank, else embedding and head, and two layers."""
    return model.parameters if setting.ranks == 1 else model.embedding_parameters + 2 * model.layer_parameters


def cache_gb(config: Mapping[str, Any], gpu_gb: float | None, base: Path | None = None) -> float:
    """GB for an engine's keys and values: `max_cache_gb`, else what a GPU has left while responses are sampled.

    config: of a run, resolved. gpu_gb: memory of the GPU; None: there is none, or its size is not known. base:
    directory of the policy that is sampled first; None: it may not be there yet, and the model's config tells its size.
    """
    engine = config["rollout"]["engine"]
    if engine["max_cache_gb"] is not None:
        return engine["max_cache_gb"]
    model = architecture_of_model(config["model"]) if base is None else of_path(str(base))
    if model is None or gpu_gb is None:
        return UNKNOWN_CACHE_GB
    used_gb = sum(_of_engine(model, engine).values()) / GB
    if "workers" not in engine and config["trainer"] is not None:  # the policy is trained on the same GPU
        setting = replace(setting_of(config), beside_gb=SLEEPING_GB)
        used_gb += (sum(at_rest(model, setting).values()) + setting.width * _gathered(model, setting)) / GB
    return max(LEAST_CACHE_GB, FILLED * gpu_gb - used_gb)


def _of_engine(model: Architecture, engine: Mapping[str, Any]) -> dict[str, float]:
    """Bytes on a GPU of a vLLM that samples, by cause, without its cache."""
    return {
        "engine weights": width(engine["dtype"]) * model.parameters / engine.get("tensor_parallel", 1),
        "engine at work": _at_work(model, engine["max_batch_sequences"]),
        "contexts and fragments": CONTEXT_GB * GB,
    }


def _at_work(model: Architecture, sequences: int) -> float:
    """Bytes of a vLLM that samples, beside its weights and its cache. sequences: at most, in one batch."""
    return SAMPLING_GB * GB + SAMPLED * sequences * model.vocab


def _layer_activations(model: Architecture, width: int) -> int:
    """Bytes per token that a layer keeps for its backward pass.

    The normalised input and the output of each of the two norms [h], and its input in float32; queries,
    attention's output and the same reordered [q]; keys and values [k]; gate, its activation, up and their product [i].
    Norms of queries and keys keep their normalised input, and their input in float32.
    """
    h, q, k = model.hidden, model.query, model.key
    layer = width * (4 * h + 3 * q + 2 * k + 4 * model.intermediate) + 2 * 4 * h
    layer += (width + 4) * (q + k) * model.qk_norm
    return layer


def longest_response(config: Mapping[str, Any]) -> int:
    """Tokens of the longest response; 0 if the config does not say."""
    return config["rollout"]["max_tokens"] or config["task"].get("max_tokens") or 0


def setting_of(config: Mapping[str, Any]) -> MemorySetting:
    """The setting of a run's resolved config."""
    trainer, rollout = config["trainer"], config["rollout"]
    engine, is_reset = rollout["engine"], trainer.get("reference_every") is not None
    adapters = trainer.get("lora_rank") is not None
    sleeps = engine["_target_"].endswith("VllmEngine")
    elsewhere = "workers" in engine  # the engine has GPUs of its own
    loss = declared(config["loss"]["_target_"])
    reference = trainer["kl"] > 0 or "reference" in loss
    unsplit = rollout["samples"] if "whole_groups" in loss else 1  # responses that share a micro-batch
    cluster = config["cluster"]
    copies_of_state = training_nodes(cluster) if cluster.get("shard_over") == "node" else 1
    return MemorySetting(
        ranks=cluster["ranks"] // copies_of_state,
        width=width(trainer["dtype"]),
        # A response is never split, however long; nor is a group if the loss needs whole groups.
        tokens=max(trainer["token_budget"], unsplit * longest_response(config)),
        tempered=rollout["temperature"] != 1,
        checkpointing=trainer["activation_checkpointing"],
        # A reference that is never reset is the base policy: one copy serves for both.
        copies=0 if adapters else int(trainer["base_kl"] or (reference and not is_reset)) + int(reference and is_reset),
        offload=bool(trainer.get("reference_offload")),
        critic=trainer.get("critic") is not None,
        adapters=adapters,
        engine_width=0 if elsewhere else width(engine["dtype"]),
        cache_gb=0 if elsewhere else engine["max_cache_gb"] or LEAST_CACHE_GB,
        engine_gpus=engine.get("tensor_parallel", 1),
        engine_sleeps=sleeps,
        sequences=engine["max_batch_sequences"] if sleeps and cluster.get("gpus") else 0,
        beside_gb=(CONTEXT_GB + sleeps * SLEEPING_GB) if cluster.get("gpus") else 0.0,
    )


def width(dtype: str) -> int:
    return 4 if dtype == "float32" else 2


def checkpoint_bytes(model: Architecture, trainer: Mapping[str, Any]) -> int:
    """Bytes of a checkpoint: every trained parameter with the optimiser's two averages, and a reference with resets.

    Heads are left out, which are small. trainer: its knobs.
    """
    rank, state = trainer.get("lora_rank"), STATE * model.parameters
    if rank is not None:
        h, i, q, k = model.hidden, model.intermediate, model.query, model.key
        inputs_and_outputs = 2 * (h + q) + 2 * (h + k) + 3 * (h + i)
        return STATE * rank * model.layers * inputs_and_outputs
    if trainer.get("critic") is not None:
        state += STATE * model.critic_parameters
    return state + (trainer.get("reference_every") is not None) * width(trainer["dtype"]) * model.parameters


def check(config: Mapping[str, Any]) -> None:
    """Raises ValueError if a run needs more memory per GPU than `cluster.gpu_memory_gb`; null: no check."""
    gpu_gb = config["cluster"].get("gpu_memory_gb")
    model = architecture_of_model(config["model"]) if gpu_gb else None
    if model is None:
        return
    parts = per_gpu(model, setting_of(config))
    _check_fits(gpu_gb, "this run", parts, _remedies(parts, config))
    engine = config["rollout"]["engine"]
    if "workers" in engine and config["cluster"].get("gpus"):
        cache = {"engine cache": (engine["max_cache_gb"] or LEAST_CACHE_GB) * GB}
        remedy = "a larger rollout.engine.tensor_parallel, or a smaller rollout.engine.max_cache_gb"
        _check_fits(gpu_gb, "a vLLM of this run", _of_engine(model, engine) | cache, remedy)


def _remedies(parts: Mapping[str, float], config: Mapping[str, Any]) -> str:
    """What lowers the largest parts, in their order, without what the run has already."""
    trainer = config["trainer"]
    budget = [] if trainer["activation_checkpointing"] else ["trainer.activation_checkpointing=true"]
    # A budget below what is never split has no effect.
    budget_decides = setting_of(config).tokens == trainer["token_budget"]
    budget.append(f"a smaller {'trainer.token_budget' if budget_decides else 'rollout.max_tokens'}")
    shards = ["trainer.dtype=bfloat16"] if trainer["dtype"] == "float32" else []
    shards.append("a larger cluster.ranks")
    of_engine = {"engine cache": ["a smaller rollout.engine.max_cache_gb"]}
    if "tensor_parallel" in config["rollout"]["engine"]:
        of_engine["engine weights"] = ["a larger rollout.engine.tensor_parallel"]
    of_part = {"activations": budget, "logits": budget[-1:], **of_engine}
    largest = sorted((part for part in parts if parts[part] > 0), key=lambda part: -parts[part])
    remedies = dict.fromkeys(remedy for part in largest for remedy in of_part.get(part, shards))
    return " or ".join(list(remedies)[:3])


def _check_fits(gpu_gb: float, of: str, parts: Mapping[str, float], remedy: str) -> None:
    if sum(parts.values()) > gpu_gb * GB:
        raise ValueError(
            f"cluster.gpu_memory_gb={gpu_gb:g}, and a GPU of {of} needs about {sum(parts.values()) / GB:.0f} GB: "
            f"{parts_in_one_line(parts)}. Pass {remedy}; null: no check."
        )


def parts_in_one_line(parts: Mapping[str, float]) -> str:
    """The parts in one line, the largest first: `weights 28.4, gradients 28.4 GB`."""
    large = sorted(((v / GB, k) for k, v in parts.items() if v > 0), reverse=True)
    return ", ".join(f"{k} {v:.1f}" for v, k in large) + " GB"
