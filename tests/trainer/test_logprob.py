from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from rlvr.loss.kl_cov import kl_cov
from rlvr.trainer.logprob import candidates_logp, token_logp
from tests.trainer.losses import SELECTIVE
from tests.trainer.tiny import batch, make_trainer, plain_logp, qwen2


@pytest.mark.parametrize("knobs", [{}, {"packing": False}, {"shared_prompt": "always", "token_budget": 10}])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logp_is_that_of_the_models_logits(knobs: dict[str, Any], temperature: float) -> None:
    data = batch()
    expected = plain_logp(qwen2().eval(), data, temperature)
    actual = make_trainer(temperature=temperature, **knobs).logp(data)
    for b, row in enumerate(expected):
        assert torch.allclose(actual[b, : len(row)], row, atol=2e-6)
        assert torch.equal(actual[b, len(row) :], torch.zeros(actual.shape[1] - len(row)))


@pytest.mark.parametrize("entropy_gradient", [True, False])
def test_chunks_change_nothing(entropy_gradient: bool) -> None:
    torch.manual_seed(0)
    head = nn.Linear(8, 30)
    target = torch.randint(30, (11,))

    def gradient(chunk: int) -> tuple[torch.Tensor, ...]:
        hidden = torch.linspace(-2, 2, 88).view(11, 8).requires_grad_()
        logp, entropy = token_logp(head, hidden, target, 0.8, entropy_gradient=entropy_gradient, chunk=chunk)
        assert entropy.requires_grad == entropy_gradient
        loss = (logp * torch.arange(11)).sum() + (entropy.square().sum() if entropy_gradient else 0)
        return logp, entropy, *torch.autograd.grad(loss, [hidden, head.weight])

    for whole, cut in zip(gradient(10_000), gradient(90), strict=True):  # 90 logits: three tokens at a time
        assert torch.allclose(whole, cut, atol=1e-5)


def test_candidates_are_the_most_probable_tokens_in_chunks_too() -> None:
    torch.manual_seed(0)
    head = nn.Linear(8, 30)
    values = torch.linspace(-2, 2, 88).view(11, 8)

    def gradients(best: Callable[[torch.Tensor], torch.Tensor]) -> tuple[torch.Tensor, ...]:
        hidden = values.clone().requires_grad_()
        found = best(hidden)
        return found, *torch.autograd.grad((found.mean(-1) * torch.arange(11)).sum(), [hidden, head.weight])

    expected = gradients(lambda hidden: (head(hidden) / 0.8).log_softmax(-1).topk(3).values)
    for chunk in (10_000, 90):
        of_chunks = gradients(lambda h, c=chunk: candidates_logp(head, h, 3, 0.8, compiled=False, chunk=c))
        for own, other in zip(of_chunks, expected, strict=True):
            assert torch.allclose(own, other, atol=1e-5)


def test_no_more_candidates_than_tokens() -> None:
    with pytest.raises(ValueError, match=r"loss.num_candidates=6 is more than the vocabulary has, 5 tokens"):
        candidates_logp(nn.Linear(4, 5), torch.zeros(2, 4), 6, 1.0, compiled=False)


@pytest.mark.slow
@pytest.mark.parametrize(("entropy_gradient", "bias"), [(True, True), (False, False)])
def test_compiled_passes_give_what_separate_ones_do(entropy_gradient: bool, bias: bool) -> None:
    """For chunks of every size, with no graph more for each of them: 11, 14 and 16 tokens, four at a time."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    head = nn.Linear(8, 30, bias=bias)
    graphs = list[int]()
    for num_tokens in (11, 14, 16, 10):
        results = list[list[torch.Tensor]]()
        for compiled in (True, False):
            hidden = torch.linspace(-2, 2, num_tokens * 8).view(num_tokens, 8).requires_grad_()
            target = torch.arange(num_tokens) * 7 % 30
            how = {"entropy_gradient": entropy_gradient, "compiled": compiled, "chunk": 4 * 30}
            logp, entropy = token_logp(head, hidden, target, 0.8, **how)
            assert entropy is not None
            loss = (logp * torch.arange(num_tokens)).sum() + (entropy.square().sum() if entropy_gradient else 0)
            results.append([logp, entropy, *torch.autograd.grad(loss, [hidden, *head.parameters()])])
        for joined, separate in zip(*results, strict=True):
            assert torch.allclose(joined, separate, atol=1e-5)
        graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    assert graphs[0] > 0
    assert graphs[-1] == graphs[0]


class Largest(TorchDispatchMode):
    """Elements of the largest tensor that any operation returns, backward passes included."""

    size = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: tuple[Any, ...] = (), knobs: dict[str, Any] | None = None
    ) -> Any:
        result = function(*arguments, **(knobs or {}))
        for output in result if isinstance(result, list | tuple) else [result]:
            if isinstance(output, torch.Tensor):
                self.size = max(self.size, output.numel())
        return result


@pytest.mark.parametrize("entropy_gradient", [True, False])
def test_logits_of_all_tokens_never_exist(entropy_gradient: bool) -> None:
    """200 tokens of 1,000 words: at most a chunk of 20 tokens at a time, in both passes; weights are 8,000 numbers. Of
    150 that there is room for whole tiles of 128 are taken."""
    head = nn.Linear(8, 1000, bias=False)
    hidden, target = torch.randn(200, 8, requires_grad=True), torch.randint(1000, (200,))
    for room, largest in ((20_000, 20_000), (150_000, 128_000)):
        with Largest() as seen:
            logp, entropy = token_logp(head, hidden, target, 1.0, entropy_gradient=entropy_gradient, chunk=room)
            (logp.sum() + entropy.sum()).backward()
        assert seen.size == largest
    with Largest() as seen:
        token_logp(head, hidden, target, 1.0, entropy_gradient=entropy_gradient)[0].sum().backward()
    assert seen.size == 200_000  # in one chunk they do: the measure sees them


class Entropies(TorchDispatchMode):
    """Counts how often the largest of a row's logits was computed on its own, which only entropies need."""

    count = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: tuple[Any, ...] = (), knobs: dict[str, Any] | None = None
    ) -> Any:
        self.count += function is torch.ops.aten.amax.default and arguments[1:] == ([-1], True)
        return function(*arguments, **(knobs or {}))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("chunk", [90, 10_000])
def test_log_probabilities_and_gradients_are_the_same_bits_without_entropies(chunk: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    head, target = nn.Linear(8, 30).to(dtype), torch.randint(30, (11,))
    results = list[list[torch.Tensor]]()
    for with_entropy in (True, False):
        hidden = torch.linspace(-2, 2, 88).view(11, 8).to(dtype).requires_grad_()
        with Entropies() as seen:
            how = {"entropy_gradient": False, "with_entropy": with_entropy, "chunk": chunk}
            logp, entropy = token_logp(head, hidden, target, 0.8, **how)
            grads = torch.autograd.grad((logp * torch.arange(11)).sum(), [hidden, head.weight, head.bias])
        assert (entropy is not None) == (seen.count > 0) == with_entropy
        results.append([logp, *grads])
    assert all(torch.equal(*pair) for pair in zip(*results, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_entropies_are_not_computed_where_nobody_reads_them(dtype: str) -> None:
    """None in a forward pass of frozen policies or for log-probabilities only; one in a forward pass of training."""
    data = batch(lengths=[3, 1, 2] * 3, logp_ref=None)

    def taken(**knobs: Any) -> int:
        trainer = make_trainer(dtype=dtype, token_budget=1, **knobs)
        with Entropies() as seen:
            trainer.learn(data)
        return seen.count

    num_micro_batches = 9  # rows
    for knobs in ({}, {"kl": 0.1, "base_kl": True, "reference_every": 1}, {"lora_rank": 2, "base_kl": True}):
        assert taken(**knobs) == num_micro_batches, knobs
    assert taken(loss=partial(kl_cov, fraction=0.3, coefficient=1.0), kl=0.1) == num_micro_batches
    assert taken(loss=SELECTIVE) == 2 * num_micro_batches  # its first pass reads them
    trainer = make_trainer(dtype=dtype)
    with Entropies() as seen:
        logp = trainer.logp(data)
    assert seen.count == 0
    with Entropies() as seen:
        policy = trainer.policy_of(data)
    assert seen.count > 0
    assert policy.entropy is not None
    assert torch.equal(logp, policy.logp)


def test_entropy_by_hand() -> None:
    # softmax(0, ln 3) = (1/4, 3/4): H = ¼ ln 4 + ¾ ln (4/3).
    head = nn.Linear(1, 2, bias=False)
    head.weight.data = torch.tensor([[0.0], [1.0]])
    hidden = torch.tensor([[3.0]]).log()
    logp, entropy = token_logp(head, hidden, torch.tensor([1]), 1.0, entropy_gradient=False)
    assert (logp.item(), entropy.item()) == (pytest.approx(-0.28768207), pytest.approx(0.56233514))


@pytest.mark.parametrize("impossible", [0, 1000])
def test_entropy_and_its_gradient_at_a_vocabulary_of_32k_are_those_of_float64(impossible: int) -> None:
    """Logits of about 8 · normal + 20, the last `impossible` of them −inf; float64 has the same float32 weights."""
    torch.manual_seed(0)
    head = nn.Linear(16, 32_768)
    with torch.no_grad():
        head.weight.normal_(std=2)
        head.bias.fill_(20)
        head.bias[len(head.bias) - impossible :] = -torch.inf
    hidden, target = torch.randn(24, 16, requires_grad=True), torch.arange(24)
    weight = torch.linspace(-1, 1, 24)
    logp, entropy = token_logp(head, hidden, target, 1.0, entropy_gradient=True, chunk=10 * 32_768)
    gradients = torch.autograd.grad((weight * entropy).sum(), [hidden, head.weight])

    wide = nn.Linear(16, 32_768).double()
    wide.load_state_dict({name: value.double() for name, value in head.state_dict().items()})
    exact = hidden.detach().double().requires_grad_()
    possible = wide(exact)[:, : 32_768 - impossible].log_softmax(-1)
    expected = -(possible.exp() * possible).sum(-1)
    exact_gradients = torch.autograd.grad((weight * expected).sum(), [exact, wide.weight])
    torch.testing.assert_close(entropy.double(), expected, rtol=0, atol=2e-5)
    torch.testing.assert_close(logp.double(), possible[torch.arange(24), target], rtol=0, atol=2e-5)
    for actual, right in zip(gradients, exact_gradients, strict=True):
        assert float((actual.double() - right).abs().max() / right.abs().max()) < 1e-5


@pytest.mark.parametrize("tokens", [8, 600])
def test_the_head_in_half_precision_errs_by_a_quarter_of_a_percent_at_most(tokens: int) -> None:
    """Logits, log-probabilities and the sum of the weights' gradient over 150 chunks, against float64 of the same
    half-precision factors: the remaining error is that gradients are returned in half precision."""
    torch.manual_seed(0)
    hidden = torch.randn(tokens, 64).bfloat16().requires_grad_()
    head = nn.Linear(64, 512, bias=False).bfloat16()
    target, coefficient = torch.randint(512, (tokens,)), torch.randn(tokens)
    logp, entropy = token_logp(head, hidden, target, 0.7, entropy_gradient=True, chunk=4 * 512)
    (logp @ coefficient + entropy @ coefficient).backward()

    exact, weight = (x.detach().double().requires_grad_() for x in (hidden, head.weight))
    log_p = (exact @ weight.t() / 0.7).log_softmax(-1)
    expected = log_p[torch.arange(tokens), target]
    expected_entropy = -(log_p.exp() * log_p).sum(-1)
    (expected @ coefficient.double() + expected_entropy @ coefficient.double()).backward()
    torch.testing.assert_close(logp.double(), expected, rtol=0, atol=2e-6 * 10)
    torch.testing.assert_close(entropy.double(), expected_entropy, rtol=0, atol=2e-6 * 10)
    for actual, right in ((hidden.grad, exact.grad), (head.weight.grad, weight.grad)):
        assert actual is not None
        assert right is not None
        assert float((actual.double() - right).norm() / right.norm()) < 0.0025
