import itertools

import pytest
import torch

from rlvr.objective.batch import Batch
from rlvr.trainer import attention, pack
from rlvr.trainer.actor import Actor
from rlvr.trainer.attention import attend
from rlvr.trainer.layout import Layout, Packed, Varlen
from tests.trainer.test_pack import small, visible
from tests.trainer.tiny import batch, by_sequence, qwen2


def test_half_precision_attention_rounds_once_on_a_cpu() -> None:
    """Results and gradients agree with a float64 loop to half a unit in the last place."""
    packed, H, N, D = pack.pack(small(), shared=True).packed, 2, 6, 8
    assert isinstance(packed, Packed)
    generator = torch.Generator().manual_seed(0)
    draw = [torch.randn(1, heads, N, D, generator=generator).bfloat16() for heads in (H, 1, 1)]
    inputs = [x.clone().requires_grad_() for x in draw]
    actual, _ = attend(torch.nn.Identity(), *inputs, attention_mask=None, packed=packed)
    q, k, v = exact = [x.double().requires_grad_() for x in draw]
    rows = []
    for n, seen in enumerate(map(sorted, visible(packed, N))):
        weights = (torch.einsum("hd,sd->hs", q[0, :, n], k[0, 0, seen]) / D**0.5).softmax(-1)
        rows.append(weights @ v[0, 0, seen])
    expected = torch.stack(rows)[None]
    assert actual.dtype == torch.bfloat16
    torch.testing.assert_close(actual.double(), expected, rtol=2**-8, atol=1e-6)
    actual.float().square().sum().backward()
    (2 * actual.detach().double() * expected).sum().backward()  # the same gradient of the result
    for half, exact_input in zip(inputs, exact, strict=True):
        assert half.grad is not None
        torch.testing.assert_close(half.grad.double(), exact_input.grad, rtol=2**-8, atol=1e-5)


@pytest.mark.parametrize(("queries", "masked"), [(5, False), (1, False), (5, True)])
def test_attention_of_padded_rows_by_a_loop(queries: int, masked: bool) -> None:
    """Four heads of queries, two of keys, 5 keys: causal without a mask, where a lone query is the last token."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(3, h, n, 8, generator=generator) for h, n in ((4, queries), (2, 5), (2, 5)))
    visible = torch.ones(queries, 5, dtype=torch.bool).tril(5 - queries)
    if masked:
        visible = torch.rand(queries, 5, generator=generator) < 0.5
        visible[:, 0] = True
    layer = torch.nn.Module()
    layer.num_key_value_groups = 2  # type: ignore[assignment]
    actual, _ = attend(layer, q, k, v, visible[None, None] if masked else None, scaling=0.3)
    for row, head, n in itertools.product(range(3), range(4), range(queries)):
        seen = visible[n].nonzero()[:, 0]
        keys, values = k[row, head // 2, seen].double(), v[row, head // 2, seen].double()
        expected = (0.3 * keys @ q[row, head, n].double()).softmax(0) @ values
        torch.testing.assert_close(actual[row, n, head].double(), expected, rtol=1e-5, atol=1e-6)


def layouts(data: Batch) -> dict[str, Layout]:
    return {
        "padded rows": pack.pad(data, pad_token_id=0),
        "segments, shared": pack.pack(data, shared=True),
        "segments, apart": pack.pack(data, shared=False),
        "one call, shared": pack.pack(data, shared=True, varlen=True),
        "one call, apart": pack.pack(data, shared=False, varlen=True),
    }


def test_packed_attention_is_that_of_padded_rows_forward_and_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hidden states of the predicting tokens and the gradient of every weight, float32, relative to the largest."""
    monkeypatch.setattr(attention, "varlen_attn", by_sequence)
    attention.register()
    results = dict[str, list[torch.Tensor]]()
    for name, layout in layouts(batch(num_groups=4, num_samples=4)).items():
        model = qwen2()
        model.set_attn_implementation("sdpa" if name == "padded rows" else attention.NAME)
        predicting = Actor(model, 1.0).hidden(layout).flatten(0, 1)[layout.predict]
        order = layout.place.argsort()
        (predicting[order] * torch.linspace(-1, 1, predicting.numel()).view_as(predicting)).sum().backward()
        results[name] = [predicting[order].detach(), *(p.grad for p in model.parameters() if p.grad is not None)]
    expected = results.pop("padded rows")
    for name, tensors in results.items():
        for actual, right in zip(tensors, expected, strict=True):
            assert float((actual - right).abs().max() / right.abs().max()) < 1e-6, name


def test_sequences_of_one_call_by_hand() -> None:
    """Prompts 21 22 and 31, responses 1 2 (3), 4 and 5 (6): the row is 21 22 31 1 2 5, response 4 reads nothing."""
    shared = pack.pack(small(), shared=True, varlen=True).packed
    assert isinstance(shared, Varlen)
    assert (shared.query_ends.tolist(), shared.key_ends.tolist()) == ([0, 2, 3, 5, 6], [0, 2, 3, 7, 9])
    assert shared.key is not None
    assert shared.key.tolist() == [0, 1, 2, 0, 1, 3, 4, 2, 5]
    assert (shared.longest_query, shared.longest_key) == (2, 4)
    apart = pack.pack(small(), shared=False, varlen=True)
    assert apart.input_ids.tolist() == [[21, 22, 1, 2, 21, 22, 31, 5]]
    assert isinstance(apart.packed, Varlen)
    assert (apart.packed.query_ends.tolist(), apart.packed.key) == ([0, 4, 6, 8], None)


def test_which_models_and_gpus_have_a_kernel_for_sequences_of_any_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    """NVIDIA's table of compute capabilities; PyTorch's flash attention: "only supports Ampere GPUs or newer"."""
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    wide, narrow = qwen2(hidden=32), qwen2(hidden=16)  # heads of 8 and of 4
    for model, device, dtype, capability, takes in (
        (wide, gpu, torch.bfloat16, (8, 0), attention.VARLEN_TAKES_GROUPS),  # of grouped queries: from torch 2.13 on
        (wide, gpu, torch.float16, (8, 0), attention.VARLEN_TAKES_GROUPS),
        (wide, gpu, torch.float32, (8, 0), False),
        (wide, cpu, torch.bfloat16, (8, 0), False),
        (narrow, gpu, torch.bfloat16, (8, 0), False),
        (wide, gpu, torch.float16, (7, 0), False),  # V100
        (wide, gpu, torch.float16, (7, 5), False),  # T4
    ):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, capability=capability: capability)
        assert attention.takes_varlen(model, device, dtype) is takes, (device, dtype, capability)
