import math
from dataclasses import replace

import pytest
import torch

from rlvr.objective.batch import Batch, Policy, Terms, binary_rewards, one_token_responses
from rlvr.trainer.diverged import Diverged
from tests.trainer.tiny import batch, make_trainer, plain_logp, qwen2, surrogate, weights


def test_mini_batches_are_whole_groups_in_order_as_even_as_can_be() -> None:
    seen = list[tuple[int, float]]()

    def looks(policy: Policy, batch: Batch) -> Terms:
        seen.append((int(batch.group.max()) + 1, float(batch.reward[0])))
        return surrogate(policy, batch)

    data = batch(num_groups=5, reward=torch.arange(5.0).repeat_interleave(3), lengths=[2] * 15)
    make_trainer(loss=looks, updates=2, epochs=2).learn(data)
    assert seen == [(3, 0.0), (2, 3.0)] * 2
    seen.clear()
    make_trainer(loss=looks, updates=8).learn(data)  # dynamic sampling left fewer groups than updates
    assert seen == [(1, float(g)) for g in range(5)]


def test_metrics_by_hand() -> None:
    """Means over the tokens of all micro-batches, from the model's own log-probabilities."""
    data = batch()
    trainer = make_trainer(token_budget=1, base_kl=True)
    metrics = trainer.learn(data)
    model = qwen2().eval()
    logp = torch.cat(plain_logp(model, data)).double().detach()
    ratio = logp - data.logp_old[data.mask].double()
    advantage = data.advantage[:, None].expand_as(data.mask)[data.mask].double()
    loss = -torch.minimum(ratio.exp() * advantage, ratio.exp().clamp(0.8, 1.2) * advantage)
    expected = {"loss/total": loss.mean(), "loss/ratio": ratio.exp().mean()}
    expected |= {"policy/clip_fraction": (ratio.exp() > 1.2).double().mean()}
    expected |= {"policy/abs_log_ratio": ratio.abs().mean(), "policy/kl_old": (ratio.exp() - 1 - ratio).mean()}
    expected |= {"policy/kl_base": torch.tensor(0.0), "advantage/abs_mean": advantage.abs().mean()}
    expected |= {"optim/lr": torch.tensor(1e-3), "tokens/used": data.mask.sum()}
    for name, value in expected.items():
        assert metrics[name] == pytest.approx(float(value), rel=1e-5, abs=1e-6), name
    assert set(metrics) == {*expected, "policy/entropy", "optim/grad_norm", "tokens/train"}
    assert 0 < metrics["policy/entropy"] < math.log(16)


def test_metrics_are_means_over_updates_and_tokens_are_sums() -> None:
    data = batch(num_groups=2, lengths=[3, 2, 1, 6, 6, 6])
    halves = [make_trainer().learn(data.select(torch.tensor([g]))) for g in (0, 1)]
    both = make_trainer(updates=2, lr=1e-30).learn(data)  # so small that the second update sees the first one's policy
    assert both["tokens/used"] == 24
    assert both["loss/total"] == pytest.approx((halves[0]["loss/total"] + halves[1]["loss/total"]) / 2, rel=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_distance_to_the_base_policy_is_zero_before_the_first_update_and_positive_after(dtype: str) -> None:
    trainer = make_trainer(base_kl=True, lr=0.02, dtype=dtype)
    assert trainer.learn(batch())["policy/kl_base"] == 0
    assert trainer.learn(batch())["policy/kl_base"] > 1e-3


def test_logp_between_updates_is_that_of_the_current_weights() -> None:
    data = batch()
    trainer = make_trainer(lr=0.05)
    trainer.logp(data)
    trainer.learn(data)
    current = qwen2()
    current.load_state_dict({**weights(trainer), "lm_head.weight": weights(trainer)["model.embed_tokens.weight"]})
    fresh = make_trainer(current)
    assert torch.equal(trainer.logp(data), fresh.logp(data))


def test_the_same_run_twice_is_bitwise_the_same() -> None:
    runs = []
    for _ in range(2):
        trainer = make_trainer(updates=3, epochs=2, lr=0.01, token_budget=10)
        metrics = [trainer.learn(batch()) for _ in range(3)]
        runs.append((metrics, weights(trainer)))
    assert runs[0][0] == runs[1][0]
    assert all(torch.equal(runs[0][1][name], runs[1][1][name]) for name in runs[0][1])


def test_weights_that_are_not_finite_raise_before_the_step() -> None:
    for value in (math.nan, math.inf):
        trainer = make_trainer()
        trainer.learn(batch())
        spoilt = dict(trainer.actor.named_parameters())["model.model.layers.0.mlp.down_proj.weight"]
        with torch.no_grad():
            spoilt.fill_(value)
        before = weights(trainer)
        with pytest.raises(Diverged, match="the loss is nan at step 2, optimiser update 2"):
            trainer.learn(batch())
        after = weights(trainer)
        assert all(torch.equal(before[name].nan_to_num(), after[name].nan_to_num()) for name in before)
        assert trainer.num_updates == 1


def test_infinite_gradient_of_a_finite_loss_raises() -> None:
    def steep(policy: Policy, batch: Batch) -> Terms:
        return Terms((policy.logp - policy.logp.detach()).clamp(min=0).sqrt())  # value 0, slope infinite

    with pytest.raises(Diverged, match="the gradient norm is"):
        make_trainer(loss=steep).learn(batch())


def test_a_batch_that_the_loss_cannot_take_is_refused_before_an_update() -> None:
    takes_binary = binary_rewards(lambda policy, batch: surrogate(policy, batch))
    data = batch(reward=torch.tensor([1.0, 0, 1, 0, 1, 0, 1, 0, 0.25]))
    trainer = make_trainer(loss=takes_binary, updates=3)
    with pytest.raises(ValueError, match=r"got the reward 0.25. It takes rewards 0 and 1 only"):
        trainer.learn(data)
    assert trainer.num_updates == 0
    assert trainer.learn(replace(data, reward=data.reward.round()))["tokens/used"] == 28

    trainer = make_trainer(loss=one_token_responses(lambda policy, batch: surrogate(policy, batch)))
    with pytest.raises(ValueError, match="got a response of 3 tokens"):
        trainer.learn(batch(lengths=[1, 1, 0, 1, 3, 1, 2, 1, 1]))
    assert trainer.learn(batch(lengths=[1, 1, 0, 1, 1, 1, 1, 1, 1]))["tokens/used"] == 8


def test_terms_per_sequence_are_averaged_over_sequences() -> None:
    def looks(policy: Policy, batch: Batch) -> Terms:
        return Terms(-batch.advantage * policy.logp.sum(1), {"number": batch.reward})

    data = batch(reward=torch.arange(9.0))  # row 3 is empty and counts for nothing
    assert make_trainer(loss=looks, token_budget=1).learn(data)["loss/number"] == pytest.approx((36 - 3) / 8)


def test_without_tokens_a_batch_is_an_error_a_mini_batch_no_update_and_a_micro_batch_harmless() -> None:
    data = batch()
    with pytest.raises(ValueError, match="nothing to learn from"):
        make_trainer().learn(Batch(**{**vars(data), "mask": torch.zeros_like(data.mask)}))
    data = batch(lengths=[0, 0, 0, 2, 1, 3, 0, 0, 1])
    trainer = make_trainer(updates=3)
    trainer.learn(data)
    assert trainer.num_updates == 2
    metrics = make_trainer(token_budget=1).learn(data)
    assert metrics["tokens/used"] == 7
    assert all(math.isfinite(v) for v in metrics.values())
