"""Models come from a directory whole, as a skeleton or as a miniature; a table answers as a transformer does."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from rlvr.model.load import load, load_model, parse_dtype, skeleton, small_copy
from rlvr.model.table_policy import TableConfig, TablePolicy
from rlvr.model.tokenizer import encode, word_tokenizer
from rlvr.task.maze import VOCABULARY, Maze
from tests.trainer.test_sharded_load import saved
from tests.trainer.tiny import qwen2

WORDS = ("PAD", "up", "down", "left", "a.b", ";", "stop")


def make_qwen(vocab_size: int = len(WORDS)) -> PreTrainedModel:
    sizes = {"vocab_size": vocab_size, "num_hidden_layers": 2, "hidden_size": 16, "intermediate_size": 32}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64}
    config = AutoConfig.for_model("qwen2", **sizes, **heads, tie_word_embeddings=True, initializer_range=0.3)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="sdpa").eval()


def make_table() -> TablePolicy:
    table = TablePolicy(TableConfig(vocab_size=len(WORDS)))
    with torch.no_grad():
        table.model.table.weight.normal_(generator=torch.Generator().manual_seed(0))
    return table


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


@pytest.mark.parametrize("kind", ["qwen2", "olmo2"])
def test_a_model_whose_weights_have_other_names_is_refused(kind: str, tmp_path: Path) -> None:
    """transformers would fill what is missing with random numbers, others in every process."""
    sizes = {"num_hidden_layers": 1, "hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}
    config = AutoConfig.for_model(kind, vocab_size=8, pad_token_id=0, **sizes)
    model = AutoModelForCausalLM.from_config(config)
    model.save_pretrained(tmp_path)
    load_model(tmp_path, dtype="float32")
    weights = {f"_orig_mod.{name}": weight.contiguous() for name, weight in model.state_dict().items()}
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(
        ValueError, match=r"the weights of .* lack lm_head.weight, .* and \d+ more, .* It has _orig_mod"
    ):
        load_model(tmp_path, dtype="float32")


def test_only_floating_formats_are_dtypes() -> None:
    assert parse_dtype("bfloat16") is torch.bfloat16
    for name in ("int64", "float31", "nn"):
        with pytest.raises(ValueError, match="Type float32, bfloat16 or float16"):
            parse_dtype(name)


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


def test_a_skeleton_has_the_buffers_and_the_generation_settings_of_the_model(tmp_path: Path) -> None:
    path = saved(tmp_path, tied=True)
    weightless, model = skeleton(path), qwen2()
    expected = dict(model.named_buffers())
    assert expected
    assert all(torch.equal(b, expected[name]) for name, b in weightless.named_buffers())
    assert weightless.lm_head.weight is weightless.model.embed_tokens.weight


def test_a_miniature_has_the_widths_of_the_large_model() -> None:
    large = qwen2().config
    large.num_hidden_layers, large.layer_types, large.vocab_size = 40, ["full_attention"] * 40, 5000
    small = small_copy(large)
    assert (small.config.hidden_size, len(small.model.layers)) == (large.hidden_size, 2)
    assert (small.lm_head.weight.shape, large.num_hidden_layers) == ((512, 16), 40)
