"""The native engine against plain full forward passes of the same Hugging Face model."""

import copy
import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from transformers import AutoConfig, AutoModelForCausalLM, Gemma3Config, Gemma3ForConditionalGeneration, PreTrainedModel

from rlvr.model.table_policy import TableConfig, TablePolicy
from rlvr.records import Completion, Request, Sampling, StoppingEngine
from rlvr.rollout.cache import SHARED_PROMPT
from rlvr.rollout.decoder import RecomputingDecoder, SharedPromptDecoder
from rlvr.rollout.native import NativeEngine, cache_bytes_per_token

V = 12
TINY = {
    **{"vocab_size": V, "num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 48, "initializer_range": 0.3},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128, "tie_word_embeddings": True},
}
PROMPTS = [[3, 1, 4, 1, 5], [9, 2], [6, 5, 3, 5, 8, 9, 7, 9], [3]]


def make_model(seed: int = 0, model_type: str = "qwen2", **changes: Any) -> PreTrainedModel:
    config = AutoConfig.for_model(model_type, **{**TINY, **changes})
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="sdpa").eval()


def make_engine(model: PreTrainedModel, eos: Sequence[int] = (-1,), **knobs: Any) -> NativeEngine:
    return NativeEngine(copy.deepcopy(model), eos_token_ids=eos, pad_token_id=0, **knobs)


def make_requests(num_samples: int = 3, prompts: Sequence[Sequence[int]] = PROMPTS) -> list[Request]:
    return [Request(np.array(prompt), num_samples, 1000 + key) for key, prompt in enumerate(prompts)]


def make_sampling(max_tokens: int = 12, **changes: Any) -> Sampling:
    return Sampling(**{"max_tokens": max_tokens, "seed": 5, "step": 2, **changes})


@torch.no_grad()
def full_forward(model: PreTrainedModel, prompt: np.ndarray, completion: Completion) -> torch.Tensor:
    """Logits [T, V] before each response token, from one pass over the whole sequence."""
    ids = torch.from_numpy(np.concatenate([prompt, completion.tokens]))[None]
    return model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1].float()


def check_logp(model: PreTrainedModel, engine: NativeEngine, sampling: Sampling, tolerance: float) -> None:
    requests = make_requests()
    for request, group in zip(requests, engine.generate(requests, sampling), strict=True):
        for completion in group:
            logits = full_forward(model, request.prompt, completion)
            expected = (logits / sampling.temperature).log_softmax(-1)
            expected = expected.gather(1, torch.from_numpy(completion.tokens)[:, None])[:, 0].numpy()
            np.testing.assert_allclose(completion.logp, expected, atol=tolerance, rtol=0)


def tokens_of(groups: Sequence[Sequence[Completion]]) -> list[list[list[int]]]:
    return [[completion.tokens.tolist() for completion in group] for group in groups]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logp_agrees_with_a_full_forward_at_every_position(temperature: float) -> None:
    model = make_model()
    engine = make_engine(model)
    assert engine.decoder is SharedPromptDecoder
    check_logp(model, engine, make_sampling(40, temperature=temperature), 1e-5)  # 40 > the first capacity of the cache


@pytest.mark.parametrize("model_type", ["llama", "qwen3", "mistral", "gemma2", "gpt2", "nemotron", "bart", "doge"])
def test_other_architectures_agree_with_their_own_forward(model_type: str) -> None:
    of_gpt2 = {"n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 128, "bos_token_id": None, "eos_token_id": None}
    model = make_model(model_type=model_type, head_dim=8, **(of_gpt2 if model_type == "gpt2" else {}))
    check_logp(model, make_engine(model), make_sampling(), 2e-5)


@pytest.mark.parametrize("model_type", ["mistral", "gemma3_text", "olmo3", "exaone4"])
def test_sliding_windows_are_sampled_with_a_cache_within_and_beyond_their_width(model_type: str) -> None:
    layers = {"layer_types": ["sliding_attention", "full_attention"]} if model_type != "mistral" else {}
    for window in (4, 64):
        model = make_model(model_type=model_type, head_dim=8, sliding_window=window, **layers)
        engine = make_engine(model)
        assert engine.decoder is SharedPromptDecoder
        check_logp(model, engine, make_sampling(16), 2e-5)  # of up to 24 tokens


def test_a_model_that_reads_images_too_is_sampled_as_its_text_model() -> None:
    """Its sizes stand in a part of its config: 2 · 2 layers · 2 heads · 8 · 4 bytes of a token's keys and values."""
    layers = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 4, "head_dim": 8}
    image = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = Gemma3ForConditionalGeneration(Gemma3Config(text_config=TINY | layers, vision_config=image)).eval()
    engine = make_engine(model)
    assert (engine.decoder, cache_bytes_per_token(engine.model)) == (SharedPromptDecoder, 256)
    check_logp(model, engine, make_sampling(), 2e-5)
    with pytest.raises(ValueError, match="exceed the model's 128 positions"):
        engine.generate(make_requests(), make_sampling(121))


def test_longrope_is_sampled_in_the_positions_of_its_short_factors_alone() -> None:
    """Beyond them transformers rotates the whole batch by the long ones, while cached keys keep the short ones."""
    factors = {"short_factor": [1.0] * 4, "long_factor": [4.0] * 4, "original_max_position_embeddings": 32}
    rope = {"rope_type": "longrope", "rope_theta": 1e4, **factors}
    short = {"original_max_position_embeddings": 32, "pad_token_id": 0}
    model = make_model(model_type="phi3", rope_parameters=rope, **short)
    engine = make_engine(model)
    check_logp(model, engine, make_sampling(24), 1e-5)  # after a prompt of 8
    with pytest.raises(ValueError, match="A prompt of 8 tokens and 25 new ones exceed the model's 32 positions"):
        engine.generate(make_requests(), make_sampling(25))


def test_windows_that_the_attention_is_not_told_of_are_recomputed_with_a_warning(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model(use_sliding_window=True, sliding_window=64, max_window_layers=0)
    forgetful = type(model.model.layers[0].self_attn)  # type: ignore[union-attr]
    monkeypatch.setattr(forgetful, "sliding_window", property(lambda _: None, lambda *_: None), raising=False)
    with caplog.at_level(logging.WARNING):
        engine = make_engine(model)
    assert engine.decoder is RecomputingDecoder
    assert "without a cache" in caplog.text
    check_logp(model, engine, make_sampling(), 1e-5)


def test_without_a_cache_logits_are_made_of_the_last_positions_alone() -> None:
    model, shapes = make_model(), list[tuple[int, ...]]()
    model.lm_head.register_forward_hook(lambda _, args, __: shapes.append(tuple(args[0].shape)))  # type: ignore[union-attr]
    rows = RecomputingDecoder(model, torch.tensor([[3, 1, 4], [9, 2, 0]]), torch.tensor([3, 2]))
    got = rows.start(torch.tensor([0, 0, 1]), 1)
    assert shapes == [(1, 1, 32), (2, 1, 32)]  # one row of two tokens, two of three
    for row, prompt in zip(got, ([3, 1, 4], [3, 1, 4], [9, 2]), strict=True):
        torch.testing.assert_close(row, model(input_ids=torch.tensor([prompt])).logits[0, -1])


def test_the_trial_rejects_an_attention_that_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model()
    for layer in model.model.layers:  # type: ignore[union-attr]
        monkeypatch.setattr(layer.self_attn, "layer_idx", 0)  # two layers share one cache entry: wrong keys
    assert make_engine(model).decoder is RecomputingDecoder


def rounded(model: PreTrainedModel) -> PreTrainedModel:
    """The model in float32 with weights rounded to bfloat16: an engine in bfloat16 then differs in arithmetic alone."""
    rounded_model = copy.deepcopy(model)
    for parameter in rounded_model.parameters():
        parameter.data = parameter.data.bfloat16().float()
    return rounded_model


def test_frequencies_of_positions_are_float32_as_the_trainers_are() -> None:
    model = make_model(rope_parameters={"rope_type": "default", "rope_theta": 1e6})
    before = {name: buffer.clone() for name, buffer in model.named_buffers() if buffer.is_floating_point()}
    after = dict(make_engine(model, dtype="bfloat16").model.named_buffers())
    assert before
    for name, buffer in before.items():
        assert after[name].dtype == torch.float32
        assert torch.equal(after[name], buffer)


def test_tokens_do_not_depend_on_batch_order_or_size() -> None:
    model = make_model()
    requests, sampling = make_requests(), make_sampling(20)
    together = make_engine(model, eos=[7]).generate(requests, sampling)
    backwards = make_engine(model, eos=[7]).generate(requests[::-1], sampling)[::-1]
    alone = [make_engine(model, eos=[7]).generate([request], sampling)[0] for request in requests]
    split = make_engine(model, eos=[7], max_batch_sequences=2).generate(requests, sampling)
    small = make_engine(model, eos=[7], max_cache_gb=1e-5).generate(requests, sampling)
    for other in (backwards, alone, split, small):
        assert tokens_of(other) == tokens_of(together)
        for ours, theirs in zip(sum(other, ()), sum(together, ()), strict=True):
            np.testing.assert_allclose(ours.logp, theirs.logp, atol=1e-5)


def batches(engine: NativeEngine, num_samples: int, max_tokens: int) -> list[tuple[int, int]]:
    """(prompt tokens read, padding included; responses) of each batch that `engine` samples at once, no response ending
    early: a batch reads its prompts, then one token a response and step, but for the last."""
    read = list[int]()
    hook = engine.model.get_input_embeddings().register_forward_hook(
        lambda _m, args, _out: read.append(args[0].numel())
    )
    groups = engine.generate(make_requests(num_samples), make_sampling(max_tokens))
    hook.remove()
    assert [len(c.tokens) for group in groups for c in group] == [max_tokens] * 4 * num_samples
    return [(read[first], read[first + 1]) for first in range(0, len(read), max_tokens)]


def test_a_batch_keeps_within_its_limits() -> None:
    engine = make_engine(make_model(), max_batch_sequences=5)
    assert [rows for _, rows in batches(engine, 7, 12)] == [5, 5, 5, 5, 5, 3]
    # 2 layers × 2 heads × 8 numbers × 4 bytes, keys and values: 256 bytes a token.
    room = 2 * 8 + 4 * 12  # tokens of two prompts and four responses
    engine = make_engine(make_model(), max_cache_gb=256 * room / 2**30)
    cut = batches(engine, 3, 12)
    assert sum(rows for _, rows in cut) == 12
    assert all(prompts + rows * 12 <= room for prompts, rows in cut)


def test_noise_depends_on_seed_step_key_and_sample() -> None:
    engine = make_engine(make_model(initializer_range=0.05))
    base, longer = make_requests(2)[0], make_requests(3)[0]
    first = engine.generate([base], make_sampling())[0]
    assert first[0].tokens.tolist() != first[1].tokens.tolist()
    assert tokens_of([engine.generate([longer], make_sampling())[0][:2]]) == tokens_of([first])
    for changed in (make_sampling(seed=6), make_sampling(step=3)):
        assert tokens_of([engine.generate([base], changed)[0]]) != tokens_of([first])
    other = Request(base.prompt, 2, 2**64 - 1)
    assert tokens_of(engine.generate([other], make_sampling())) != tokens_of([first])


def test_a_response_ends_with_its_first_end_token() -> None:
    model, sampling = make_model(), make_sampling(30)
    endless = make_engine(model).generate(make_requests(8), sampling)
    ended = make_engine(model, eos=[7, 2]).generate(make_requests(8), sampling)
    cut = 0
    for long, short in zip(sum(endless, ()), sum(ended, ()), strict=True):
        ends = [i for i, token in enumerate(long.tokens) if token in (7, 2)]
        expected = long.tokens[: ends[0] + 1] if ends else long.tokens
        assert short.tokens.tolist() == expected.tolist()
        assert short.finished == bool(ends)
        assert not long.finished
        assert len(short.logp) == len(short.logp_sampling) == len(short.tokens)
        np.testing.assert_allclose(short.logp, long.logp[: len(expected)], atol=1e-5)
        cut += bool(ends)
    assert cut > 0  # the sample contains both kinds


def test_a_response_cut_at_max_tokens_is_not_finished_and_one_that_just_fits_is() -> None:
    model = make_model()
    long = make_engine(model).generate(make_requests(1), make_sampling(9))[0][0]
    last = int(long.tokens[5])
    expected = next(i for i, token in enumerate(long.tokens) if token == last) + 1
    fits = make_engine(model, eos=[last]).generate(make_requests(1), make_sampling(expected))[0][0]
    assert fits.finished
    assert len(fits.tokens) == expected
    if expected > 1:
        cut = make_engine(model, eos=[last]).generate(make_requests(1), make_sampling(expected - 1))[0][0]
        assert not cut.finished
        assert len(cut.tokens) == expected - 1


@torch.no_grad()
def pair_distribution(model: PreTrainedModel, prompt: list[int], top_p: float) -> np.ndarray:
    """Exact probability [V, V] of the first two tokens, each truncated to its nucleus, by plain loops in float64."""

    def next_word(ids: list[int]) -> np.ndarray:
        p = model(input_ids=torch.tensor([ids])).logits[0, -1].double().softmax(-1).numpy()
        kept, reached = np.zeros(V), 0.0
        for word in sorted(range(V), key=lambda w: -p[w]):
            if reached < top_p:
                kept[word] = p[word]
            reached += p[word]
        return kept / kept.sum()

    first = next_word(prompt)
    return np.stack([first[word] * next_word([*prompt, word]) for word in range(V)])


@pytest.mark.parametrize("top_p", [1.0, 0.7])
def test_samples_follow_the_exact_distribution(top_p: float) -> None:
    model, prompt, num = make_model(initializer_range=0.15), PROMPTS[0], 6000
    engine = make_engine(model, max_batch_sequences=num)
    group = engine.generate([Request(np.array(prompt), num, 1)], make_sampling(2, top_p=top_p))[0]
    counts = np.zeros((V, V))
    for completion in group:
        counts[tuple(completion.tokens)] += 1
    expected = pair_distribution(model, prompt, top_p) * num
    assert not counts[expected == 0].any()
    # Cells with an expectation below 5 are pooled, as the chi-square approximation wants.
    large = expected >= 5
    observed = np.append(counts[large], counts[~large].sum())
    wanted = np.append(expected[large], expected[~large].sum())
    observed, wanted = observed[wanted > 0], wanted[wanted > 0]
    assert stats.chisquare(observed, wanted).pvalue > 1e-3
    reported = [float(c.logp_sampling.sum()) for c in group]
    exact = [np.log(expected[tuple(c.tokens)] / num) for c in group]
    np.testing.assert_allclose(reported, exact, atol=1e-5)


def test_each_prompt_is_read_once_for_all_its_samples() -> None:
    engine, read = make_engine(make_model()), []
    engine.model.get_input_embeddings().register_forward_hook(lambda _m, args, _out: read.append(args[0].numel()))
    engine.generate(make_requests(16), make_sampling(10))
    assert read[0] == 4 * max(map(len, PROMPTS))  # one row per prompt, whatever the number of samples
    assert read[1:] == [64] * 9  # then one token per sample and step; the last token is not read


def test_finished_rows_leave_the_batch() -> None:
    engine, read = make_engine(make_model(), eos=[7, 2]), []
    engine.model.get_input_embeddings().register_forward_hook(lambda _m, args, _out: read.append(args[0].numel()))
    groups = engine.generate(make_requests(16), make_sampling(60))
    lengths = np.array([len(c.tokens) for group in groups for c in group])
    running = [int((lengths > step + 1).sum()) for step in range(len(read) - 1)]
    assert all(ours <= max(alive / (1 - 1 / 8), alive + 1) for ours, alive in zip(read[1:], running, strict=True))
    assert read[-1] < 64


@pytest.mark.parametrize("names", ["parameters", "state_dict", "head_only"])
def test_sync_reaches_a_tied_head_of_an_engine_that_started_elsewhere(names: str) -> None:
    model = make_model(seed=1)
    engine = make_engine(make_model(seed=0))
    weights = dict(model.named_parameters()) if names == "parameters" else dict(model.state_dict())
    if names == "head_only":
        weights.pop("model.embed_tokens.weight")
    engine.sync(weights.items())
    check_logp(model, engine, make_sampling(), 1e-5)


def test_sync_copies_the_weights_and_casts_them_to_the_dtype_of_the_engine() -> None:
    for dtype, tolerance in (("float32", 1e-5), ("bfloat16", 0.05)):
        model = make_model(seed=1, initializer_range=0.1)
        engine = make_engine(make_model(seed=0), dtype=dtype)
        engine.sync(model.named_parameters())
        assert {parameter.dtype for parameter in engine.model.parameters()} == {getattr(torch, dtype)}
        assert engine.decoder is SharedPromptDecoder
        before = rounded(model) if dtype == "bfloat16" else copy.deepcopy(model)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
        check_logp(before, engine, make_sampling(), tolerance)


def test_an_incomplete_sync_is_an_error_and_stops_the_engine() -> None:
    model, name = make_model(seed=1), "model.norm.weight"
    whole = dict(model.named_parameters())
    for weights, message in (
        ({n: w for n, w in whole.items() if n != name}, "did not get.*model.norm.weight"),
        ({**whole, "model.extra": torch.zeros(1)}, "model.extra.*does not have"),
        ({**whole, name: torch.zeros(1)}, r"shape \[1\], expected \[32\]"),
    ):
        engine = make_engine(make_model(seed=0))
        with pytest.raises(ValueError, match=message):
            engine.sync(weights.items())
        with pytest.raises(ValueError, match="Sync again"):
            engine.generate(make_requests(), make_sampling())
        engine.sync(model.named_parameters())
        check_logp(model, engine, make_sampling(), 1e-5)


def test_the_table_policy_goes_through_the_same_engine() -> None:
    table = TablePolicy(TableConfig(vocab_size=V))
    with torch.no_grad():
        table.model.table.weight.normal_(generator=torch.Generator().manual_seed(0))
    engine = make_engine(table)
    check_logp(table, engine, make_sampling(), 1e-5)
    alone = [engine.generate([request], make_sampling())[0] for request in make_requests()]
    assert tokens_of(engine.generate(make_requests(), make_sampling())) == tokens_of(alone)


def test_impossible_requests_are_rejected_and_no_request_gives_no_result() -> None:
    """Settings out of range: tests/rollout/test_request_checks.py."""
    engine = make_engine(make_model())
    assert engine.generate([], make_sampling()) == []
    assert engine.model.config._attn_implementation == SHARED_PROMPT
    with pytest.raises(ValueError, match="A prompt of 8 tokens and 125 new ones exceed the model's 128 positions"):
        engine.generate(make_requests(), make_sampling(125))
    with pytest.raises(ValueError, match="no token"):
        engine.generate(make_requests(1, [[]]), make_sampling())


def test_weights_that_have_diverged_are_named() -> None:
    model = make_model()
    engine = make_engine(model)
    engine.sync((name, torch.full_like(weight, torch.nan)) for name, weight in model.named_parameters())
    with pytest.raises(FloatingPointError, match="diverged"):
        engine.generate(make_requests(), make_sampling())


class First:
    """A `Progress` that has enough once the first `wanted` requests are complete."""

    def __init__(self, wanted: int) -> None:
        self.wanted, self.taken = wanted, dict[int, tuple[Completion, ...]]()

    def take(self, row: int, samples: tuple[Completion, ...]) -> None:
        self.taken[row] = samples

    @property
    def enough(self) -> bool:
        return all(row in self.taken for row in range(self.wanted))


def check_until(engine: StoppingEngine, requests: list[Request], sampling: Sampling) -> list[dict[int, Any]]:
    """Check that `generate_until` gives the samples of `generate`, all of them or those of the first requests. Returns
    both."""
    expected = tokens_of(engine.generate(requests, sampling))
    complete, first = First(len(requests) + 1), First(1)
    for progress in (complete, first):
        engine.generate_until(requests, sampling, progress)
        for row, group in progress.taken.items():
            assert tokens_of([group]) == [expected[row]]
    assert sorted(complete.taken) == list(range(len(requests)))
    return [complete.taken, first.taken]


def test_sampling_stops_once_there_is_enough() -> None:
    """Even within a batch, whose other rows are abandoned. The request that ends first comes first."""
    model = make_model()
    engine = make_engine(model, eos=[7])
    requests = make_requests(2, [PROMPTS[i % 4] for i in range(12)])
    lengths = [max(len(c.tokens) for c in group) for group in engine.generate(requests, make_sampling(60))]
    shortest = min(range(12), key=lengths.__getitem__)
    requests = [requests[shortest], *requests[:shortest], *requests[shortest + 1 :]]
    _, taken = check_until(engine, requests, make_sampling(60))
    assert 0 in taken
    assert len(taken) < 12
    small = make_engine(model, eos=[7], max_batch_sequences=4)
    _, taken = check_until(small, requests, make_sampling(60))
    assert set(taken) <= {0, 1}  # the wave of the first
