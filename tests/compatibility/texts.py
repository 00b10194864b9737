"""What begins a prompt and ends a response: tokenizers, and chat templates."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import GenerationConfig, PreTrainedTokenizerFast

from rlvr.config import base_model
from rlvr.config.base_model import response_ends
from rlvr.model.tokenizer import encode, end_tokens, start_tokens, word_tokenizer
from rlvr.task.chat_template import ChatTemplate
from tests.compatibility import code
from tests.model.test_load import make_qwen

HEAD_OF_TOKENIZERS = (
    *("tokenizer", "models, such as", "a prompt begins with", "an answer begins with", "a response ends with"),
)
HEAD_OF_TEMPLATES = (
    *("a turn in the template", "models, such as", "the prompt `1 + 1?`", "ends a response"),
    "after the system prompt `Be brief.`",
)

SPECIAL = ("<s>", "</s>", "[gMASK]", "<sop>", "<|end|>", "<eos>")
# (tokenizer, models, what it puts around a text, its end token, ids in generation_config.json)
TOKENIZERS: list[tuple[str, str, str, str | None, Sequence[str]]] = [
    ("byte pairs, nothing before a text", "Qwen2.5, GPT-2, SmolLM2", "$A", "</s>", ()),
    ("byte pairs, a begin token", "Llama 3, Gemma", "<s> $A", "</s>", ()),
    ("byte pairs, several begin tokens", "GLM-4", "[gMASK] <sop> $A", "</s>", ()),
    ("byte pairs, an end token behind a text", "some older models", "<s> $A </s>", "</s>", ()),
    (
        *("byte pairs, further end tokens in generation_config.json", "Llama 3 Instruct, Phi-3", "<s> $A", "</s>"),
        ("<|end|>",),
    ),
    ("byte pairs, the end token in generation_config.json alone", "converted models", "$A", None, ("<eos>",)),
    ("byte pairs, no end token anywhere", "damaged copies", "$A", None, ()),
]


def byte_pairs(around: str, end: str | None) -> PreTrainedTokenizerFast:
    """A tokenizer of bytes without merges, whose post-processor puts these tokens around a text."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {word: number for number, word in enumerate([*SPECIAL, *letters])}
    backend = Tokenizer(models.BPE(vocabulary, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(list(SPECIAL))
    pairs = [(word, vocabulary[word]) for word in SPECIAL]
    backend.post_processor = processors.TemplateProcessing(single=around, special_tokens=pairs)
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=end)


def tokenizers(folder: Path) -> Iterator[tuple[str, ...]]:
    model = make_qwen()
    for name, such_as, around, end, generation in TOKENIZERS:
        tokenizer = byte_pairs(around, end)
        model.generation_config = GenerationConfig(
            eos_token_id=tokenizer.convert_tokens_to_ids(list(generation)) or None
        )
        begins, answer = start_tokens(tokenizer), encode(tokenizer, "4½")
        assert tokenizer.decode(answer) == "4½"
        try:
            ends = [tokenizer.decode([token]) for token in end_tokens(model, tokenizer)]
            shown = " or ".join(map(code, ends))
        except ValueError as error:
            shown = f"refused: {error}"
        yield name, such_as, code("".join(map(tokenizer.decode, begins))) if begins else "nothing", "nothing", shown
    words = word_tokenizer(("go", "stop"), "stop")
    assert not start_tokens(words)
    yield "whole words", "policies taught from nothing (`model=maze_tiny`)", "nothing", "nothing", code("stop")


# (a turn, models, the tokens that the tokenizer has besides its end token <eos>)
TEMPLATES: list[tuple[str, str, Sequence[str]]] = [
    (
        "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n",
        "Qwen2.5, Qwen3, SmolLM2",
        ("<|im_start|>", "<|im_end|>"),
    ),
    ("<|start|>{{ m.role }}\n\n{{ m.content }}<|eot_id|>", "Llama 3", ("<|start|>", "<|eot_id|>")),
    ("<start_of_turn>{{ m.role }}\n{{ m.content }}<end_of_turn>\n", "Gemma", ("<start_of_turn>", "<end_of_turn>")),
    ("<|{{ m.role }}|>\n{{ m.content }}<|end|>\n", "Phi-3", ("<|user|>", "<|end|>")),
    ("[INST] {{ m.content }} [/INST]", "Mistral, if its tokenizer ends answers", ("[INST]",)),
    ("{{ m.role }}: {{ m.content | trim }}\n\n", "templates without tokens", ()),
    (
        "{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}<|{{ m.role }}|>{{ m.content }}<eos>",
        "Gemma 2: no system prompt",
        ("<|user|>",),
    ),
    (
        "{% if loop.last and add_generation_prompt %}{{ m.content }} /think{% else %}{{ m.content }}{% endif %}<eos>",
        "templates that add to the last turn",
        (),
    ),
    ("{{ strftime_now('%d %b %Y') }} {{ m.content }}<eos>", "Llama 3: the date, always the same here", ()),
    ("{% for", "damaged copies", ()),
]


def templates(folder: Path) -> Iterator[tuple[str, ...]]:
    for number, (turn, such_as, tokens) in enumerate(TEMPLATES):
        directory = folder / str(number)
        tokenizer = word_tokenizer(("1", "<eos>"), "<eos>")
        tokenizer.add_special_tokens({"additional_special_tokens": list(tokens)})
        tokenizer.chat_template = "{% for m in messages %}" + turn + "{% endfor %}"
        tokenizer.save_pretrained(directory)
        (directory / "config.json").write_text("{}")
        faults = list(base_model._faults_of_template(directory, None))
        if faults:
            yield code(turn), such_as, f"refused before launch: {faults[0]}", "", ""
            continue
        template = base_model._template(directory)
        assert isinstance(template, ChatTemplate)
        ends = " or ".join(map(code, response_ends(str(directory), chat=True)))
        refusals = list(base_model._faults_of_template(directory, "Be brief."))
        system = f"refused before launch: {refusals[0]}" if refusals else code(template.prompt("1 + 1?", "Be brief."))
        yield code(turn), such_as, code(template.prompt("1 + 1?")), ends, system
