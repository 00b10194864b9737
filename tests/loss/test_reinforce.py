import torch

from rlvr.loss.reinforce import reinforce
from rlvr.objective.batch import Policy
from tests.loss.by_hand import check_tokens, gradient
from tests.support.factories import make_batch, make_policy, one_token_batch


def test_numbers_worked_by_hand() -> None:
    fields = {"advantage": torch.tensor([2.0, -1.0]), "logp_old": torch.zeros(2, 2)}
    batch = make_batch(num_groups=1, num_samples=2, num_tokens=2, lengths=[2, 1], **fields)
    policy = make_policy(batch, log_ratio=torch.tensor([[-0.5, -1.0], [-3.0, -7.0]]))
    terms = reinforce(policy, batch)
    assert terms.loss.tolist() == [[1.0, 2.0], [-3.0, 0.0]]  # −2·(−0.5), −2·(−1); 1·(−3), padding
    assert gradient(terms, policy).tolist() == [[-2.0, -2.0], [1.0, 0.0]]
    check_tokens(reinforce, lambda A, logp, *_: -A * logp)


def test_expected_gradient_is_that_of_the_expected_reward() -> None:
    """All four arms, each weighted by its probability: −∇ Σ π R."""
    logits = torch.tensor([0.3, -1.0, 0.5, 2.0], dtype=torch.float64, requires_grad=True)
    R = torch.tensor([1.0, 0.0, 0.3, -2.0], dtype=torch.float64)
    logp = logits.log_softmax(0)
    (true,) = torch.autograd.grad(-(logp.exp() * R).sum(), logits, retain_graph=True)
    loss = reinforce(Policy(logp[:, None]), one_token_batch(4, advantage=R)).loss
    (got,) = torch.autograd.grad((logp.exp().detach() * loss.squeeze(1)).sum(), logits)
    torch.testing.assert_close(got, true, rtol=1e-12, atol=1e-14)
