"""Tiny models of many architectures, with random weights: each is checked as before a launch, then sampled, trained for
one update, and sampled again; the engine's log-probabilities are compared with the trainer's.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from rlvr.config import base_model
from rlvr.model.load import load_model
from rlvr.model.tokenizer import word_tokenizer
from rlvr.objective.batch import Batch
from rlvr.records import Request, Sampling
from rlvr.rollout.decoder import SharedPromptDecoder
from rlvr.rollout.native import NativeEngine
from rlvr.trainer.fsdp import Trainer
from tests.trainer.tiny import batch, make_trainer

HEAD = ("`model_type`", "models, such as", "here", "reads sequences", "samples with a cache")
CLOSE = 2e-5  # nats, engine against trainer, in float32
TINY: dict[str, Any] = {
    **{"vocab_size": 16, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 8},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128, "initializer_range": 0.2},
    **{"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 14},
}
LATENT = {"q_lora_rank": None, "kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8}
LATENT |= {"n_routed_experts": 4, "moe_intermediate_size": 8, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1}
LATENT |= {"num_experts_per_tok": 2, "num_key_value_heads": 4, "head_dim": 8}
SPARSE = {**LATENT, "q_lora_rank": 8, "index_topk": 64, "index_n_heads": 2, "index_head_dim": 16}
SMALL_GPT: dict[str, Any] = {"head_dim": ...}  # ...: the architecture has no such number
EXPERTS = {"num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8}
EXPERTS |= {"shared_expert_intermediate_size": 8}
MODELS: list[tuple[str, str, dict[str, Any]]] = [
    ("llama", "Llama 2, Llama 3, SmolLM2, DeepSeek-R1-Distill-Llama", {}),
    ("llama4_text", "Llama 4, its text model", {**EXPERTS, "intermediate_size_mlp": 48, "attention_chunk_size": 4}),
    ("qwen2", "Qwen2.5, Qwen2.5-Math, DeepSeek-R1-Distill-Qwen", {}),
    ("qwen3", "Qwen3", {}),
    ("qwen2_moe", "Qwen1.5-MoE", EXPERTS),
    ("qwen3_moe", "Qwen3-30B-A3B", EXPERTS),
    ("mistral", "Mistral with a sliding window", {"sliding_window": 4}),
    ("mistral", "Mistral without one", {"sliding_window": None}),
    ("mixtral", "Mixtral", EXPERTS),
    ("gemma", "Gemma", {}),
    ("gemma2", "Gemma 2", {}),
    ("gemma3_text", "Gemma 3", {"sliding_window": 4}),
    ("phi", "Phi-1.5, Phi-2", {}),
    ("phi3", "Phi-3, Phi-4", {}),
    (
        "phi3",
        "Phi-3-128k, Phi-4-mini: LongRoPE",
        {
            "rope_scaling": {"type": "longrope", "long_factor": [4.0] * 4, "short_factor": [1.0] * 4},
            "original_max_position_embeddings": 64,
        },
    ),
    ("olmo", "OLMo", {}),
    ("olmo2", "OLMo 2", {}),
    ("olmo3", "OLMo 3", {"sliding_window": 4}),
    ("smollm3", "SmolLM3", {}),
    ("granite", "Granite, if it does not scale its logits", {}),
    ("granite", "Granite 3", {"logits_scaling": 8.0}),
    ("granitemoe", "Granite 3 MoE", EXPERTS),
    ("cohere", "Command R", {}),
    ("cohere2", "Command R7B, Aya", {}),
    ("nemotron", "Nemotron, Minitron", {}),
    ("stablelm", "StableLM 2", {}),
    ("starcoder2", "StarCoder2", {}),
    ("glm", "GLM-4-9B", {}),
    ("glm4", "GLM-4-0414", {}),
    ("exaone4", "EXAONE 4", {"sliding_window": 4}),
    ("seed_oss", "Seed-OSS", {}),
    ("ernie4_5", "ERNIE 4.5", {}),
    ("hunyuan_v1_dense", "Hunyuan", {}),
    ("apertus", "Apertus", {}),
    ("arcee", "AFM-4.5B", {}),
    ("helium", "Helium", {}),
    ("bitnet", "BitNet b1.58", {}),
    ("doge", "Doge", {"keep_window_size": 64}),
    ("deepseek_v2", "DeepSeek-V2-Lite", {**LATENT, "topk_method": "greedy"}),
    ("deepseek_v3", "DeepSeek-V3, R1, Moonlight", LATENT),
    ("deepseek_v32", "DeepSeek-V3.2", SPARSE),
    ("glm_moe_dsa", "GLM-5", SPARSE),
    ("gpt_oss", "gpt-oss", {}),
    ("gpt2", "GPT-2", SMALL_GPT),
    ("gpt_neox", "Pythia", SMALL_GPT),
    ("gptj", "GPT-J", SMALL_GPT),
    ("opt", "OPT", SMALL_GPT),
    ("falcon", "Falcon", {**SMALL_GPT, "alibi": False}),
    ("bloom", "BLOOM", SMALL_GPT),
    ("mpt", "MPT", SMALL_GPT),
    ("biogpt", "BioGPT", SMALL_GPT),
    ("bart", "the decoder of BART", SMALL_GPT),
    ("roberta", "RoBERTa, an encoder", SMALL_GPT),
    ("recurrent_gemma", "RecurrentGemma", {}),
    (
        "jamba",
        "Jamba: state spaces and attention",
        {**EXPERTS, "attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 4},
    ),
    ("lfm2", "LFM2: convolutions and attention", {"full_attn_idxs": [1]}),
    ("mamba", "Mamba", SMALL_GPT),
    ("rwkv", "RWKV", SMALL_GPT),
]
PROMPTS = ((3, 1, 4), (9, 2), (5, 6, 7, 8))


def built(kind: str, numbers: dict[str, Any]) -> PreTrainedModel:
    """A model of this kind in float32, with random weights."""
    chosen = {key: value for key, value in {**TINY, **numbers}.items() if value is not ...}
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **chosen), dtype=torch.float32)


def rows(folder: Path) -> Iterator[tuple[str, ...]]:
    words = word_tokenizer([f"w{i}" for i in range(14)] + ["end"], "end")
    for number, (kind, such_as, numbers) in enumerate(MODELS):
        directory = folder / str(number)
        built(kind, numbers).save_pretrained(directory)
        words.save_pretrained(directory)
        if fault := base_model._fault(str(directory), chat=False, system=None):
            yield f"`{kind}`", such_as, f"refused before launch: {fault.removeprefix('its ')}", "", ""
            continue
        yield f"`{kind}`", such_as, *trained(directory)


def trained(directory: Path) -> tuple[str, str, str]:
    """What came of training: the result, the layout of batches, whether the engine has a cache."""
    trainer = make_trainer(load_model(directory, dtype="float32"))
    engine = NativeEngine(directory, eos_token_ids=[14], pad_token_id=0)
    before = difference(trainer, engine)
    metrics = trainer.learn(batch())
    engine.sync(trainer.weights())
    nats = max(before, difference(trainer, engine))
    assert all(np.isfinite(value) for value in metrics.values())
    assert metrics["optim/grad_norm"] > 0
    result = "trained" if nats < CLOSE else f"WRONG: engine and trainer differ by {nats:.1g} nats"
    context = json.loads((directory / "config.json").read_bytes())
    stated, limit = context.get("max_position_embeddings"), base_model.context_of({"path": str(directory)})
    if limit is not None and stated is not None and limit < stated:
        result += f", in {limit} of {stated} positions; longer sequences are refused before launch"
    cached = engine.decoder is SharedPromptDecoder
    return result, "packed" if trainer.packer.packing else "in padded rows", "yes" if cached else "no"


def difference(trainer: Trainer, engine: NativeEngine) -> float:
    """The largest |log π_engine − log π_trainer| of three samples of each prompt, in nats."""
    requests = [Request(np.array(prompt), 3, key) for key, prompt in enumerate(PROMPTS)]
    groups = engine.generate(requests, Sampling(max_tokens=6, seed=5, step=2))
    sampled = [completion for group in groups for completion in group]
    tokens, mask, logp = torch.zeros(9, 6, dtype=torch.int64), torch.zeros(9, 6, dtype=torch.bool), torch.zeros(9, 6)
    for row, completion in enumerate(sampled):
        n = len(completion.tokens)
        tokens[row, :n], mask[row, :n] = torch.from_numpy(np.array(completion.tokens)), True
        logp[row, :n] = torch.from_numpy(np.array(completion.logp, dtype=np.float32))
    prompt, prompt_mask = padded()
    group, nothing = torch.arange(3).repeat_interleave(3), torch.zeros(9)
    learned = trainer.logp(Batch(tokens, mask, logp, nothing, nothing, group, prompt, prompt_mask))
    return float((learned - logp)[mask].abs().max())


def padded() -> tuple[Tensor, Tensor]:
    """(PROMPTS, left-padded; where their tokens are)."""
    tokens, mask = torch.zeros(3, 4, dtype=torch.int64), torch.zeros(3, 4, dtype=torch.bool)
    for row, prompt in enumerate(PROMPTS):
        tokens[row, 4 - len(prompt) :], mask[row, 4 - len(prompt) :] = torch.tensor(prompt), True
    return tokens, mask
