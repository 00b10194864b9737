"""GGUF files as models: what their headers say, and the stages that they become (`rlvr.model.gguf` converts them)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlvr.ledger import layout
from rlvr.ledger.digests import sampled_digest
from rlvr.ledger.stages import stage_id

SUFFIX = ".gguf"
VERSION = 1  # raise it when what a conversion writes changes: files are then converted again
# Way of splitting text (tokenizer.ggml.pre) → the pre-tokenizers of the library tokenizers that split so, in order.
SPLITTING: Mapping[str, Sequence[tuple[str, Mapping[str, bool]]]] = {
    "smollm": [("Digits", {"individual_digits": True}), ("ByteLevel", {"add_prefix_space": False, "use_regex": True})]
}


def as_directory(path: str) -> str:
    """A path or name of a model as it is; for a GGUF file, the directory that it becomes, which need not exist yet."""
    file = Path(path).expanduser()
    if file.suffix != SUFFIX or not file.is_file():
        return path
    return str(layout.stages(layout.home()) / stage_id(identity(file)))


def identity(file: Path) -> dict[str, Any]:
    """Identity of the stage: an identical file elsewhere is the same."""
    return {"source": "gguf", "version": VERSION, "digest": sampled_digest(file)}


def fault_of(file: Path) -> str:
    """Why a file cannot be converted rightly, as a sentence with a remedy; "" if it can. Reads its header only.

    transformers reads the weights and most of the tokenizer, but not how it splits text before it merges bytes: with
    another way than the model's own, the tokens would be others than those that it has learned.
    """
    try:
        way = field(file, "tokenizer.ggml.pre")
    except ModuleNotFoundError:
        return "to read GGUF files, pip install 'rlvr[gguf]'."
    except (ValueError, IndexError, OSError) as error:
        return f"no readable GGUF file ({error})."
    if way in SPLITTING:
        return ""
    return (
        f"its tokenizer splits text in a way that is not known here (tokenizer.ggml.pre={way}; known: "
        f"{', '.join(SPLITTING)}). Pass a directory with config.json, safetensors and tokenizer files."
    )


def field(file: Path, name: str) -> Any:
    """The value of a field in the header of a file; None if it has none of this name."""
    from gguf import GGUFReader

    found = GGUFReader(file).get_field(name)
    return None if found is None else found.contents()
