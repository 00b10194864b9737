"""The process that vLLM lives in, started by rlvr/rollout/vllm.py; the only file that imports it.

Run as a script, `python -P vllm_server.py OPTIONS`, by an interpreter that has vLLM; it needs nothing of this package.
A message is a JSON header and raw arrays, framed by their lengths: nothing is unpickled. Asked on standard input:

- sync: take the weights that lie in a file of memory, then forget all cached prefixes
- load: the same with weights that come piece by piece in a part of this GPU's memory, each answered once it is copied
- probe: whether this process can read such a part
- join: become one of a group to which weights are broadcast (rlvr/rollout/broadcast.py), each process of vLLM itself
- take: the same as `sync` with weights that are broadcast
- generate: sample; completions are sent as they finish, and a sign of life at least every few seconds
- stop: sample no more of this topic. Answered by `stopped`, also where all was sampled before it came
- sleep: give the GPU's memory back until the next sync

Every answer names the `topic` of what it answers and the version of the weights that it comes from. What is asked while
requests run is done between two of their tokens: after a sync they go on from the new weights, with the keys and values
that they have. Cached prefixes are those of one version of the weights.
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
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Running:
    """A request that vLLM has not finished yet."""

    topic: int
    sample: int  # its number among those of the topic
    prompt: list[int]
    parameters: Any
    own_id: str  # by which vLLM knows it


class Server:
    """vLLM with the weights of `model`, a directory in Hugging Face format, until `sync` gives others."""

    def __init__(
        self,
        answers: BinaryIO,
        *,
        model: str,
        dtype: str,
        eager: bool,
        max_cache_gb: float,
        max_batch_sequences: int,
        tensor_parallel: int,
        sleeps: bool,
    ) -> None:
        """sleeps: it may be asked to. With tensor parallelism that slows the sums over GPUs in captured graphs."""
        from vllm import LLM  # type: ignore[import-not-found]
        from vllm.platforms import current_platform  # type: ignore[import-not-found]

        self.answers, self.version = answers, 0
        self.on_cpu, self.device = current_platform.is_cpu(), current_platform.device_type
        sleeps &= not self.on_cpu
        self.llm = LLM(
            model=model,
            dtype=dtype,
            skip_tokenizer_init=True,
            generation_config="vllm",
            enforce_eager=eager,
            seed=0,
            max_model_len=-1,
            max_num_seqs=max_batch_sequences,
            tensor_parallel_size=tensor_parallel,
            distributed_executor_backend="mp" if tensor_parallel > 1 else None,  # a process for each GPU, of this node
            kv_cache_memory_bytes=int(max_cache_gb * 2**30),
            logprobs_mode="processed_logprobs",  # after the temperature: what the token was drawn from
            enable_sleep_mode=sleeps,
            # It asks at its start for this share of the GPU to be free, which the trainer's is not; the size of the
            # cache is given above.
            **({} if self.on_cpu else self._on_gpu(dtype, sleeps=sleeps)),
            # vLLM rewinds the random numbers of a prompt that was cut, which those of a CPU cannot do: it crashes.
            enable_chunked_prefill=not self.on_cpu,
        )
        self.asleep, self.num_asked, self.processes = False, 0, tensor_parallel
        self.topic = 0  # of the message that is being answered
        self.running: dict[str, Running] = {}
        self.last_sent = time.monotonic()
        if self.processes > 1:
            self.llm.collective_rpc(end_with_parent)

    def _on_gpu(self, dtype: str, *, sleeps: bool) -> dict[str, Any]:
        """CUDA graphs give their memory back too; logits are float32, as the trainer's are."""
        own: dict[str, Any] = {"gpu_memory_utilization": 0.01, "sleep_mode_offload_cudagraph": sleeps}
        return own if dtype == "float32" else {**own, "hf_overrides": {"head_dtype": "float32"}}

    def hear(self, header: dict[str, Any], arrays: Arrays) -> None:
        """Do what a message asks for."""
        self.topic = header.get("topic", 0)
        known = (self.sync, self.load, self.probe, self.join, self.take, self.generate, self.stop, self.sleep)
        {each.__name__: each for each in known}[header["do"]](header, arrays)

    def answer(self, header: dict[str, Any], **arrays: NDArray[Any]) -> None:
        self.answers.write(pack({"topic": self.topic, **header, "version": self.version}, arrays))
        self.answers.flush()

    def sync(self, header: dict[str, Any], _: Arrays) -> None:
        """header: `file` and, per tensor, name, dtype, shape and place in it."""
        if self.processes == 1:
            self._take(lambda: self._reload(tensors(header)), header["to_version"])
        else:  # each reads them itself, and keeps its part
            self._take(lambda: self.llm.collective_rpc(reload_on_worker, args=(header,)), header["to_version"])

    def load(self, header: dict[str, Any], _: Arrays) -> None:
        """The weights follow in messages of their own."""
        self._take(lambda: self._reload(self._pieces()), header["to_version"])

    def join(self, header: dict[str, Any], _: Arrays) -> None:
        """header: `where` they meet, number of this `member` and of all, `timeout_s`. Answers `why` it cannot."""
        said = self.llm.collective_rpc(join_on_worker, args=(header, str(Path(__file__).with_name("broadcast.py"))))
        self.answer({"why": next(filter(None, said), "")})

    def take(self, header: dict[str, Any], _: Arrays) -> None:
        """header: name, dtype and shape of each tensor, in the order in which they come. What is half taken when one is
        lost is no policy: this process then ends.
        """
        tensors = header["tensors"]
        self._take(lambda: self.llm.collective_rpc(take_on_worker, args=(tensors,)), header["to_version"])

    def _reload(self, weights: Iterable[tuple[str, Any]]) -> None:
        self.llm.collective_rpc("reload_weights", kwargs={"weights_iterator": weights})

    def _take(self, reload: Callable[[], object], version: int) -> None:
        if self.asleep:
            self.llm.wake_up(tags=["weights"])
        if self.running and not self.on_cpu:
            self.llm.collective_rpc("synchronize_device")  # the token that is on its way is the old weights'
        reload()
        if self.on_cpu:
            self.llm.apply_model(retie)
        if self.asleep:
            self.llm.wake_up(tags=["kv_cache"])
            self.asleep = False
        self.version = version  # prefixes cached under the old weights are no other request's any more
        if self.running:
            self._begin_again()
            self.last_sent = 0.0  # all who wait hear of it
        elif not self.llm.reset_prefix_cache():
            raise RuntimeError("vLLM did not forget its cached prefixes: the next samples would mix two policies")
        self.answer({})

    def _begin_again(self) -> None:
        """Requests without a token have the new weights read their prompts, too."""
        states = self.llm.llm_engine.output_processor.request_states
        fresh = [name for name, each in self.running.items() if states[each.own_id].is_prefilling]
        self.llm.llm_engine.abort_request(fresh)
        for name in fresh:
            each = self.running.pop(name)
            self._ask(each.topic, each.sample, each.prompt, each.parameters)

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
            copies = [
                (name, torch.empty(shape, dtype=getattr(torch, dtype), device=self.device))
                for name, dtype, shape, _ in header["tensors"]
            ]
            cuda_ipc().wait()  # where they lie, vLLM's stream may still read what lay there before
            for (_, copy), (*_, place) in zip(copies, header["tensors"], strict=True):
                memory.read(place, copy.data_ptr(), copy.numel() * copy.element_size())
            memory.close()
            self.answer({})
            yield from copies

    def probe(self, header: dict[str, Any], _: Arrays) -> None:
        """Answers with the `bytes` that lie there, or says `why` it cannot read them."""
        import torch

        read = torch.zeros(header["size"], dtype=torch.uint8, device=self.device)
        try:
            memory = cuda_ipc().SharedMemory.open(bytes.fromhex(header["handle"]), header["size"])
            cuda_ipc().wait()  # vLLM's stream may not have filled it with zeros yet
            memory.read(0, read.data_ptr(), header["size"])
            memory.close()
        except cuda_ipc().NotShared as error:
            self.answer({"why": str(error)})
            return
        self.answer({"why": ""}, bytes=read.cpu().numpy())

    def generate(self, header: dict[str, Any], arrays: Arrays) -> None:
        """One request per sample, so that each has a seed of its own and does not depend on the batch.

        header: sampling parameters, and the number of the `first` sample. arrays: prompts end to end and their
        `lengths`, [N] `prompt` and `seed` of each sample. Completions are numbered as the samples are.
        """
        from vllm import SamplingParams  # type: ignore[import-not-found]
        from vllm.sampling_params import RequestOutputKind  # type: ignore[import-not-found]

        prompts = [each.tolist() for each in np.split(arrays["tokens"], np.cumsum(arrays["lengths"])[:-1])]
        samples = zip(arrays["prompt"].tolist(), arrays["seed"].tolist(), strict=True)
        for sample, (row, seed) in enumerate(samples, header["first"]):
            parameters = SamplingParams(
                **header["sampling"],
                seed=seed,
                logprobs=0,
                flat_logprobs=True,
                detokenize=False,
                output_kind=RequestOutputKind.FINAL_ONLY,
            )
            self._ask(self.topic, sample, prompts[row], parameters)

    def _ask(self, topic: int, sample: int, prompt: list[int], parameters: Any) -> None:
        from vllm import TokensPrompt  # type: ignore[import-not-found]

        name = str(self.num_asked)  # vLLM must not mistake a request for one that it had before
        self.num_asked += 1
        tokens = TokensPrompt(prompt_token_ids=prompt, cache_salt=f"weights {self.version}")
        own_id = self.llm.llm_engine.add_request(name, tokens, parameters)
        self.running[name] = Running(topic, sample, prompt, parameters, own_id)

    def step(self) -> None:
        """A token of every request that runs."""
        finished: dict[int, list[tuple[int, Any]]] = defaultdict(list)
        for output in self.llm.llm_engine.step():
            if output.finished and output.request_id in self.running:  # else it was stopped
                each = self.running.pop(output.request_id)
                finished[each.topic].append((each.sample, output.outputs[0]))
        if time.monotonic() - self.last_sent > SIGN_OF_LIFE_S:
            finished |= {each.topic: [] for each in self.running.values() if each.topic not in finished}
        for topic, samples in finished.items():
            self.last_sent = time.monotonic()
            self._send(topic, samples)

    def stop(self, *_: object) -> None:
        mine = [name for name, each in self.running.items() if each.topic == self.topic]
        if mine:
            self.llm.llm_engine.abort_request(mine)
            for name in mine:
                del self.running[name]
        while not self.running and self.llm.llm_engine.has_unfinished_requests():
            self.llm.llm_engine.step()
        self.answer({"stopped": True})

    def _send(self, topic: int, samples: list[tuple[int, Any]]) -> None:
        tokens = [np.asarray(each.token_ids, dtype=np.int64) for _, each in samples]
        logp = [np.asarray(each.logprobs.logprobs, dtype=np.float32) for _, each in samples]
        none = [np.zeros(0)]
        self.answer(
            {"topic": topic},
            sample=np.array([number for number, _ in samples], dtype=np.int64),
            finished=np.array([each.finish_reason == "stop" for _, each in samples], dtype=np.bool_),
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


# --- what vLLM's own processes do, where it has one for each of several GPUs ---


def reload_on_worker(worker: Any, header: dict[str, Any]) -> None:
    """Take a part of the weights that lie in a file of memory."""
    worker.reload_weights(weights_iterator=tensors(header))


def join_on_worker(worker: Any, header: dict[str, Any], file: str) -> str:
    """Become one of the group, by what that file says. Returns why it cannot."""
    broadcast = module_of(file)
    try:
        store, ip = broadcast.meet(header["where"], header["timeout_s"])
        member = header["member"] + worker.rank
        settings = {"on": worker.device, "ip": ip, "timeout_s": header["timeout_s"]}
        worker.rlvr_group = broadcast.Group(store, member, header["members"], **settings)
    except broadcast.Broken as error:
        return str(error)
    return ""


def take_on_worker(worker: Any, tensors: list[Any]) -> None:
    """All tensors come to each, which keeps its part."""
    import torch

    def coming() -> Iterator[tuple[str, Any]]:
        for name, dtype, shape, *_ in tensors:
            tensor = torch.empty(shape, dtype=getattr(torch, dtype), device=worker.device)
            worker.rlvr_group.broadcast(tensor)
            yield name, tensor

    worker.reload_weights(weights_iterator=coming())


def end_with_parent(_: Any = None) -> None:
    """Even if this process hangs: what vLLM itself does when the parent is gone is to ask the others to end."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


@functools.cache
def cuda_ipc() -> Any:
    return module_of(str(Path(__file__).with_name("cuda_ipc.py")))


def module_of(file: str) -> Any:
    """What that file makes, which is of no package here."""
    specification = importlib.util.spec_from_file_location(Path(file).stem, file)
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
    end_with_parent()
    if os.getppid() != parent:
        return  # it died before we asked to die with it
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what vLLM prints goes to standard error: it is the trainer's to log
    server = Server(answers, **options)
    server.answer({"max_tokens": server.llm.llm_engine.model_config.max_model_len})
    while True:
        while not server.running or select.select([sys.stdin.fileno()], [], [], 0)[0]:
            server.hear(*receive(_exactly))
        server.step()


def _exactly(count: int) -> bytes:
    """Without a buffer: what has come and was not read yet is for `select` to see."""
    data = bytearray()
    while len(data) < count:
        chunk = os.read(sys.stdin.fileno(), count - len(data))
        if not chunk:
            os._exit(0)  # the trainer is done with us; vLLM's own tear-down takes seconds and saves nothing
        data += chunk
    return bytes(data)


if __name__ == "__main__":
    main()
