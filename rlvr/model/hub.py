"""A base policy from a directory, a GGUF file or the Hugging Face hub."""

from pathlib import Path

from rlvr.ledger.files import read_json
from rlvr.ledger.gguf import SUFFIX
from rlvr.ledger.policies import HUB_NAME, downloaded, fault_of_storage
from rlvr.model.gguf import converted
from rlvr.model.tokenizer import load_tokenizer
from rlvr.records import Task


def hub(
    task: Task | None,  # noqa: ARG001 - the signature of all model sources
    store: Path,
    *,
    path: str,
    chat: bool,
    system: str | None = None,  # noqa: ARG001 - read where prompts are wrapped
    revision: str | None = None,
) -> Path:
    """The path of a local directory, of a GGUF file's model, converted once, or of a model of the Hugging Face hub,
    downloaded once into the hub's own cache.

    chat: prompts will be wrapped in the model's chat template, which must then exist. system: its system prompt; it
    is used when they are wrapped. revision: of a hub name without one (a frozen config has the commit in the name).
    Raises ValueError if there is no such model, its weights are quantised, or it has no chat template.
    """
    directory = Path(path).expanduser()
    if directory.suffix == SUFFIX and directory.is_file():
        directory = converted(directory, store)
    if not directory.is_dir():
        if not HUB_NAME.fullmatch(path):
            raise ValueError(
                f"model.path={path} is neither a directory or .gguf file on this machine nor a hub name (owner/model). "
                "Type model.path=/path/to/model or for example model.path=Qwen/Qwen2.5-0.5B."
            )
        directory = downloaded(path if revision is None else f"{path}@{revision}")
    if fault := fault_of_storage(read_json(directory / "config.json") or {}):
        raise ValueError(f"model.path={path}: {fault}")
    if chat and not load_tokenizer(directory).chat_template:
        raise ValueError(f"model.chat=true, but the tokenizer of {path} has no chat template. Drop model.chat=true.")
    return directory
