"""Checks of the base policy before launch: config, tokenizer, chat template, names of the weights, context length.

Only files are read; neither torch nor transformers is imported.
"""

import functools
import importlib.util
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from omegaconf import DictConfig

from rlvr.config import memory, revisions
from rlvr.config.pairing import TaskAbilities
from rlvr.config.schema import Choices, Knobs, is_pretrained
from rlvr.ledger import gguf, layout
from rlvr.ledger.files import read_json
from rlvr.ledger.policies import HUB_NAME, fault_of_storage, is_checkpoint
from rlvr.ledger.runs import read_config
from rlvr.ledger.stages import base_policy
from rlvr.task.chat_template import ChatTemplate
from rlvr.task.prompt_length import context_in, file_of_model, limits, of_text

SIZES = (
    "num_hidden_layers",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "max_position_embeddings",
)
LONGEST_HEADER = 100_000_000  # bytes, as in the library safetensors
SHOWN = 3  # names of weights in a message
# Knobs of config.json by which models change their logits after the output embeddings, with the value that does not.
CHANGED_LOGITS = {
    **dict.fromkeys(("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")),
    **dict.fromkeys(("logits_scaling", "logit_scale", "lm_head_multiplier"), 1),
}
WITHOUT_DEFAULT = ("TokenizersBackend", "PreTrainedTokenizerFast")  # tokenizers that have no end token of their own


def check(config: Knobs) -> None:
    """Raises ValueError, with the innermost reason, for a model that no job could start from."""
    model = config.model
    if isinstance(model.get("architecture"), Mapping | DictConfig):
        _check_sizes(model.architecture)
    rank, architecture = config.trainer.get("lora_rank"), memory.architecture_of_model(model)
    if rank is not None and architecture is not None and rank > architecture.hidden:
        raise ValueError(
            f"trainer.lora_rank={rank} is more than the model is wide, {architecture.hidden}: adapters of that rank "
            f"have more parameters than what they adapt. Pass trainer.lora_rank={min(16, architecture.hidden)}, for "
            "example, or null to train all weights."
        )
    if is_pretrained(model):
        if model.get("system") is not None and not model.chat:
            raise ValueError("model.system is a turn of the chat template. Add model.chat=true, or drop model.system.")
        fault = _fault(str(model.path), chat=bool(model.chat), system=model.get("system"))
        if fault:
            raise ValueError(f"model.path={model.path}: {fault}")


def _not_size(name: str, value: object) -> str:
    """Why a value is no size of a model; "" if it is one. The bound keeps nonsense from being computed with."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        return "a whole number is expected, 1 or more."
    most = 10_000 if name == "num_hidden_layers" else 10**9
    return f"at most {most} is expected." if value > most else ""


def _check_sizes(numbers: Mapping[str, Any]) -> None:
    """Raises ValueError for sizes that are none, and for numbers of attention heads that no layer can have."""
    for name in SIZES:
        if wrong := _not_size(name, value := numbers.get(name, 1)):
            raise ValueError(f"model.architecture.{name}={value}: {wrong}")
    if not {"num_attention_heads", "hidden_size"} <= set(numbers):
        return
    heads, hidden, kv_heads = numbers["num_attention_heads"], numbers["hidden_size"], numbers.get("num_key_value_heads")
    typed_heads = f"model.architecture.num_attention_heads={heads}"
    width = numbers.get("head_dim") or hidden // heads
    if not numbers.get("head_dim") and hidden % heads:
        raise ValueError(f"{typed_heads}: the width, model.architecture.hidden_size={hidden}, is no multiple of it.")
    if width % 2:
        raise ValueError(
            f"{typed_heads}: a head is {width} wide, and rotary position embeddings rotate pairs of dimensions: an "
            "even width is needed."
        )
    if kv_heads and heads % kv_heads:
        raise ValueError(
            f"model.architecture.num_key_value_heads={kv_heads} does not divide num_attention_heads={heads}."
        )


def check_context(config: Knobs, choices: Choices, task: TaskAbilities) -> None:
    """Raises ValueError if the longest prompt and response exceed the context of the model (or evaluated policy)."""
    policy = config.get("policy")
    model: Mapping[str, Any] = model_of(Path(policy.path)) if policy else config.model
    context = context_of(model)
    if context is None:
        return
    # A closed vocabulary has a token for each word.
    prompt_tokens = len(task.prompt.split()) if task.teaches and "architecture" in model else 1
    limit, response_tokens = config.rollout.max_tokens, config.rollout.max_tokens or task.max_tokens
    if prompt_tokens + response_tokens > context:
        response = f"rollout.max_tokens={limit}" if limit else f"The longest response, {response_tokens} tokens,"
        reader = f"policy={policy.name}" if policy else f"model={choices.get('model')}"
        room = context - prompt_tokens
        why = limits(_numbers_of(model) or {}).get(context)  # the context is shorter than config.json states
        limited = f" ({why}, and so log-probabilities, depend on the rest of a batch)" if why else ""
        remedy = f"Pass rollout.max_tokens={room} or less" if room > 0 else "Pass smaller problems"
        raise ValueError(
            f"{response} after a prompt of {prompt_tokens or 'at least 1'} tokens of task={choices.get('task')} is "
            f"over the context of {reader}, {context} tokens{limited}. {remedy}, or a model with "
            "a longer context."
        )


def check_words(config: Knobs, choices: Choices, task: TaskAbilities) -> None:
    """Raises ValueError if a policy with a closed vocabulary does not know the words of the task's prompts."""
    policy = config.get("policy")
    if policy:
        directory, reader = _base_of(Path(policy.path)), f"policy={policy.name}"
    elif is_pretrained(config.model):
        directory, reader = _directory(str(config.model.path)), f"model.path={config.model.path}"
    else:
        return  # made for the task
    known = None if directory is None else _closed_vocabulary(directory)
    if known is not None and (unknown := sorted(set(task.prompt.split()) - known)):
        more = f" and {len(unknown) - SHOWN} more words" if len(unknown) > SHOWN else ""
        raise ValueError(
            f"task={choices.get('task')} has prompts with {', '.join(unknown[:SHOWN])}{more}, which {reader} does not "
            f"know: its vocabulary of {len(known)} words was made for another task. Pass that task."
        )


def _base_of(policy: Path) -> Path | None:
    """The directory with the tokenizer of an evaluated policy; None if it is not there yet, or not on this machine."""
    if not is_checkpoint(policy):
        return policy
    path = str(model_of(policy).get("path") or "")
    return base_policy(layout.run_of(policy), path) or (_directory(path) if path else None)


def model_of(policy: Path) -> Mapping[str, Any]:
    """The model config of an evaluated policy: that of the run for a checkpoint, else one with this path."""
    return read_config(layout.run_of(policy))["model"] if is_checkpoint(policy) else {"path": str(policy)}


def context_of(model: Mapping[str, Any]) -> int | None:
    """Context length in tokens of a model with this config; None if no file on this machine states it."""
    numbers = _numbers_of(model)
    return None if numbers is None else context_in(numbers)


def _numbers_of(model: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The architecture of a model with this config; None if no file on this machine states it."""
    if model.get("architecture") is not None or not model.get("path"):
        return model.get("architecture")
    directory = _directory(str(model["path"]))
    return read_json(directory / "config.json") if directory is not None else None


def response_ends(path: str, *, chat: bool) -> list[str]:
    """The tokens that end a response of a model in Hugging Face format, as its files here name them; [] without them.

    They are those of `rlvr.model.tokenizer.end_tokens`.
    """
    directory = _directory(path)
    if directory is None:
        return []
    listed: list[dict[str, Any]] = (read_json(directory / "tokenizer.json") or {}).get("added_tokens") or []
    added: dict[object, str] = {token["id"]: token["content"] for token in listed}
    files = [read_json(directory / name) or {} for name in ("tokenizer_config.json", "special_tokens_map.json")]
    named: list[Any] = [file.get("eos_token") for file in files]
    ends: list[Any] = [cast("Any", token).get("content") if isinstance(token, dict) else token for token in named]
    ids: Any = (_generation_config(directory) or {}).get("eos_token_id")
    ends += [added.get(index) for index in (cast("list[object]", ids) if isinstance(ids, list) else [ids])]
    template = _template(directory) if chat else None
    if template is not None:
        ends.append(template.end_of_turn([*added.values()]))
    return list(dict.fromkeys(end for end in ends if isinstance(end, str)))


def has_template(path: str) -> bool:
    """Whether a model on this machine has a chat template."""
    directory = _directory(path)
    return directory is not None and _template(directory) is not None


def _generation_config(directory: Path) -> dict[str, Any] | None:
    """generation_config.json; if there is none, transformers takes what config.json has of it."""
    file = directory / "generation_config.json"
    return read_json(file if file.is_file() else directory / "config.json")


def clear_caches() -> None:
    """Forget what was read: in a notebook, files and the current directory change between two commands."""
    revisions.clear_caches()
    _fault.cache_clear()
    _closed_vocabulary.cache_clear()
    memory.of_path.cache_clear()


# --- a model's directory


@functools.cache  # called for every point of a sweep
def _fault(path: str, *, chat: bool, system: str | None) -> str:
    """What is wrong with a model, as one sentence with a remedy; "" if nothing is wrong or it is not downloaded yet."""
    directory = _directory(path)
    if directory is None:
        return _fault_of_name(path)
    is_download = not Path(path).expanduser().is_dir()  # of the hub: missing files are fetched when the run starts
    faults = _faults(directory, chat=chat, system=system)
    return next((fault for fault in faults if not (is_download and fault.startswith("it has no"))), "")


def _fault_of_name(path: str) -> str:
    if (file := Path(path).expanduser()).suffix == gguf.SUFFIX and file.is_file():
        return gguf.fault_of(file)
    if file.is_file():
        return "a file, and not of the kind .gguf. Pass the directory that holds the model."
    if not HUB_NAME.fullmatch(path):
        return "neither a directory or .gguf file on this machine nor a name of the hub, such as Qwen/Qwen2.5-0.5B."
    return ""


def _directory(path: str) -> Path | None:
    """The directory of a model: `path` itself, what a GGUF file was converted to, or the cache entry of a hub name.

    None: not on this machine.
    """
    path = gguf.as_directory(path)
    if (directory := Path(path).expanduser()).is_dir():
        return directory
    file = file_of_model(path, "config.json")
    return None if file is None else file.parent


def _faults(directory: Path, *, chat: bool, system: str | None) -> Iterator[str]:
    """What is wrong with a directory in Hugging Face format, worst first."""
    config = read_json(directory / "config.json")
    if config is None:
        yield (
            "config.json is damaged: no JSON object."
            if (directory / "config.json").is_file()
            else "it has no config.json: a model has one, beside its weights in safetensors and its tokenizer."
        )
        return
    yield from _faults_of_kind(config)
    yield from _faults_of_sizes(config)
    yield from _faults_of_weights(directory, config)
    yield from _faults_of_tokenizer(directory)
    yield from _faults_of_ends(directory, chat=chat)
    if chat:
        yield from _faults_of_template(directory, system)


def _faults_of_kind(config: Mapping[str, Any]) -> Iterator[str]:
    kind = config.get("model_type")
    if not isinstance(kind, str):
        yield "its config.json has no model_type: it is no model of transformers."
    elif kind != "rlvr_table" and kind not in _known_kinds():
        code = " Its own code (auto_map) is never run." if "auto_map" in config else ""
        yield f'its config.json has model_type "{kind}": no causal language model that transformers knows.{code}'
    elif (source := _source(kind)) and "_supports_sdpa = True" not in source:
        yield f'its config.json has model_type "{kind}", whose attention PyTorch\'s function (sdpa) does not compute.'
    elif "add `is_decoder=True" in source and not config.get("is_decoder"):
        yield f'its config.json has model_type "{kind}", an encoder, without is_decoder: it reads both directions.'
    if fault := fault_of_storage(config):
        yield fault
    top = of_text(config)
    for knob, usual in CHANGED_LOGITS.items():
        if top.get(knob, usual) not in (None, usual):
            yield (
                f"its config.json has {knob}={top[knob]}: it changes its logits after the output embeddings, and "
                "the trainer would learn from other ones than those sampled from. Take a model without it."
            )


def _faults_of_sizes(config: Mapping[str, Any]) -> Iterator[str]:
    """Sizes that are no numbers or do not divide, in a config.json that has them at its top level."""
    for name in SIZES:
        value = config.get(name, 1)
        if value is None and name in ("num_key_value_heads", "max_position_embeddings"):
            continue  # as many as heads; no limit
        if wrong := _not_size(name, value):
            yield f"its config.json has {name}={json.dumps(value)}: {wrong}"
            return
    heads, kv_heads = config.get("num_attention_heads"), config.get("num_key_value_heads")
    if heads and kv_heads and heads % kv_heads:
        yield f"its config.json has num_key_value_heads={kv_heads}, which does not divide num_attention_heads={heads}."


@functools.cache
def _source(kind: str) -> str:
    """The source of a kind's models in the installed transformers; "" if it is not where it usually is."""
    files = (_transformers() / "models").glob(f"*/modeling_{kind.replace('-', '_')}.py")
    return next((file.read_text(encoding="utf-8") for file in files), "")


def _transformers() -> Path:
    spec = importlib.util.find_spec("transformers")
    assert spec is not None
    return Path(str(spec.origin)).parent


@functools.cache
def _known_kinds() -> frozenset[str]:
    """Model types of transformers' causal language models, read from its source: an import would import torch."""
    text = (_transformers() / "models" / "auto" / "modeling_auto.py").read_text()
    listed = text.partition("MODEL_FOR_CAUSAL_LM_MAPPING_NAMES = ")[2].partition("\n)")[0]
    return frozenset(re.findall(r'\("([\w.-]+)", "', listed))


# --- weights


def _faults_of_weights(directory: Path, config: Mapping[str, Any]) -> Iterator[str]:
    index = directory / "model.safetensors.index.json"
    if index.is_file():
        listed = (read_json(index) or {}).get("weight_map")
        if not isinstance(listed, dict):
            yield f"{index.name} is damaged: it lists no weights."
            return
        files = sorted({str(file) for file in cast("dict[str, object]", listed).values()})
    else:
        files = sorted(file.name for file in directory.glob("*.safetensors"))
    if not files:
        pickled = next((file.name for file in sorted(directory.glob("*.bin"))), "")
        because = f" {pickled} is a pickle, which is code and is not read: save it as safetensors." if pickled else ""
        yield f"it has no weights in safetensors.{because}"
        return
    shapes: dict[str, list[int]] = {}
    for name in files:
        if not (directory / name).is_file():
            yield f"it has no {name}, one of the {len(files)} files of its weights."
            return
        of_file = _shapes(directory / name)
        if of_file is None:
            yield f"{name} is damaged: cut short, or no safetensors."
            return
        shapes |= of_file
    yield from _faults_of_names(shapes, config)


def _shapes(file: Path) -> dict[str, list[int]] | None:
    """Tensor name -> shape, as in the header of a safetensors file; None if the file is damaged or cut short."""
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        size = file.stat().st_size
        if not 2 <= length <= min(size - 8, LONGEST_HEADER):
            return None
        try:
            tensors = [(name, of) for name, of in json.loads(opened.read(length)).items() if name != "__metadata__"]
            shapes = {name: [*map(int, tensor["shape"])] for name, tensor in tensors}
            end = max((int(tensor["data_offsets"][1]) for _, tensor in tensors), default=0)
        except (ValueError, OverflowError, RecursionError, AttributeError, LookupError, TypeError):
            return None
    return shapes if 8 + length + end == size else None


def _faults_of_names(shapes: Mapping[str, list[int]], config: Mapping[str, Any]) -> Iterator[str]:
    """Missing weights and a wrong embedding shape, for the model families that `rlvr.config.memory` knows.

    The names of other families' weights are known to transformers alone.
    """
    try:
        architecture = memory.architecture(config)
    except (KeyError, TypeError) as error:
        yield f"its config.json{f' has no {error.args[0]}' if isinstance(error, KeyError) else f': {error}'}."
        return
    if architecture is None:
        return
    names = {name.removeprefix("model.") for name in shapes}
    parts = [f"self_attn.{part}_proj" for part in "qkvo"] + [f"mlp.{part}_proj" for part in ("gate", "up", "down")]
    required = [f"layers.{i}.{part}.weight" for i in range(architecture.layers) for part in parts]
    required += ["embed_tokens.weight", "norm.weight", *([] if architecture.tied else ["lm_head.weight"])]
    if missing := [name for name in required if name not in names]:
        more = f" and {len(missing) - SHOWN} more" if len(missing) > SHOWN else ""
        yield f"its weights lack {', '.join(missing[:SHOWN])}{more}, which its config.json requires."
    embedding = shapes.get("model.embed_tokens.weight", shapes.get("embed_tokens.weight"))
    required_shape = [architecture.vocab, architecture.hidden]
    if embedding is not None and embedding != required_shape:
        yield f"its embedding has the shape {embedding}, and its config.json requires {required_shape}."


# --- tokenizer


def _faults_of_tokenizer(directory: Path) -> Iterator[str]:
    file = directory / "tokenizer.json"
    if not file.is_file():
        if not any((directory / name).is_file() for name in ("tokenizer.model", "vocab.json", "vocab.txt")):
            yield "it has no tokenizer.json: a model has a tokenizer beside its weights."
        return
    from tokenizers import Tokenizer

    try:
        Tokenizer.from_file(str(file))
    except Exception as error:  # noqa: BLE001 - the library raises nothing more precise
        yield f"tokenizer.json is damaged: {error}."


def _faults_of_ends(directory: Path, *, chat: bool) -> Iterator[str]:
    """That nothing ends a response, where files alone say so: other tokenizers, and configs, may have a default."""
    tokenizer = (read_json(directory / "tokenizer_config.json") or {}).get("tokenizer_class")
    config = _generation_config(directory) or {}
    may_have_default = not (directory / "generation_config.json").is_file() and "eos_token_id" not in config
    if tokenizer not in WITHOUT_DEFAULT or may_have_default or config.get("eos_token_id") is not None:
        return
    if not response_ends(str(directory), chat=chat):
        yield (
            "it has no token that ends a response: neither its tokenizer nor generation_config.json names one, and all "
            "would be cut at the longest length. Set eos_token in tokenizer_config.json."
        )


@functools.cache  # called for every point of a sweep, and a language model's tokenizer.json has megabytes
def _closed_vocabulary(directory: Path) -> frozenset[str] | None:
    """The words that a policy knows whose tokens are words; None for any other tokenizer, or none."""
    tokenizer = cast("dict[str, Any]", (read_json(directory / "tokenizer.json") or {}).get("model") or {})
    return frozenset(tokenizer["vocab"]) if tokenizer.get("type") == "WordLevel" else None


def _faults_of_template(directory: Path, system: str | None) -> Iterator[str]:
    template = _template(directory)
    if template is None:
        yield "its tokenizer has no chat template, and model.chat=true needs one. Drop model.chat=true."
        return
    from jinja2 import TemplateError, TemplateSyntaxError

    question = "What is 1 + 1?"
    try:
        rendered = template.prompt(question, system)
        for part, name in ((question, "the prompt"), (system or "", "model.system")):
            if part.strip() not in rendered:
                yield f"its chat template leaves out {name}: of {part!r} it makes {rendered!r}."
    except TemplateSyntaxError as error:
        yield f"its chat template, line {error.lineno}: {error.message}."
    except TemplateError as error:
        what = "a prompt" if system is None else "a prompt after model.system"
        yield f"its chat template rejects {what}: {error.message}."


def _template(directory: Path) -> ChatTemplate | None:
    return ChatTemplate.of(lambda name: file if (file := directory / name).is_file() else None)
