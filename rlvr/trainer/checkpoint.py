"""Checkpoints, complete once visible and readable by any number of ranks; and their export for Hugging Face."""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from rlvr.ledger import digests
from rlvr.ledger.files import publish, read_json, sync, temporary_path, write_json
from rlvr.ledger.layout import trainer_state
from rlvr.ledger.policies import weights_digest
from rlvr.model.hugging_face import GENERATION_CONFIG_NAME, GenerationConfig
from rlvr.model.load import load_model
from rlvr.model.structure import stored_buffers
from rlvr.model.tokenizer import load_tokenizer
from rlvr.trainer import distributed, lora, tensor_files
from rlvr.trainer.collate import end_of_turn


class Writer:
    """Writes checkpoints, one at a time. Every method is called by all ranks, in the same order."""

    def __init__(self) -> None:
        self._group: dist.ProcessGroup | None = None
        self._pending: tuple[ThreadPoolExecutor, Future[None]] | None = None

    def save(
        self,
        path: Path,
        tensors: dict[str, Any],
        state: dict[str, Any],
        *,
        background: bool = False,
        write_more: Callable[[Path], None] = lambda _: None,
        when_visible: Callable[[], None] = lambda: None,
    ) -> None:
        """Write a checkpoint. `tensors`: nested names to (sharded) tensors, `state`: plain JSON.

        background: the tensors are copied to main memory and a thread writes the copy, so that the originals may
        change meanwhile; `wait` waits for the thread.
        Only the first rank calls these two: `write_more` writes further files into the checkpoint's directory, and
        `when_visible` is called once the directory has its final name.
        """

        def write_other_files(directory: Path) -> None:
            write_more(directory)
            write_json(trainer_state(directory), state)

        self.wait()
        parts = tensor_files.own_parts(tensors, rank=distributed.rank(), copy=background)
        if not background:
            self._write(path, parts, write_other_files, when_visible)
            return
        self._group = self._group or distributed.another_group()
        thread = ThreadPoolExecutor(1, "checkpoint")
        self._pending = thread, thread.submit(self._write, path, parts, write_other_files, when_visible)

    def wait(self, *, block: bool = True) -> None:
        """Wait until the save in the background is visible; `block=False`: only look whether it has ended.

        Raises the error of a save that failed.
        """
        if self._pending is None or not (block or self._pending[1].done()):
            return
        (thread, future), self._pending = self._pending, None
        thread.shutdown()
        future.result()

    def _write(
        self,
        path: Path,
        parts: tensor_files.OwnParts,
        write_other_files: Callable[[Path], None],
        when_visible: Callable[[], None],
    ) -> None:
        def write(directory: Path) -> None:
            tensor_files.save(parts, directory, rank=distributed.rank())
            if distributed.rank() == 0:
                write_other_files(directory)

        _publish(path, write, self._group)
        if distributed.rank() == 0:
            when_visible()


def load(path: Path, tensors: dict[str, Any]) -> dict[str, Any]:
    """Read a checkpoint into `tensors`, in place, and return its state; called by all ranks."""
    file = trainer_state(path)
    if not file.is_file():
        raise ValueError(f"{path} is not a checkpoint of this trainer: it has no {file.name}.")
    tensor_files.load(tensors, path)
    return json.loads(file.read_text())


def check_base(path: Path, state: Mapping[str, Any], base: str) -> None:
    """Raises ValueError if the adapters of a checkpoint were trained on other weights. base: the digest of those here;
    "" if it is not known.
    """
    expected = (state["lora"] or {}).get("base")
    if base and expected and base != expected:
        raise ValueError(
            f"{path} has adapters to other weights: those of the base policy are {base} here, and were {expected}. Put "
            "these back where model.path of its run names them; of the hub: hf download NAME --revision COMMIT."
        )


def export(path: Path, source: Path, base: Path, *, dtype: torch.dtype, chat: bool = False) -> None:
    """Write the policy of the checkpoint `source`, which started from the directory `base`, as a directory for
    `AutoModelForCausalLM.from_pretrained`; in one process, whatever the number of ranks was.

    chat: prompts were turns of its chat template, so that the token that ends a turn ends responses elsewhere, too.
    """
    if fault := digests.fault_of(source):
        raise ValueError(f"{source} cannot be used: {fault}. Pass another checkpoint of the run.")

    def write(directory: Path) -> None:
        write_policy(directory, source, base, dtype=dtype)
        if chat:
            _name_end_of_turn(directory)

    _publish(path, write)


def _name_end_of_turn(directory: Path) -> None:
    """Add the token that ends a turn to generation_config.json, unless that or the tokenizer names it."""
    tokenizer: Any = load_tokenizer(directory)
    turn, file = end_of_turn(directory, tokenizer), directory / GENERATION_CONFIG_NAME
    settings = read_json(file) or {}
    ids = settings.get("eos_token_id")
    ends = {*(ids if isinstance(ids, list) else [ids]), tokenizer.eos_token_id} - {None}
    if turn is not None and turn not in ends:
        write_json(file, settings | {"eos_token_id": sorted({*ends, turn})})


def write_policy(directory: Path, source: Path, base: Path, *, dtype: torch.dtype) -> None:
    """As `export`, into a directory that exists, without checking the checkpoint. One rank of several may call it."""
    model, tokenizer = load_model(base, dtype=torch.float32), load_tokenizer(base)
    state = json.loads(trainer_state(source).read_text())
    if state["lora"] is not None:
        check_base(source, state, weights_digest(base))
        lora.adapt(model, rank=state["lora"]["rank"], alpha=state["lora"]["alpha"], seed=0)
    trained = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    tensor_files.load({"parameter": trained}, source)
    weights, buffers = dict(lora.merged(model)), stored_buffers(model)
    model.to(dtype)  # type: ignore[arg-type] - decorated without its signature
    settings = base / GENERATION_CONFIG_NAME
    if settings.is_file():  # copied below: transformers reads settings that it refuses to write, and adds its defaults
        model.generation_config = GenerationConfig()
    # buffers keep their type: routers of experts add them to float32 scores
    model.save_pretrained(directory, state_dict={name: w.to(dtype) for name, w in weights.items()} | buffers)
    if settings.is_file():
        shutil.copyfile(settings, directory / settings.name)
    tokenizer.save_pretrained(directory)


def fault_of(path: Path) -> str:
    """A description of the damage to a checkpoint, the same on every rank; "" if all files are as they were written.

    The first rank lists the files. Raises RuntimeError if another rank does not see one of them.
    """
    names = distributed.of_first_rank([name for name in digests.read_digests(path) if (path / name).is_file()])
    return distributed.of_first_rank(digests.fault_of(path, _shared_digests(path, names)))


def _shared_digests(directory: Path, names: Sequence[str], group: dist.ProcessGroup | None = None) -> dict[str, str]:
    """The digests of the named files, on every rank. Each file is read by one rank."""
    distributed.await_paths([directory / name for name in names], group)
    mine = digests.digests(directory, names[distributed.rank() :: distributed.world()])
    everyone = distributed.gather(list(mine.items()), group)
    return dict(sorted(pair for pairs in everyone for pair in pairs))


def digests_of_all(directory: Path, group: dist.ProcessGroup | None = None) -> dict[str, str]:
    """Digests of every file that any rank sees in a directory. A rank may see only the files that it wrote itself."""
    seen = distributed.gather(digests.files_of(directory), group)
    return _shared_digests(directory, sorted({name for of_rank in seen for name in of_rank}), group)


def _publish(path: Path, write: Callable[[Path], None], group: dist.ProcessGroup | None = None) -> None:
    """Call `write` with a temporary directory, which gets its final name once it is complete, sealed and on disk.

    All ranks write into the same directory; the lock of the run keeps other processes out.
    """
    aside, is_first = temporary_path(path), distributed.rank() == 0
    if is_first:
        shutil.rmtree(aside, ignore_errors=True)  # left behind by a process that was killed
        aside.mkdir(parents=True)
    distributed.barrier(group)
    write(aside)
    distributed.barrier(group)
    file_digests = digests_of_all(aside, group)
    if is_first:
        digests.write_digests(aside, file_digests)
        publish(aside, path)
        sync(path.parent)
    distributed.barrier(group)
