import torch

from rlvr.objective.batch import Batch
from rlvr.trainer import batch_noise
from tests.support.factories import make_batch


def test_noise_is_uniform_and_a_function_of_content() -> None:
    data = make_batch(num_groups=40, num_samples=10, num_tokens=20)
    drawn = batch_noise.per_token(data, seed=3, update=5)
    assert 0 < float(drawn.min()) < float(drawn.max()) < 1
    # 8000 numbers: the mean is within 4 standard errors (0.0032 each) of ½.
    assert abs(float(drawn.mean()) - 0.5) < 4 / (12 * 8000) ** 0.5
    groups = torch.tensor([7, 30])
    rows = torch.isin(data.group, groups)
    assert torch.equal(batch_noise.per_token(data.select(groups), seed=3, update=5), drawn[rows])
    assert not torch.equal(batch_noise.per_token(data, seed=3, update=6), drawn)
    assert not torch.equal(batch_noise.per_token(data, seed=4, update=5), drawn)
    twins = Batch(**{**vars(data), "tokens": data.tokens[:1].expand(400, -1), "mask": data.mask[:1].expand(400, -1)})
    assert len(set(batch_noise.per_token(twins, seed=0, update=0)[:10, 0].tolist())) == 10  # equal responses, own noise


def test_dropout_keeps_nine_units_of_ten_and_is_a_function_of_the_prompt() -> None:
    data = make_batch(num_groups=50, num_samples=1)
    kept = batch_noise.units_kept(data, 16, seed=0, update=0)
    assert kept.shape == (50, 2, 16)
    assert abs(float(kept.double().mean()) - 0.9) < 4 * (0.09 / 1600) ** 0.5
    assert torch.equal(batch_noise.units_kept(data.select(torch.tensor([3, 9])), 16, seed=0, update=0), kept[[3, 9]])
