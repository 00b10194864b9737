"""Words and their ids, and what ends a response."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, processors
from transformers import GenerationConfig, PreTrainedTokenizerFast

from rlvr.config.base_model import response_ends
from rlvr.model.tokenizer import encode, end_tokens, pad_token, start_tokens, word_tokenizer
from rlvr.records import Problem
from rlvr.trainer.collate import encode as prompts
from rlvr.trainer.collate import end_of_turn
from tests.model.test_load import WORDS, make_qwen


@given(st.lists(st.sampled_from(WORDS), min_size=1))
def test_words_round_trip_and_their_ids_are_their_places(words: list[str]) -> None:
    tokenizer = word_tokenizer(WORDS, "stop")
    text = " ".join(words)
    assert encode(tokenizer, text) == [WORDS.index(word) for word in words]
    assert tokenizer(text).input_ids == [WORDS.index(word) for word in words]
    assert tokenizer.decode(encode(tokenizer, text)) == text
    assert tokenizer.decode(encode(tokenizer, text), skip_special_tokens=True) == " ".join(
        word for word in words if word not in ("stop", "PAD")
    )


def test_padding_is_added_behind_a_vocabulary_that_lacks_it() -> None:
    tokenizer = word_tokenizer(("a", "b", "."), ".")
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id, len(tokenizer)) == (3, 2, 4)
    assert tokenizer(["a b", "a"], padding=True).input_ids == [[0, 1], [0, 3]]


def test_an_unknown_word_is_named_and_a_vocabulary_that_could_not_be_read_back_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Unknown words \['sideways'\].*up"):
        encode(word_tokenizer(WORDS, "stop"), "up sideways up")
    for vocabulary, end_word, message in (
        (("a", "a"), "a", "distinct"),
        (("a", "b c"), "a", "without spaces"),
        (("a", ""), "a", "without spaces"),
        (("a", "b"), "c", "'c' is not a word"),
        (("end", "GRID_end"), "end", r"\['GRID_end'\] contain a special word"),  # it would be cut to pieces
    ):
        with pytest.raises(ValueError, match=message):
            word_tokenizer(vocabulary, end_word)


def test_a_prompt_begins_as_the_models_tokenizer_begins_a_text_and_an_answer_does_not() -> None:
    """As Llama's and Gemma's do, which read every text after a token of its beginning."""
    backend = Tokenizer(models.BPE({"<s>": 0, "a": 1, "b": 2}, [], unk_token="a"))
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>")
    assert (start_tokens(tokenizer), encode(tokenizer, "ab")) == ([0], [1, 2])
    assert [p.tolist() for p in prompts(tokenizer, [Problem("1", "ab")], chat=False)] == [[0, 1, 2]]
    assert start_tokens(word_tokenizer(WORDS, "stop")) == []


def test_all_tokens_that_a_tokenizer_puts_before_a_text_are_kept_and_none_behind_it() -> None:
    """As GLM's [gMASK]<sop>; and an end token behind the text, which some tokenizers add."""
    backend = Tokenizer(models.BPE({"[gMASK]": 0, "<sop>": 1, "a": 2, "</s>": 3}, []))
    special = [("[gMASK]", 0), ("<sop>", 1), ("</s>", 3)]
    backend.post_processor = processors.TemplateProcessing(single="[gMASK] <sop> $A </s>", special_tokens=special)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>")
    assert start_tokens(tokenizer) == [0, 1]
    assert [p.tolist() for p in prompts(tokenizer, [Problem("1", "aa")], chat=False)] == [[0, 1, 2, 2]]


def test_a_turn_ends_by_the_token_of_the_chat_template(tmp_path: Path) -> None:
    """As of Qwen2.5's base models: the tokenizer and generation_config.json name <|endoftext|> alone."""
    backend = Tokenizer(models.BPE({"a": 0}, []))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|endoftext|>")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    tokenizer.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    tokenizer.save_pretrained(tmp_path)
    turn = end_of_turn(tmp_path, tokenizer)
    assert turn == tokenizer.convert_tokens_to_ids("<|im_end|>")
    model = make_qwen()
    model.generation_config = GenerationConfig(eos_token_id=tokenizer.eos_token_id)
    assert end_tokens(model, tokenizer) == (tokenizer.eos_token_id,)
    assert end_tokens(model, tokenizer, turn) == tuple(sorted((tokenizer.eos_token_id, turn)))
    (tmp_path / "config.json").write_text("{}")
    assert response_ends(str(tmp_path), chat=True) == ["<|endoftext|>", "<|im_end|>"]
    assert response_ends(str(tmp_path), chat=False) == ["<|endoftext|>"]


def test_end_tokens_are_those_of_tokenizer_and_generation_config() -> None:
    model, tokenizer = make_qwen(), word_tokenizer(WORDS, "stop")
    model.generation_config = GenerationConfig(eos_token_id=[5, 2])
    assert end_tokens(model, tokenizer) == (2, 5, 6)
    model.generation_config = GenerationConfig(eos_token_id=3)
    assert end_tokens(model, tokenizer) == (3, 6)
    model.generation_config = GenerationConfig(eos_token_id=[-1, 3, 50256])  # two that no model of 7 words can sample
    assert end_tokens(model, tokenizer) == (3, 6)
    tokenizer.eos_token = None
    model.generation_config = GenerationConfig()
    with pytest.raises(ValueError, match="could never finish"):
        end_tokens(model, tokenizer)


def test_rows_are_filled_with_a_token_that_has_an_embedding() -> None:
    """A <pad> that was added to a tokenizer, but not to the model, is beyond the embeddings."""
    model, tokenizer = make_qwen(), word_tokenizer(WORDS, "stop")
    assert pad_token(model, tokenizer, (6,)) == 0
    tokenizer.add_special_tokens({"pad_token": "<pad>"})
    assert tokenizer.pad_token_id == 7
    assert pad_token(model, tokenizer, (6,)) == 6
