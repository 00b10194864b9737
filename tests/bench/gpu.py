"""Speed of models of real size with random weights on a GPU, beside the GPU's limits: one JSON line per measurement.

    make bench-gpu                                     all of it: ten to twenty minutes and 80 GB of GPU memory
    python -m tests.bench.gpu train --model 7b --tokens 4096 --layers 8        one measurement of one model
    python -m tests.bench.gpu all --fake               shows without a GPU, on a fake one, that all of it runs
    python -m tests.bench.gpu all --model tiny --tokens 64 --device cpu        on a CPU: `train`, `logp` and `decode`

train: forward and backward pass and AdamW of the trainer in bfloat16 on 16 sequences of --tokens tokens each, an eighth
of them prompt, no prompt shared, packed into micro-batches of the default token budget, 16384: with 4096 tokens four
micro-batches of four sequences, 16,380 tokens (a sequence's last token is not read). `share`: floating-point operations
of the linear layers on the tokens read, over the time and the rate of a square bfloat16 matrix product measured just
before; attention, norms and the optimiser count as loss. Only as many layers as fit are measured (`layers`), by the
estimate of rlvr/config/memory.py. `packed`, `varlen`, `compiled`: how it was computed; on a GPU it must be varlen.
`first_s`: seconds of the first update, compilation included.
train_compiled: the same with `trainer.compile=auto`. Compilation pays if its `share` is larger than that of `train`.
logp: peak memory of log-probabilities and entropies of four times --tokens and of their gradient, with logits in
chunks and all at once (`peer_value`; null: out of memory), the head's weights included; `share`: ratio of the two.
decode: new tokens per second of the native engine, 64 samples at once; `share`: of what reading the weights once per
step for all of them allows, at the rate of a copy within the GPU's memory measured just before. An embedding that is
not the head, too, does not count: only its rows of the sampled tokens are read.
sync: seconds until a vLLM on the same GPU has all weights of a trainer there, by CUDA's IPC, and through main memory
(`peer_value`); `share` is the ratio of the two. It needs vLLM (--python: of an environment that has it) and first
writes the model to a temporary directory.
step: seconds of a training step of `paper=lad_math` on one GPU, with 8 prompts instead of 256 and responses of --tokens
tokens, and its `parts`; beside it the estimate of `--dry-run`'s cost model for responses of this length (`peer_value`).
It needs vLLM, too.
"""

import argparse
import importlib.util
import json
import math
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

from rlvr.config import memory
from rlvr.config.cost import DEVICES
from rlvr.objective.batch import Batch
from rlvr.records import Request, Sampling
from rlvr.rollout.native import NativeEngine
from rlvr.rollout.vllm import VllmEngine
from rlvr.trainer import distributed
from rlvr.trainer.logprob import CHUNK, token_logp
from rlvr.trainer.packer import Packer
from tests.bench.lad_step import lad_step, setting
from tests.bench.train import gemm_rate, linear_flops, make_trainer, median_s, rollouts
from tests.support import fake_cuda

# Qwen2.5-1.5B and Qwen2.5-7B, also the sizes of DeepSeek-R1's distillations; and one for a CPU.
SHAPE = (
    *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
    *("vocab_size", "tie_word_embeddings"),
)
MODELS: dict[str, dict[str, Any]] = {
    name: dict(zip(SHAPE, shape, strict=True))
    for name, shape in {
        "1.5b": (1536, 8960, 28, 12, 2, 151936, True),
        "7b": (3584, 18944, 28, 28, 4, 152064, False),
        "tiny": (32, 64, 2, 4, 2, 64, True),
    }.items()
}
FITS = 0.85  # largest share of the memory by the estimate, which is meant to be right within a fifth
TOKEN_BUDGET = 16384  # of conf/trainer/fsdp.yaml
REPEATS = 3
SMALL = 256  # rows of the matrices that are compared with the tiny model
ON_FAKE_GPU = os.environ.get("RLVR_BENCH_FAKE") == "1"  # whether this process runs on the fake GPU
STAND_IN = Path(__file__).parents[1] / "support" / "vllm_stand_in"
Row = dict[str, Any]


def measurement(
    name: str,
    layers: int,
    value: float | None,
    unit: str,
    peer: str,
    peer_value: float | None,
    share: float | None,
    peak_gb: float | None = None,
    **more: Any,
) -> Row:
    about = {"name": name, "layers": layers, "value": value, "unit": unit, "peer": peer, "peer_value": peer_value}
    return {**about, "share": share, "peak_gb": peak_gb, **more}


def make(name: str, layers: int | None, dtype: torch.dtype, device: torch.device) -> Qwen2ForCausalLM:
    """Random weights, created on the device: a CPU takes minutes for 7B."""
    torch.manual_seed(0)
    config = Qwen2Config(**{**MODELS[name], "max_position_embeddings": 32768})
    config.num_hidden_layers = layers or config.num_hidden_layers
    config.layer_types = ["full_attention"] * config.num_hidden_layers
    with device:
        return AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=dtype)


def fitting(name: str, setting: memory.MemorySetting, total_bytes: float) -> int:
    """Number of a model's layers that can be trained on a device with `total_bytes` of memory. Exits if none can."""
    model = memory.architecture({"model_type": "qwen2", **MODELS[name]})
    assert model is not None
    for layers in range(model.layers, 0, -1):
        if sum(memory.per_gpu(replace(model, layers=layers), setting).values()) <= FITS * total_bytes:
            return layers
    raise SystemExit(f"not one layer of {name} can be trained in {total_bytes / memory.GB:.3g} GB")


def memory_bytes(device: torch.device) -> float:
    return torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else math.inf


def peak_gb(work: Callable[[], object], device: torch.device) -> float | None:
    """Largest amount of GPU memory in use while `work` runs; None on a CPU."""
    if device.type == "cpu":
        work()
        return None
    torch.cuda.reset_peak_memory_stats()
    work()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() / 2**30


def sequences(name: str, tokens: int) -> Batch:
    """16 sequences of `tokens` tokens, each with a prompt of its own of an eighth of them."""
    prompt = tokens // 8
    return rollouts(
        groups=16,
        samples=1,
        mixed=False,
        prompt=(prompt, prompt + 1),
        response=tokens - prompt,
        vocabulary=MODELS[name]["vocab_size"],
    )


def refuse_other_layouts(packer: Packer, device: torch.device) -> None:
    """Raises RuntimeError on a GPU if attention is not computed in one call for sequences of any lengths."""
    if device.type == "cuda" and not packer.varlen:
        raise RuntimeError(
            f"train measures packed sequences with varlen attention, and here it would have packed={packer.packing}, "
            "varlen=False. It needs a GPU of compute capability 8.0 or later, a head size that is a multiple of 8, and "
            "packed hidden states that equal padded ones: a warning above names what differs."
        )


def train(
    name: str, tokens: int, layers: int | None, device: torch.device, *, compile: bool | Literal["auto"] = False
) -> Row:
    """Updates on `sequences`, in micro-batches of TOKEN_BUDGET tokens (on a CPU of 8192)."""
    layers = layers or fitting(
        name, memory.MemorySetting(tokens=max(TOKEN_BUDGET, tokens), beside_gb=memory.CONTEXT_GB), memory_bytes(device)
    )
    batch, model = sequences(name, tokens), make(name, layers, torch.float32, device)
    knobs = {"dtype": "bfloat16", "token_budget": TOKEN_BUDGET, "compile": compile}
    trainer = make_trainer(model, device, max_tokens=tokens, **knobs)
    refuse_other_layouts(trainer.packer, device)
    began = time.perf_counter()
    read = trainer.learn(batch)["tokens/train"]  # waits for the GPU
    first_s = time.perf_counter() - began
    work = linear_flops(model, batch, read)
    pairs = [
        (
            gemm_rate(torch.bfloat16, device, SMALL if name == "tiny" else None),
            median_s(lambda: trainer.learn(batch), device, 1, warm=False),
        )
        for _ in range(REPEATS)
    ]
    seconds = statistics.median(s for _, s in pairs)
    held = peak_gb(lambda: trainer.learn(batch), device)
    rate, share = statistics.median(r for r, _ in pairs), statistics.median(work / s / r for r, s in pairs)
    about = {"first_s": first_s, "packed": trainer.packer.packing, "varlen": trainer.packer.varlen}
    about |= {"compiled": trainer.knobs.compiles(device, packed=trainer.packer.packing)}
    peer = "square matrix product, TFLOP/s"
    return measurement("training", layers, read / seconds, "tokens/s", peer, rate / 1e12, share, held, **about)


def train_compiled(name: str, tokens: int, layers: int | None, device: torch.device) -> Row:
    return train(name, tokens, layers, device, compile="auto")


def logp(name: str, tokens: int, layers: int | None, device: torch.device) -> Row:
    """Only the head of the model, on hidden states of four sequences."""
    shape, tokens = MODELS[name], 4 * tokens
    head = torch.nn.Linear(shape["hidden_size"], shape["vocab_size"], bias=False, device=device, dtype=torch.bfloat16)
    hidden = torch.randn(tokens, shape["hidden_size"], device=device, dtype=torch.bfloat16, requires_grad=True)
    target = torch.arange(tokens, device=device) % shape["vocab_size"]

    def work(chunk: int) -> None:
        values, entropy = token_logp(head, hidden, target, 1.0, entropy_gradient=True, chunk=chunk)
        (values.sum() + entropy.sum()).backward()
        hidden.grad = head.weight.grad = None

    work(CHUNK)
    chunked = peak_gb(lambda: work(CHUNK), device)
    try:
        whole = peak_gb(lambda: work(tokens * shape["vocab_size"]), device)
    except torch.OutOfMemoryError:
        whole = None
    name, share = "peak memory of log-probabilities", chunked / whole if chunked and whole else None
    return measurement(name, 0, chunked, "GiB", "all logits at once", whole, share, chunked)


def bytes_read(model: Qwen2ForCausalLM) -> int:
    """Bytes of weights that a decoding step reads: not the embedding, unless it is the head."""
    read = sum(p.numel() * p.element_size() for p in model.parameters())
    embedding = model.model.embed_tokens.weight
    return read if embedding is model.lm_head.weight else read - embedding.numel() * embedding.element_size()


def decode(name: str, tokens: int, layers: int | None, device: torch.device) -> Row:
    """16 prompts of an eighth of --tokens, with 4 samples each of a 32nd of --tokens new tokens."""
    model = make(name, layers, torch.bfloat16, device)
    weights = bytes_read(model)
    layers = model.config.num_hidden_layers
    engine = NativeEngine(model, eos_token_ids=[-1], pad_token_id=0, dtype="bfloat16")  # an end that never comes
    draw = np.random.default_rng(0)
    requests = [Request(draw.integers(1, MODELS[name]["vocab_size"], tokens // 8), 4, key) for key in range(16)]
    sampling = Sampling(max_tokens=tokens // 32, seed=0, step=0)
    held = peak_gb(lambda: engine.generate(requests, sampling), device)  # it also warms up
    seconds = median_s(lambda: engine.generate(requests, sampling), device, REPEATS, warm=False)
    speed, bandwidth = 64 * sampling.max_tokens / seconds, copy_rate(name, device)
    peer, share = "copy within memory, GB/s", speed / (64 * bandwidth / weights)
    return measurement("native decoding", layers, speed, "tokens/s", peer, bandwidth / 1e9, share, held)


def sync(name: str, tokens: int, layers: int | None, device: torch.device, *, python: str | None = None) -> Row:
    """Send the float32 weights of a model on the GPU, gathered and cast one by one, to a sleeping vLLM in bfloat16."""
    model = make(name, layers, torch.bfloat16, device)
    with tempfile.TemporaryDirectory() as directory:
        model.save_pretrained(directory, state_dict={key: weight.cpu() for key, weight in model.state_dict().items()})
        engine = VllmEngine(
            Path(directory),
            device=device,
            eos_token_ids=[-1],
            dtype="bfloat16",
            python=python,
            eager=True,
            max_batch_sequences=64,
            max_cache_gb=1.0,
            canary=None,
            timeout_s=600,
        )

        def hand_over() -> None:
            engine.sleep()
            engine.sync((key, parameter.detach().float()) for key, parameter in model.named_parameters())

        within_gpu_s = median_s(hand_over, device, REPEATS)
        if not engine.within_gpu:
            raise RuntimeError("weights were not sent within the GPU: the log above has the reason")
        engine.within_gpu = False
        through_memory_s = median_s(hand_over, device, REPEATS)
        engine.close()
    peer, share = "through main memory", within_gpu_s / through_memory_s
    layers = model.config.num_hidden_layers
    return measurement("weights to vLLM", layers, within_gpu_s, "s", peer, through_memory_s, share)


def step(name: str, tokens: int, layers: int | None, device: torch.device, *, python: str | None = None) -> Row:
    """A step of LAD with as many layers as can be trained."""
    shown = machine(device)["device"].lower().replace(" ", "")
    gpu = next((known for known in DEVICES if known != "cpu" and known in shown), "h100")
    layers = layers or fitting(name, setting(tokens, gpu), memory_bytes(device))
    result = lad_step(make(name, layers, torch.bfloat16, device).cpu(), tokens, gpu, python=python)
    share = result["peer_value"] / result["value"]
    return measurement("a step of LAD", layers, unit="s", peer=f"the cost model, {gpu}", share=share, **result)


def copy_rate(name: str, device: torch.device) -> float:
    """Bytes read and written per second."""
    large = device.type == "cuda" and name != "tiny"
    source = torch.empty(2**30 if large else 2**24, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * len(source) / median_s(lambda: target.copy_(source), device, 5)


KINDS: dict[str, Callable[..., Row]] = {
    made.__name__: made for made in (train, train_compiled, logp, decode, sync, step)
}
ON_A_CPU = ("train", "logp", "decode")
WITH_VLLM = ("sync", "step")


def machine(device: torch.device) -> Row:
    if ON_FAKE_GPU:
        return {"device": "none: a fake GPU, whose numbers mean nothing", "torch": torch.__version__}
    if device.type == "cpu":
        return {"device": "cpu", "torch": torch.__version__}
    gpu = torch.cuda.get_device_properties(device)
    return {"device": gpu.name, "memory_gb": round(gpu.total_memory / 2**30), "torch": torch.__version__}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", choices=["all", *KINDS])
    parser.add_argument("--model", choices=MODELS, action="append", help="may be repeated; default: 1.5b and 7b")
    parser.add_argument("--tokens", type=int, help="tokens of a sequence; default: 4096")
    parser.add_argument("--layers", type=int, help="layers of the model; default: all, or as many as can be trained")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--python", help="Python of an environment with vLLM, for sync and step; default: this one")
    fake_help = "run on a fake GPU, by default with the tiny model and 64 tokens: no value is reported"
    parser.add_argument("--fake", action="store_true", help=fake_help)
    options = parser.parse_args(arguments)
    fake = options.fake or ON_FAKE_GPU
    options.model = options.model or (["tiny"] if fake else ["1.5b", "7b"])
    options.tokens = options.tokens or (64 if fake else 4096)
    if options.fake and options.device != "cuda":
        parser.error(f"--fake stands for a GPU: drop --device {options.device}")
    if options.device == "cuda" and not options.fake and not torch.cuda.is_available():
        parser.error("there is no GPU here. Pass --fake, or on a CPU: --device cpu --model tiny --tokens 64")
    if options.tokens < 64:
        parser.error(f"--tokens {options.tokens} must be 64 or more")
    if options.device == "cpu" and options.kind not in ("all", *ON_A_CPU):
        parser.error(f"{options.kind} needs a GPU: pass --fake")
    if options.fake:
        if missing := fake_cuda.missing():
            parser.error(f"--fake needs {missing}")
        return on_fake_gpu(options)
    kinds = list(KINDS if options.device != "cpu" else ON_A_CPU) if options.kind == "all" else [options.kind]
    if options.python is None and importlib.util.find_spec("vllm") is None:
        for kind in [kind for kind in kinds if kind in WITH_VLLM]:
            why = f"{kind} needs vLLM: --python /path/to/python of an environment that has it"
            if options.kind == kind:
                parser.error(why)
            print(f"left out: {why}", file=sys.stderr)
            kinds.remove(kind)
    jobs = [(kind, model) for kind in kinds for model in options.model]  # those with vLLM, the slowest, last
    if len(jobs) == 1 or fake:
        for kind, model in jobs:
            print(json.dumps(measured(kind, model, options)), flush=True)
        return 0
    # Each in a process of its own, so that none inherits another's memory.
    commands = [[sys.executable, "-m", *words(kind, [model], options)] for kind, model in jobs]
    return run_each(commands)


def run_each(commands: Sequence[Sequence[str]]) -> int:
    """Run the commands one after another. Returns the exit status: of the first that failed, as a shell gives it."""
    failed = list[int]()
    for command in commands:
        status = subprocess.run(command).returncode
        if status:
            status = status if status > 0 else 128 - status  # ended by a signal, whose number is negative
            print(f"failed with exit status {status}: {shlex.join(command)}", file=sys.stderr)
            failed.append(status)
    return failed[0] if failed else 0


def on_fake_gpu(options: argparse.Namespace) -> int:
    """Run all selected measurements in one process on the fake GPU. Returns the exit status."""
    module, *arguments = words(options.kind, options.model, options)
    path = f"{fake_cuda.ROOT}:{STAND_IN}"
    try:
        print(fake_cuda.run(module, *arguments, PYTHONPATH=path, RLVR_BENCH_FAKE="1"), end="", flush=True)
    except AssertionError as failed:
        print(failed, file=sys.stderr)
        return 1
    return 0


def measured(kind: str, model: str, options: argparse.Namespace) -> Row:
    device = torch.device(options.device)
    if device.type == "cuda":
        _, _, device = distributed.join_group()  # sets the GPU up as in a run
    python = {"python": options.python} if kind in WITH_VLLM else {}
    row = KINDS[kind](model, options.tokens, options.layers, device, **python)
    if ON_FAKE_GPU:
        row |= dict.fromkeys({"value", "peer_value", "share", "peak_gb", "first_s", "parts"} & row.keys())
    return {
        "bench": f"gpu_{kind}",
        "model": model,
        "tokens": options.tokens,
        **row,
        "machine": machine(device),
        "command": " ".join(["python", "-m", *words(kind, [model], options), *(["--fake"] if ON_FAKE_GPU else [])]),
    }


def words(kind: str, models: Sequence[str], options: argparse.Namespace) -> list[str]:
    """The words of a command after `python -m`."""
    shared = ((name, getattr(options, name)) for name in ("tokens", "layers", "python", "device"))
    pairs = [*(("model", model) for model in models), *shared]
    return ["tests.bench.gpu", kind, *(word for k, v in pairs if v is not None for word in (f"--{k}", str(v)))]


if __name__ == "__main__":
    sys.exit(main())
