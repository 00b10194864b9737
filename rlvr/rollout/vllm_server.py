"""The process that vLLM runs in, started by rlvr/rollout/vllm.py; the only file that imports vLLM.

Run as a script, `python -P vllm_server.py OPTIONS`, by an interpreter that has vLLM; it imports nothing of this
package. A message is a JSON header and raw arrays, framed by their lengths: nothing is unpickled. Requests on
standard input:

- sync: load the weights that lie in a memory file, then drop all cached prefixes
- load: the same with weights that arrive in parts, in a buffer of this GPU's memory; each part is answered once it
  is copied
- probe: test whether this process can read such a buffer
- join: join a group to which weights are broadcast (rlvr/rollout/broadcast.py), with each process of vLLM
- take: the same as `sync` with weights that are broadcast
- generate: sample; completions are sent as they finish, and a heartbeat at least every few seconds
- stop: stop sampling this topic. Answered by `stopped`, even if everything had been sampled before
- sleep: give the GPU's memory back until the next sync

Every answer contains the `topic` of the request that it answers and the version of the weights. Requests that arrive
during sampling are handled between two tokens: after a sync, running samples continue with the new weights and their
existing keys and values. Cached prefixes belong to one version of the weights.
"""

import ctypes
import functools
import gc
import importlib.util
import json
import os
import select
import signal
import struct
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

PR_SET_PDEATHSIG = 1
HEARTBEAT_S = 2.0
LENGTH = struct.Struct("<Q")
Arrays = dict[str, NDArray[Any]]


# --- messages, the same at both ends ---


def pack(header: dict[str, Any], arrays: Arrays) -> bytes:
    descriptions = [[name, array.dtype.str, array.shape] for name, array in arrays.items()]
    text = json.dumps({**header, "arrays": descriptions}).encode()
    return b"".join([LENGTH.pack(len(text)), text, *(np.ascontiguousarray(a).tobytes() for a in arrays.values())])


def receive(read: Callable[[int], bytes]) -> tuple[dict[str, Any], Arrays]:
    """(header, arrays) of the next message. read: returns exactly the given number of bytes, or raises."""
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
    sample: int  # number of the sample within its topic
    prompt: list[int]
    parameters: Any
    vllm_id: str  # vLLM's own identifier


def _longest(model: Path) -> int:
    """vLLM's longest sequence: as many tokens as fit (-1), or as LongRoPE's short factors are for. With a longer one
    vLLM takes its long factors for every request, however short.
    """
    config = json.loads((model / "config.json").read_bytes())
    config |= config.get("text_config") or {}  # the text model of several
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    limit = rope.get("original_max_position_embeddings") or config.get("original_max_position_embeddings")
    return limit if limit and "long_factor" in rope else -1


class Server:
    """vLLM with the weights of `model`, a directory in Hugging Face format, until `sync` replaces them."""

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
        """sleeps: whether `sleep` may be called. With tensor parallelism it slows sums over GPUs in captured graphs."""
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
            max_model_len=_longest(Path(model)),
            max_num_seqs=max_batch_sequences,
            tensor_parallel_size=tensor_parallel,
            distributed_executor_backend="mp" if tensor_parallel > 1 else None,  # one process per GPU, on this node
            kv_cache_memory_bytes=int(max_cache_gb * 2**30),
            logprobs_mode="processed_logprobs",  # after the temperature: of the distribution drawn from
            enable_sleep_mode=sleeps,
            # At its start vLLM requires this share of the GPU to be free, but the trainer uses the GPU; the size of the
            # cache is set above.
            **({} if self.on_cpu else self._on_gpu(dtype, sleeps=sleeps)),
            # vLLM rewinds the random generator of a prompt that was split; the generator of a CPU cannot do this and
            # crashes.
            enable_chunked_prefill=not self.on_cpu,
        )
        self.asleep, self.num_requests = False, 0
        self.topic = 0  # of the message that is being handled
        self.running: dict[str, Running] = {}
        self.last_sent = time.monotonic()

    def _on_gpu(self, dtype: str, *, sleeps: bool) -> dict[str, Any]:
        """Options for a GPU: CUDA graphs sleep, too; logits are float32, as the trainer's are."""
        options: dict[str, Any] = {"gpu_memory_utilization": 0.01, "sleep_mode_offload_cudagraph": sleeps}
        return options if dtype == "float32" else {**options, "hf_overrides": {"head_dtype": "float32"}}

    def handle(self, header: dict[str, Any], arrays: Arrays) -> None:
        """Call the method named by the message's `do`."""
        self.topic = header.get("topic", 0)
        methods = (self.sync, self.load, self.probe, self.join, self.take, self.generate, self.stop, self.sleep)
        {method.__name__: method for method in methods}[header["do"]](header, arrays)

    def answer(self, header: dict[str, Any], **arrays: NDArray[Any]) -> None:
        self.answers.write(pack({"topic": self.topic, **header, "version": self.version}, arrays))
        self.answers.flush()

    def sync(self, header: dict[str, Any], _: Arrays) -> None:
        """header: `file` and, per tensor, name, dtype, shape and offset in the file."""
        self._replace_weights(lambda: self.llm.collective_rpc(reload_on_worker, args=(header,)), header["to_version"])

    def load(self, header: dict[str, Any], _: Arrays) -> None:
        """Load weights that follow in messages of their own."""
        arriving = {"weights_iterator": self._ipc_tensors()}
        reload = functools.partial(self.llm.collective_rpc, "reload_weights", kwargs=arriving)
        self._replace_weights(reload, header["to_version"])

    def join(self, header: dict[str, Any], _: Arrays) -> None:
        """header: `where` members meet, our `member`, `members` in all, the kind of device that the tensors are `on`,
        `timeout_s`. Answers `why` it failed.
        """
        failures = self.llm.collective_rpc(join_on_worker, args=(header, str(Path(__file__).with_name("broadcast.py"))))
        self.answer({"why": next(filter(None, failures), "")})

    def take(self, header: dict[str, Any], _: Arrays) -> None:
        """header: name, dtype, shape of each tensor. If one is lost, weights are a mixture: this process ends."""
        tensors = header["tensors"]
        self._replace_weights(lambda: self.llm.collective_rpc(take_on_worker, args=(tensors,)), header["to_version"])

    def _replace_weights(self, reload: Callable[[], object], version: int) -> None:
        if self.asleep:
            self.llm.wake_up(tags=["weights"])
        if self.running and not self.on_cpu:
            self.llm.collective_rpc("synchronize_device")  # the token being computed still belongs to the old weights
        reload()
        if self.on_cpu:
            self.llm.apply_model(refresh_tied_head)
        if self.asleep:
            self.llm.wake_up(tags=["kv_cache"])
            self.asleep = False
        self.version = version  # part of the cache key: prefixes of the old weights are not reused
        if self.running:
            self._restart_prefills()
            self.last_sent = 0.0  # send a heartbeat on every topic
        elif not self.llm.reset_prefix_cache():
            raise RuntimeError("vLLM did not forget its cached prefixes: the next samples would mix two policies")
        self.answer({})

    def _restart_prefills(self) -> None:
        """Restart the requests that have no token yet, so that the new weights read their prompts, too."""
        states = self.llm.llm_engine.output_processor.request_states
        prefilling = [name for name, request in self.running.items() if states[request.vllm_id].is_prefilling]
        self.llm.llm_engine.abort_request(prefilling)
        for name in prefilling:
            request = self.running.pop(name)
            self._add_request(request.topic, request.sample, request.prompt, request.parameters)

    def _ipc_tensors(self) -> Iterator[tuple[str, Any]]:
        """(name, copied tensor) of the messages until an empty one. Once answered, the trainer may reuse the buffer."""
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
            cuda_ipc().wait()  # the memory was just allocated: vLLM's stream may still read what it held before
            for (_, copy), (*_, offset) in zip(copies, header["tensors"], strict=True):
                memory.read(offset, copy.data_ptr(), copy.numel() * copy.element_size())
            memory.close()
            self.answer({})
            yield from copies

    def probe(self, header: dict[str, Any], _: Arrays) -> None:
        """Answer with the `bytes` in the buffer, or with `why` this process cannot read them."""
        import torch

        read = torch.zeros(header["size"], dtype=torch.uint8, device=self.device)
        try:
            memory = cuda_ipc().SharedMemory.open(bytes.fromhex(header["handle"]), header["size"])
            cuda_ipc().wait()  # vLLM's stream may not have filled the tensor with zeros yet
            memory.read(0, read.data_ptr(), header["size"])
            memory.close()
        except cuda_ipc().NotShared as error:
            self.answer({"why": str(error)})
            return
        self.answer({"why": ""}, bytes=read.cpu().numpy())

    def generate(self, header: dict[str, Any], arrays: Arrays) -> None:
        """One request of vLLM per sample, so that each has a seed of its own and does not depend on the batch.

        header: sampling parameters, and the number of the `first` sample. arrays: prompts end to end and their
        `lengths`; [N] `prompt` and `seed` of each sample. Completions carry the numbers of their samples.
        """
        from vllm import SamplingParams  # type: ignore[import-not-found]
        from vllm.sampling_params import RequestOutputKind  # type: ignore[import-not-found]

        prompts = [tokens.tolist() for tokens in np.split(arrays["tokens"], np.cumsum(arrays["lengths"])[:-1])]
        samples = zip(arrays["prompt"].tolist(), arrays["seed"].tolist(), strict=True)
        for sample, (row, seed) in enumerate(samples, header["first"]):
            output = {"logprobs": 0, "flat_logprobs": True, "output_kind": RequestOutputKind.FINAL_ONLY}
            parameters = SamplingParams(**header["sampling"], seed=seed, detokenize=False, **output)
            self._add_request(self.topic, sample, prompts[row], parameters)

    def _add_request(self, topic: int, sample: int, prompt: list[int], parameters: Any) -> None:
        from vllm import TokensPrompt  # type: ignore[import-not-found]

        name = str(self.num_requests)  # a name is never reused, as vLLM may still hold the old request
        self.num_requests += 1
        tokens = TokensPrompt(prompt_token_ids=prompt, cache_salt=f"weights {self.version}")
        vllm_id = self.llm.llm_engine.add_request(name, tokens, parameters)
        self.running[name] = Running(topic, sample, prompt, parameters, vllm_id)

    def step(self) -> None:
        """Compute one token of every running request, and send what has finished."""
        finished: dict[int, list[tuple[int, Any]]] = defaultdict(list)
        for output in self.llm.llm_engine.step():
            if output.finished and output.request_id in self.running:  # otherwise the request was stopped
                request = self.running.pop(output.request_id)
                finished[request.topic].append((request.sample, output.outputs[0]))
        if time.monotonic() - self.last_sent > HEARTBEAT_S:
            finished |= {r.topic: [] for r in self.running.values() if r.topic not in finished}
        for topic, samples in finished.items():
            self.last_sent = time.monotonic()
            self._send(topic, samples)

    def stop(self, *_: object) -> None:
        stopped = [name for name, request in self.running.items() if request.topic == self.topic]
        if stopped:
            self.llm.llm_engine.abort_request(stopped)
            for name in stopped:
                del self.running[name]
        while not self.running and self.llm.llm_engine.has_unfinished_requests():
            self.llm.llm_engine.step()
        self.answer({"stopped": True})

    def _send(self, topic: int, samples: list[tuple[int, Any]]) -> None:
        tokens = [np.asarray(output.token_ids, dtype=np.int64) for _, output in samples]
        logp = [np.asarray(output.logprobs.logprobs, dtype=np.float32) for _, output in samples]
        empty = [np.zeros(0)]
        self.answer(
            {"topic": topic},
            sample=np.array([number for number, _ in samples], dtype=np.int64),
            finished=np.array([output.finish_reason == "stop" for _, output in samples], dtype=np.bool_),
            lengths=np.array([len(sequence) for sequence in tokens], dtype=np.int64),
            tokens=np.concatenate(tokens or empty).astype(np.int64),
            logp=np.concatenate(logp or empty).astype(np.float32),
        )

    def sleep(self, *_: object) -> None:
        if not self.on_cpu and not self.asleep:
            self.llm.sleep(level=2)  # frees the weights, too: the next use of the engine begins with a sync
            self.asleep = True
        self.answer({})


def tensors(header: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """(name, tensor) pairs of the weights in a memory file, without a copy."""
    import torch

    memory = np.memmap(header["file"], dtype=np.uint8, mode="c")
    for name, dtype, shape, offset in header["tensors"]:
        count = int(np.prod(shape, dtype=np.int64))
        flat = torch.frombuffer(memory, dtype=getattr(torch, dtype), count=count, offset=offset)
        yield name, flat.view(shape)


# --- functions that run in vLLM's worker processes, one per GPU ---


def reload_on_worker(worker: Any, header: dict[str, Any]) -> None:
    """Load this worker's part of the weights that lie in a memory file."""
    worker.reload_weights(weights_iterator=tensors(header))


def join_on_worker(worker: Any, header: dict[str, Any], file: str) -> str:
    """Join the broadcast group, with the code of `file` (broadcast.py). Returns why joining failed, "" if not."""
    import torch

    broadcast = load_module(file)
    try:
        store, ip = broadcast.meet(header["where"], header["timeout_s"])
        member = header["member"] + worker.rank
        worker.rlvr_device = worker.device if header["on"] == "cuda" else torch.device("cpu")
        settings = {"on": worker.rlvr_device, "ip": ip, "timeout_s": header["timeout_s"]}
        worker.rlvr_group = broadcast.Group(store, member, header["members"], **settings)
    except broadcast.BroadcastFailed as error:
        return str(error)
    return ""


def take_on_worker(worker: Any, tensors: list[Any]) -> None:
    """Receive all tensors by broadcast, and load this worker's part of them."""
    import torch

    def received() -> Iterator[tuple[str, Any]]:
        for name, dtype, shape, *_ in tensors:
            tensor = torch.empty(shape, dtype=getattr(torch, dtype), device=worker.rlvr_device)
            worker.rlvr_group.broadcast(tensor)
            yield name, tensor

    worker.reload_weights(weights_iterator=received())


def end_with_parent() -> None:
    """Have the kernel kill this process when its parent ends, even if it hangs (vLLM itself only asks it to end)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def end_forks_with_us() -> None:
    """Have our forks end with us: vLLM's others answer no call before they have loaded the model."""
    ours = os.getpid()
    os.register_at_fork(after_in_child=lambda: end_with_parent() if os.getppid() == ours else None)


@functools.cache
def cuda_ipc() -> Any:
    return load_module(str(Path(__file__).with_name("cuda_ipc.py")))


def load_module(file: str) -> Any:
    """The module in a file that belongs to no package here."""
    specification = importlib.util.spec_from_file_location(Path(file).stem, file)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def refresh_tied_head(model: Any) -> None:
    """Renew the packed copy of the output head that vLLM keeps on a CPU: `reload_weights` leaves a tied one stale."""
    head = getattr(model, "lm_head", None)
    if head is not None and getattr(head, "quant_method", None) is not None:
        head.quant_method.process_weights_after_loading(head)


def main() -> None:
    options = json.loads(sys.argv[1])
    parent = options.pop("parent")
    end_with_parent()
    if os.getppid() != parent:
        return  # the parent ended before `end_with_parent` took effect
    end_forks_with_us()
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # vLLM's own output goes to standard error, which the trainer logs
    gc.disable()  # what is allocated until vLLM has started stays: collections would take a fifth of that time
    os.register_at_fork(after_in_child=gc.enable)
    server = Server(answers, **options)
    gc.enable()
    server.answer({"max_tokens": server.llm.llm_engine.model_config.max_model_len})
    while True:
        while not server.running or select.select([sys.stdin.fileno()], [], [], 0)[0]:
            server.handle(*receive(_exactly))
        server.step()


def _exactly(count: int) -> bytes:
    """The next bytes of standard input, unbuffered: `select` must see all that was not read yet."""
    data = bytearray()
    while len(data) < count:
        chunk = os.read(sys.stdin.fileno(), count - len(data))
        if not chunk:
            os._exit(0)  # the trainer has closed the pipe; vLLM's own tear-down takes seconds and saves nothing
        data += chunk
    return bytes(data)


if __name__ == "__mp_main__":  # one of vLLM's other processes, where these are not forked
    end_with_parent()

if __name__ == "__main__":
    main()
