"""Loading, tokenizers of closed vocabularies, and the table policy's agreement with the protocol of a transformer."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedModel

from rlvr.model.load import load, parse_dtype
from rlvr.model.table_policy import TableConfig, TablePolicy
from rlvr.model.tokenizer import encode, end_tokens, word_tokenizer
from rlvr.task.maze import VOCABULARY, Maze

WORDS = ("PAD", "up", "down", "left", "a.b", ";", "stop")


def make_qwen(vocab_size: int = len(WORDS)) -> PreTrainedModel:
    config = AutoConfig.for_model(
        "qwen2",
        vocab_size=vocab_size,
        num_hidden_layers=2,
        hidden_size=16,
        intermediate_size=32,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        initializer_range=0.3,
    )
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="sdpa").eval()


def make_table() -> TablePolicy:
    table = TablePolicy(TableConfig(vocab_size=len(WORDS)))
    with torch.no_grad():
        table.model.table.weight.normal_(generator=torch.Generator().manual_seed(0))
    return table


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


def test_an_unknown_word_is_named() -> None:
    with pytest.raises(ValueError, match=r"Unknown words \['sideways'\].*up"):
        encode(word_tokenizer(WORDS, "stop"), "up sideways up")


@pytest.mark.parametrize(
    ("vocabulary", "end_word", "message"),
    [
        (("a", "a"), "a", "distinct"),
        (("a", "b c"), "a", "without spaces"),
        (("a", ""), "a", "without spaces"),
        (("a", "b"), "c", "'c' is not a word"),
        (("end", "GRID_end"), "end", r"\['GRID_end'\] contain a special word"),  # it would be cut to pieces
    ],
)
def test_a_vocabulary_that_could_not_be_read_back_is_refused(
    vocabulary: tuple[str, ...], end_word: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        word_tokenizer(vocabulary, end_word)


@pytest.mark.parametrize("model", [make_qwen(len(VOCABULARY)), TablePolicy(TableConfig(vocab_size=len(VOCABULARY)))])
def test_what_is_saved_loads_with_the_same_words_and_logits(model: PreTrainedModel, tmp_path: Path) -> None:
    # AutoTokenizer silently gives a Qwen2 directory an empty byte-pair tokenizer, whatever is saved in it.
    tokenizer = word_tokenizer(VOCABULARY, Maze.end_word)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    again, words = load(tmp_path, dtype="float32")
    assert type(again) is type(model)
    assert not again.training
    prompt = Maze(size=5, test_problems=1, seed=0).problem("test", 0).prompt
    assert encode(words, prompt) == [VOCABULARY.index(word) for word in prompt.split()]
    assert words.decode(encode(words, prompt + " DONE")) == prompt + " DONE"
    assert (words.eos_token_id, words.pad_token_id) == (VOCABULARY.index("DONE"), 0)
    ids = torch.tensor([encode(words, prompt)])
    assert torch.equal(again(input_ids=ids).logits, model(input_ids=ids).logits)
    assert load(tmp_path, dtype="bfloat16")[0].dtype == torch.bfloat16


def test_load_explains_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no directory.*model=hf model.path=Qwen/Qwen2.5-0.5B"):
        load("Qwen/Qwen2.5-0.5B", dtype="float32")
    with pytest.raises(ValueError, match=r"without config.json"):
        load(tmp_path, dtype="float32")


@pytest.mark.parametrize("name", ["int64", "float31", "nn"])
def test_only_floating_formats_are_dtypes(name: str) -> None:
    assert parse_dtype("bfloat16") is torch.bfloat16
    with pytest.raises(ValueError, match="Type float32, bfloat16 or float16"):
        parse_dtype(name)


def test_end_tokens_are_those_of_tokenizer_and_generation_config() -> None:
    model, tokenizer = make_qwen(), word_tokenizer(WORDS, "stop")
    model.generation_config = GenerationConfig(eos_token_id=[5, 2])
    assert end_tokens(model, tokenizer) == (2, 5, 6)
    model.generation_config = GenerationConfig(eos_token_id=3)
    assert end_tokens(model, tokenizer) == (3, 6)
    tokenizer.eos_token = None
    model.generation_config = GenerationConfig()
    with pytest.raises(ValueError, match="could never finish"):
        end_tokens(model, tokenizer)


@pytest.mark.parametrize("model", [make_qwen(), make_table()], ids=["qwen2", "table"])
def test_decoder_then_output_embeddings_gives_the_logits(model: PreTrainedModel) -> None:
    ids = torch.tensor([[0, 0, 3, 4], [1, 2, 5, 6]])
    mask = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
    positions = torch.tensor([[0, 0, 0, 1], [0, 1, 2, 3]])
    hidden = model.get_decoder()(input_ids=ids, attention_mask=mask, position_ids=positions).last_hidden_state
    logits = model(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False).logits
    head = model.get_output_embeddings()
    assert head is not None
    assert torch.equal(head(hidden), logits)


def test_a_fresh_table_is_uniform_and_reads_the_last_word_only() -> None:
    fresh = TablePolicy(TableConfig(vocab_size=4))
    assert not fresh(input_ids=torch.tensor([[1, 2]])).logits.any()
    table = make_table()
    one, two = (table(input_ids=torch.tensor([ids])).logits[0, -1] for ids in ([1, 2, 3], [6, 3]))
    assert torch.equal(one, two)
    assert torch.equal(one, table.model.table.weight[3])


def test_allowed_words_share_all_probability_and_the_others_never_learn() -> None:
    table = TablePolicy(TableConfig(vocab_size=5))
    table.allow({2: [0, 3, 4]})
    logp = table(input_ids=torch.tensor([[1, 2]])).logits[0, -1].log_softmax(-1)
    third = 1 / 3
    torch.testing.assert_close(logp.exp(), torch.tensor([third, 0, 0, third, third]))
    (-logp[3] + (logp.exp() * logp).sum()).backward()
    gradient = table.model.table.weight.grad
    assert gradient is not None
    assert gradient[2, [1, 2]].tolist() == [0.0, 0.0]  # exactly: an optimiser leaves them where they are
    assert torch.isfinite(gradient).all()
    assert gradient[2, 3] < 0 < gradient[2, 0]
