import torch
from hypothesis import given
from hypothesis import strategies as st

from rlvr.objective.batch import Batch
from rlvr.trainer import pack
from rlvr.trainer.layout import Packed
from tests.trainer.tiny import batch


def small() -> Batch:
    """Prompts 21 22 and 31; responses 1 2 3 and 4 to the first, 5 6 to the second."""
    tokens = torch.tensor([[1, 2, 3], [4, 0, 0], [5, 6, 0]])
    mask = torch.tensor([[1, 1, 1], [1, 0, 0], [1, 1, 0]]).bool()
    nothing = torch.zeros(3, 3)
    prompt, prompt_mask = torch.tensor([[21, 22], [0, 31]]), torch.tensor([[1, 1], [0, 1]]).bool()
    return Batch(tokens, mask, nothing, nothing[:, 0], nothing[:, 0], torch.tensor([0, 0, 1]), prompt, prompt_mask)


def test_shared_layout_by_hand() -> None:
    layout = pack.pack(small(), shared=True)
    # Row: 21 22 31 | 1 2 | (nothing of response 4) | 5. The last token of a response predicts nothing.
    assert layout.input_ids.tolist() == [[21, 22, 31, 1, 2, 5]]
    assert layout.position_ids is not None
    assert (layout.position_ids.tolist(), layout.target.tolist()) == ([[0, 1, 0, 2, 3, 1]], [1, 2, 3, 4, 5, 6])
    # 1 and 4 are predicted by 22 (place 1), 2 by 1 (3), 3 by 2 (4), 5 by 31 (2), 6 by 5 (5).
    assert (layout.predict.tolist(), layout.place.tolist()) == ([1, 3, 4, 1, 2, 5], [0, 1, 2, 3, 6, 7])
    assert layout.num_tokens == 6


def test_separate_layout_by_hand() -> None:
    layout = pack.pack(small(), shared=False)
    assert layout.input_ids.tolist() == [[21, 22, 21, 22, 31, 1, 2, 5]]
    assert layout.position_ids is not None
    assert layout.position_ids.tolist() == [[0, 1, 0, 1, 0, 2, 3, 1]]
    assert layout.predict.tolist() == [1, 5, 6, 3, 4, 7]


def test_padded_layout_by_hand() -> None:
    layout = pack.pad(small(), pad_token_id=99)
    assert layout.input_ids.tolist() == [[21, 22, 1, 2], [21, 22, 99, 99], [31, 5, 99, 99]]
    assert layout.position_ids is None
    assert (layout.predict.tolist(), layout.num_tokens) == ([1, 2, 3, 5, 8, 9], 8)


def visible(packed: Packed, num_tokens: int) -> list[set[int]]:
    """For each token of the row, the tokens that it attends to, computed from the segments one by one."""
    queries = list[set[int]]()
    for segment in packed.segments:
        for row in range(len(segment.query)):
            for t in range(segment.query.shape[1]):
                if segment.mask is None:
                    seen = range(t + 1)
                else:
                    mask = segment.mask.expand(len(segment.query), -1, -1, -1)[row, 0, t]
                    seen = [s for s in range(segment.key.shape[1]) if mask[s]]
                queries.append({int(segment.key[row, s]) for s in seen})
    return [queries[int(packed.order[n])] for n in range(num_tokens)]


def test_attention_by_hand() -> None:
    shared, apart = (pack.pack(small(), shared=s) for s in (True, False))
    assert shared.packed is not None
    assert apart.packed is not None
    assert visible(shared.packed, 6) == [{0}, {0, 1}, {2}, {0, 1, 3}, {0, 1, 3, 4}, {2, 5}]
    assert visible(apart.packed, 8) == [{0}, {0, 1}, {2}, {2, 3}, {4}, {0, 1, 5}, {0, 1, 5, 6}, {4, 7}]


def test_a_hole_in_the_mask_is_read_but_not_predicted() -> None:
    data = small()
    mask = data.mask.clone()
    mask[0, 1] = False  # token 2 came from a tool, say
    layout = pack.pack(Batch(**{**vars(data), "mask": mask}), shared=True)
    assert (layout.input_ids.tolist(), layout.target.tolist()) == ([[21, 22, 31, 1, 2, 5]], [1, 3, 4, 5, 6])


def test_very_different_lengths_do_not_share_a_segment() -> None:
    data = batch(num_groups=1, num_samples=3, lengths=[6, 6, 1])
    long = Batch(**{**vars(data), "prompt": torch.ones(1, 2, dtype=torch.int64), "prompt_mask": torch.ones(1, 2) > 0})
    packed = pack.pack(long, shared=False).packed
    assert packed is not None
    # Sequences of 7, 7 and 2 tokens: 2 is less than 7 / 1.5.
    assert [tuple(s.query.shape) for s in packed.segments] == [(2, 7), (1, 2)]


def test_sharing_pays_for_long_prompts_only() -> None:
    def lengths(prompt: int, response: int) -> pack.Lengths:
        return pack.Lengths(torch.tensor([prompt]), torch.full((4,), response + 1), torch.zeros(4, dtype=torch.int64))

    assert lengths(70, 32).sharing_pays()  # 70 + 128 tokens instead of 408
    assert not lengths(10, 1000).sharing_pays()  # saves 30 of 4040
    assert not lengths(2000, 100).sharing_pays()  # longer than what a mask is worth


@given(
    cost=st.lists(st.integers(1, 100), min_size=1, max_size=30), budget=st.integers(1, 200), num_ranks=st.integers(1, 5)
)
def test_plan_laws(cost: list[int], budget: int, num_ranks: int) -> None:
    plan = pack.plan(torch.tensor(cost), budget=budget, num_ranks=num_ranks)
    assert len(plan) == num_ranks
    assert len({len(rank) for rank in plan}) == 1  # the same number of passes: collectives match
    micro = [part for rank in plan for part in rank]
    assert sorted(group for part in micro for group in part.tolist()) == list(range(len(cost)))
    for part in micro:
        assert part.tolist() == sorted(part.tolist())
        assert len(part) <= 1 or sum(cost[g] for g in part.tolist()) <= budget
    assert sum(len(part) == 0 for part in micro) < num_ranks or len(cost) < num_ranks  # none idle without need
    per_rank = [sum(cost[g] for part in rank for g in part.tolist()) for rank in plan]
    assert max(per_rank) - min(per_rank) <= max(cost) * len(plan[0])
