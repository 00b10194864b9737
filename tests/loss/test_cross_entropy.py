import pytest
import torch

from rlvr.loss.cross_entropy import cross_entropy
from rlvr.metrics import weight_ml
from rlvr.objective.batch import Policy
from tests.loss.by_hand import check_tokens, gradient
from tests.support.factories import make_batch, make_policy


def test_numbers_worked_by_hand() -> None:
    batch = make_batch(num_groups=1, num_samples=2, num_tokens=2, lengths=[2, 1], logp_old=torch.zeros(2, 2))
    policy = make_policy(batch, log_ratio=torch.tensor([[-0.5, -1.0], [-3.0, -7.0]]))
    terms = cross_entropy(policy, batch)
    assert terms.loss.tolist() == [[0.5, 1.0], [3.0, 0.0]]
    assert gradient(terms, policy).tolist() == [[-1.0, -1.0], [-1.0, 0.0]]
    check_tokens(cross_entropy, lambda _, logp, *__: -logp)


@pytest.mark.parametrize("p", [0.001, 0.3, 0.99])
def test_expected_gradient_is_one_over_p_times_that_of_the_pass_rate(p: float) -> None:
    logits = torch.tensor([p, 1 - p], dtype=torch.float64).log().requires_grad_()
    logp = logits.log_softmax(0)
    batch = make_batch(num_groups=1, num_samples=1, num_tokens=1, lengths=[1], dtype=torch.float64)
    (slope,) = torch.autograd.grad(-cross_entropy(Policy(logp[:1, None]), batch).loss.sum(), logits, retain_graph=True)
    (of_p,) = torch.autograd.grad(logp[0].exp(), logits)
    torch.testing.assert_close(slope, float(weight_ml(p)) * of_p, rtol=1e-9, atol=0)
