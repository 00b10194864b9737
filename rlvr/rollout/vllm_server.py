"""The process that vLLM lives in, started by rlvr/rollout/vllm.py; the only file that imports it.

Run as a script, `python -P vllm_server.py OPTIONS`, by an interpreter that has vLLM; it needs nothing of this package.
A message is a JSON header and raw arrays, framed by their lengths: nothing is unpickled. Asked on standard input:

- sync: take the weights that lie in a file of memory, then forget all cached prefixes
- load: the same with weights that come piece by piece in a part of this GPU's memory, each answered once it is copied
- probe: whether this process can read such a part
- generate: sample; completions are sent as they finish, and a sign of life at least every few seconds
- stop: sample no more of it. Answered by `stopped`, also where all was sampled before it came
- sleep: give the GPU's memory back until the next sync

Every answer names the version of the weights that it comes from.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import json
import os
import select
import signal
import struct
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

PR_SET_PDEATHSIG = 1
SIGN_OF_LIFE_S = 2.0
LENGTH = struct.Struct("<Q")
Arrays = dict[str, NDArray[Any]]


# --- messages, the same at both ends ---


def pack(header: dict[str, Any], arrays: Arrays) -> bytes:
    described = [[name, array.dtype.str, array.shape] for name, array in arrays.items()]
    text = json.dumps({**header, "arrays": described}).encode()
    return b"".join([LENGTH.pack(len(text)), text, *(np.ascontiguousarray(a).tobytes() for a in arrays.values())])


def receive(read: Callable[[int], bytes]) -> tuple[dict[str, Any], Arrays]:
    """(header, arrays) of the next message. read: gives exactly so many bytes, or raises."""
    header = json.loads(read(LENGTH.unpack(read(LENGTH.size))[0]))
    arrays: Arrays = {}
    for name, dtype, shape in header.pop("arrays"):
        count = int(np.prod(shape, dtype=np.int64))
        arrays[name] = np.frombuffer(read(count * np.dtype(dtype).itemsize), dtype).reshape(shape)
    return header, arrays


# --- the server ---


class Server:
    """vLLM with the weights of `model`, a directory in Hugging Face format, until `sync` gives others."""

    def __init__(
        self, answers: BinaryIO, *, model: str, dtype: str, eager: bool, max_cache_gb: float, max_batch_sequences: int
    ) -> None:
        from vllm import LLM  # type: ignore[import-not-found]
        from vllm.platforms import current_platform  # type: ignore[import-not-found]

        self.answers, self.version = answers, 0
        self.on_cpu, self.device = current_platform.is_cpu(), current_platform.device_type
        self.llm = LLM(
            model=model,
            dtype=dtype,
            skip_tokenizer_init=True,
            generation_config="vllm",
            enforce_eager=eager,
            seed=0,
            max_model_len=-1,
            max_num_seqs=max_batch_sequences,
            kv_cache_memory_bytes=int(max_cache_gb * 2**30),
            logprobs_mode="processed_logprobs",  # after the temperature: what the token was drawn from
            enable_sleep_mode=not self.on_cpu,
            # It asks at its start for this share of the GPU to be free, which the trainer's is not; the size of the
            # cache is given above.
            **({} if self.on_cpu else self._on_gpu(dtype)),
            # vLLM rewinds the random numbers of a prompt that was cut, which those of a CPU cannot do: it crashes.
            enable_chunked_prefill=not self.on_cpu,
        )
        self.asleep, self.num_asked = False, 0

    def _on_gpu(self, dtype: str) -> dict[str, Any]:
        """CUDA graphs give their memory back too; logits are float32, as the trainer's are."""
        own: dict[str, Any] = {"gpu_memory_utilization": 0.01, "sleep_mode_offload_cudagraph": True}
        return own if dtype == "float32" else {**own, "hf_overrides": {"head_dtype": "float32"}}

    def answer(self, header: dict[str, Any], **arrays: NDArray[Any]) -> None:
        self.answers.write(pack({**header, "version": self.version}, arrays))
        self.answers.flush()

    def sync(self, header: dict[str, Any], _: Arrays) -> None:
        """header: `file` and, per tensor, name, dtype, shape and place in it."""
        self._take(tensors(header), header["to_version"])

    def load(self, header: dict[str, Any], _: Arrays) -> None:
        """The weights follow in messages of their own."""
        self._take(self._pieces(), header["to_version"])

    def _take(self, weights: Iterable[tuple[str, Any]], version: int) -> None:
        if self.asleep:
            self.llm.wake_up(tags=["weights"])
        self.llm.collective_rpc("reload_weights", kwargs={"weights_iterator": weights})
        if self.on_cpu:
            self.llm.apply_model(retie)
        if self.asleep:
            self.llm.wake_up(tags=["kv_cache"])
            self.asleep = False
        # Keys and values of the old weights are wrong for the new ones.
        if not self.llm.reset_prefix_cache():
            raise RuntimeError("vLLM did not forget its cached prefixes: the next samples would mix two policies")
        self.version = version
        self.answer({})

    def _pieces(self) -> Iterator[tuple[str, Any]]:
        """(name, tensor) of each message until an empty one; the tensors are ours. The memory that they lie in is not
        open any more when a message is answered: who waits for that may free it or write the next ones there.
        """
        import torch

        while True:
            header, _ = receive(_exactly)
            if not header["tensors"]:
                return
            memory = cuda_ipc().SharedMemory.open(bytes.fromhex(header["handle"]), header["size"])
            copies: list[tuple[str, Any]] = []
            for name, dtype, shape, place in header["tensors"]:
                copy = torch.empty(shape, dtype=getattr(torch, dtype), device=self.device)
                memory.read(place, copy.data_ptr(), copy.numel() * copy.element_size())
                copies.append((name, copy))
            memory.close()
            self.answer({})
            yield from copies

    def probe(self, header: dict[str, Any], _: Arrays) -> None:
        """Answers with the `bytes` that lie there, or says `why` it cannot read them."""
        import torch

        read = torch.zeros(header["size"], dtype=torch.uint8, device=self.device)
        try:
            memory = cuda_ipc().SharedMemory.open(bytes.fromhex(header["handle"]), header["size"])
            memory.read(0, read.data_ptr(), header["size"])
            memory.close()
        except cuda_ipc().NotShared as error:
            self.answer({"why": str(error)})
            return
        self.answer({"why": ""}, bytes=read.cpu().numpy())

    def generate(self, header: dict[str, Any], arrays: Arrays) -> None:
        """One request per sample, so that each has a seed of its own and does not depend on the batch.

        header: sampling parameters. arrays: prompts end to end and their `lengths`, [N] `prompt` and `seed` of each
        sample. Completions are numbered as the samples are.
        """
        from vllm import SamplingParams, TokensPrompt  # type: ignore[import-not-found]
        from vllm.sampling_params import RequestOutputKind  # type: ignore[import-not-found]

        prompts = np.split(arrays["tokens"], np.cumsum(arrays["lengths"])[:-1])
        engine = self.llm.llm_engine
        first = self.num_asked  # vLLM must not mistake a request for one that it had before
        self.num_asked += len(arrays["seed"])
        for index, (row, seed) in enumerate(zip(arrays["prompt"].tolist(), arrays["seed"].tolist(), strict=True)):
            parameters = SamplingParams(
                **header["sampling"],
                seed=seed,
                logprobs=0,
                flat_logprobs=True,
                detokenize=False,
                output_kind=RequestOutputKind.FINAL_ONLY,
            )
            engine.add_request(str(first + index), TokensPrompt(prompt_token_ids=prompts[row].tolist()), parameters)
        last_sent, running = time.monotonic(), {str(first + index) for index in range(len(arrays["seed"]))}
        while engine.has_unfinished_requests():
            done = [output for output in engine.step() if output.finished]
            running -= {output.request_id for output in done}
            if select.select([sys.stdin.fileno()], [], [], 0)[0]:  # nothing but `stop` is asked meanwhile
                header, _ = receive(_exactly)
                assert header["do"] == "stop", header
                self._abort(sorted(running))
                return
            if done or time.monotonic() - last_sent > SIGN_OF_LIFE_S:
                last_sent = time.monotonic()
                self._send(done, first)

    def _abort(self, requests: list[str]) -> None:
        engine = self.llm.llm_engine
        engine.abort_request(requests)
        while engine.has_unfinished_requests():
            engine.step()
        self.stop()

    def stop(self, *_: object) -> None:
        self.answer({"stopped": True})

    def _send(self, outputs: list[Any], first: int) -> None:
        completions = [output.outputs[0] for output in outputs]
        tokens = [np.asarray(each.token_ids, dtype=np.int64) for each in completions]
        logp = [np.asarray(each.logprobs.logprobs, dtype=np.float32) for each in completions]
        none = [np.zeros(0)]
        self.answer(
            {},
            sample=np.array([int(output.request_id) - first for output in outputs], dtype=np.int64),
            finished=np.array([each.finish_reason == "stop" for each in completions], dtype=np.bool_),
            lengths=np.array([len(each) for each in tokens], dtype=np.int64),
            tokens=np.concatenate(tokens or none).astype(np.int64),
            logp=np.concatenate(logp or none).astype(np.float32),
        )

    def sleep(self, *_: object) -> None:
        if not self.on_cpu and not self.asleep:
            self.llm.sleep(level=2)  # the weights too: the next use of the engine begins with a sync
            self.asleep = True
        self.answer({})


def tensors(header: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """(name, tensor) of the weights in a file of memory, without a copy."""
    import torch

    memory = np.memmap(header["file"], dtype=np.uint8, mode="c")
    for name, dtype, shape, start in header["tensors"]:
        kind = getattr(torch, dtype)
        count = int(np.prod(shape, dtype=np.int64))
        yield name, torch.frombuffer(memory, dtype=kind, count=count, offset=start).view(shape)


@functools.cache
def cuda_ipc() -> Any:
    """The module of that name beside this file, which is no package here."""
    file = Path(__file__).with_name("cuda_ipc.py")
    specification = importlib.util.spec_from_file_location(file.stem, file)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def retie(model: Any) -> None:
    """On a CPU vLLM keeps a packed copy of the output head, which `reload_weights` leaves stale if it is tied."""
    head = getattr(model, "lm_head", None)
    if head is not None and getattr(head, "quant_method", None) is not None:
        head.quant_method.process_weights_after_loading(head)


def main() -> None:
    options = json.loads(sys.argv[1])
    parent = options.pop("parent")
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return  # it died before we asked to die with it
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what vLLM prints goes to standard error: it is the trainer's to log
    server = Server(answers, **options)
    server.answer({"max_tokens": server.llm.llm_engine.model_config.max_model_len})
    known = (server.sync, server.load, server.probe, server.generate, server.stop, server.sleep)
    answers_to = {each.__name__: each for each in known}
    while True:
        header, arrays = receive(_exactly)
        answers_to[header["do"]](header, arrays)


def _exactly(count: int) -> bytes:
    data = sys.stdin.buffer.read(count)
    if len(data) < count:
        os._exit(0)  # the trainer is done with us; vLLM's own tear-down takes seconds and saves nothing
    return data


if __name__ == "__main__":
    main()
