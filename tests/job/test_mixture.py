import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlvr.job.mixture import Mixture, mix, split_streams
from rlvr.objective.batch import Batch
from rlvr.records import Completion, Request, Sampling
from tests.rollout.test_presample import TASK, Scripted, encode, opened
from tests.support.factories import make_batch
from tests.trainer.tiny import make_trainer, qwen2, sequences


def make_mixture(store: Path, *, rows: int = 32, run_seed: int = 0, **changes: Any) -> Mixture:
    return split_streams(opened(store, **changes), seed=run_seed, rows=rows, pad_token_id=0)


def test_problems_are_split_by_their_correct_responses(tmp_path: Path) -> None:
    mixture = make_mixture(tmp_path)
    assert sorted(mixture.stored) == ["echo-train-0", "echo-train-3", "echo-train-5"]
    assert mixture.explored.indices.tolist() == [1, 2, 4, 6, 7]
    assert [mixture.explored.problem("train", i).id for i in (0, 1)] == ["echo-train-1", "echo-train-2"]
    assert make_mixture(tmp_path, drop_unsolved=True).explored.indices.tolist() == [2, 4, 6]
    assert sorted(make_mixture(tmp_path, threshold=3).stored) == [f"echo-train-{i}" for i in (0, 2, 3, 5)]


def test_the_first_correct_response_is_kept_with_its_log_probabilities(tmp_path: Path) -> None:
    (completion,) = make_mixture(tmp_path, threshold=3).stored["echo-train-2"].completions
    assert completion.tokens.tolist() == [*encode([TASK.problem("train", 2)])[0][:2], 7]
    assert completion.logp.tolist() == [-0.5, -0.25, -0.25]  # 3 of 4 are right: the second sample is the first of them


def test_rehearsed_rows_have_the_stored_responses_and_no_advantage(tmp_path: Path) -> None:
    mixture = make_mixture(tmp_path)
    explore = make_batch(num_groups=8, num_samples=4)
    batch = mixture.add(explore, step=1)
    rows = batch.kind == 1
    assert int(rows.sum()) == 4  # 32 explored rows, 8:1
    assert batch.advantage[rows].abs().sum() == 0
    for tokens, logp, mask in zip(batch.tokens[rows], batch.logp_old[rows], batch.mask[rows], strict=True):
        stored = [(k.completions[0].tokens.tolist(), k.completions[0].logp.tolist()) for k in mixture.stored.values()]
        assert (tokens[mask].tolist(), logp[mask].tolist()) in stored
    prompts = [batch.prompt[g][batch.prompt_mask[g]].tolist() for g in batch.group[rows].tolist()]
    answers = [t[m].tolist() for t, m in zip(batch.tokens[rows], batch.mask[rows], strict=True)]
    assert [p[:2] for p in prompts] == [a[:2] for a in answers]  # each answers its own prompt


class Truncating(Scripted):
    """Returns no log-probabilities of the policy without truncation, as vLLM with top_p < 1."""

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[tuple[Completion, ...]]:
        groups = super().generate(requests, sampling)
        return [tuple(replace(c, logp=np.full_like(c.logp, np.nan)) for c in group) for group in groups]


def test_responses_of_a_truncated_policy_get_their_log_probabilities_from_the_base_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against a loop over tokens in float64, of the softmax over all words."""
    monkeypatch.setattr("rlvr.job.mixture.AT_ONCE", 2)
    samples = opened(tmp_path, Truncating(), top_p=0.9)
    mixture = split_streams(samples, seed=0, rows=32, pad_token_id=0)
    assert bool(mixture.add(make_batch(num_groups=8, num_samples=4), step=1).logp_old.isnan().any())
    trainer, exact = make_trainer(qwen2()), qwen2().double()
    stored = mixture.with_logp(trainer.policy_of).stored
    assert list(stored) == list(mixture.stored)
    for group in stored.values():
        (completion,) = group.completions
        tokens = list(group.prompt)
        for token, logp in zip(completion.tokens.tolist(), completion.logp.tolist(), strict=True):
            scores = [math.exp(z) for z in exact(input_ids=torch.tensor([tokens])).logits[0, -1].tolist()]
            assert logp == pytest.approx(math.log(scores[token] / sum(scores)), abs=1e-5)
            tokens.append(token)


def test_with_own_log_probabilities_the_base_policy_has_ratio_1_on_every_stored_response(tmp_path: Path) -> None:
    """As explored responses have. The scripted engine's log-probabilities are those of another policy."""
    trainer = make_trainer(qwen2())
    mixture = make_mixture(tmp_path)
    with_own = mixture.with_logp(trainer.policy_of, own=True).add(make_batch(num_groups=8, num_samples=4), step=1)
    stored = with_own.kind == 1
    ratio = (trainer.policy_of(with_own).logp - with_own.logp_old)[stored][with_own.mask[stored]]
    assert ratio.abs().max() < 1e-6
    with_engines = mixture.with_logp(trainer.policy_of).add(make_batch(num_groups=8, num_samples=4), step=1)
    assert (trainer.policy_of(with_engines).logp - with_engines.logp_old)[stored][
        with_own.mask[stored]
    ].abs().max() > 0.1


def test_rehearsal_is_a_function_of_seed_and_step_and_passes_over_all(tmp_path: Path) -> None:
    mixture, again, other_seed = make_mixture(tmp_path), make_mixture(tmp_path), make_mixture(tmp_path, run_seed=1)
    explore = make_batch(num_groups=8, num_samples=4)

    def rehearsed(from_: Mixture, step: int) -> list[list[int]]:
        batch = from_.add(explore, step)
        return [t.tolist() for t in batch.tokens[batch.kind == 1]]

    assert rehearsed(again, 3) == rehearsed(mixture, 3)  # without steps 1 and 2 before it
    rows = [row for step in (1, 2, 3) for row in rehearsed(mixture, step)]
    num_rehearsals = {tuple(row): rows.count(row) for row in rows}
    assert sorted(num_rehearsals.values()) == [4, 4, 4]  # 12 rows over 3 responses: epochs are whole
    assert any(rehearsed(other_seed, step) != rehearsed(mixture, step) for step in (1, 2, 3))


@pytest.mark.parametrize(("P", "R", "updates"), [(8, 4, 2), (8, 4, 4), (32, 32, 2), (5, 3, 1), (4, 12, 4)])
def test_every_mini_batch_has_its_share_of_both(P: int, R: int, updates: int) -> None:
    batch = mix(make_batch(num_groups=P), make_batch(num_groups=R, num_samples=1, seed=1))
    assert batch.kind is not None
    kind_of_group = torch.zeros(P + R, dtype=torch.int64).scatter(0, batch.group, batch.kind)
    assert [int(part.sum()) for part in kind_of_group.tensor_split(updates)] == [R // updates] * updates


def test_mixing_moves_rows_and_changes_none() -> None:
    explore = make_batch(num_groups=3, num_samples=2, num_tokens=4)
    rehearse = make_batch(num_groups=2, num_samples=1, num_tokens=6, seed=1, logp_ref=None)
    batch = mix(explore, rehearse)
    assert batch.kind is not None
    for kind, original in ((0, explore), (1, rehearse)):
        assert _rows(batch, kind) == _rows(original, None)
    assert batch.logp_ref is not None
    assert batch.logp_ref[batch.kind == 1].abs().sum() == 0
    assert not batch.mask[batch.kind == 0][:, 4:].any()


def _rows(batch: Batch, kind: int | None) -> list[tuple[Any, ...]]:
    """Each row's prompt, tokens, log-probabilities, advantage and reward, without padding."""
    rows = []
    for b, (prompt, response) in enumerate(sequences(batch)):
        if kind is None or (batch.kind is not None and int(batch.kind[b]) == kind):
            logp, numbers = batch.logp_old[b][batch.mask[b]].tolist(), (batch.advantage[b], batch.reward[b])
            rows.append((prompt.tolist(), response.tolist(), logp, *map(float, numbers)))
    return rows


def test_an_advantage_per_token_stays_per_token() -> None:
    explore = make_batch(num_groups=2, num_samples=2, num_tokens=3, advantage=torch.ones(4, 3))
    batch = mix(explore, make_batch(num_groups=1, num_samples=1, num_tokens=5, advantage=torch.zeros(1)))
    assert (batch.advantage.shape, float(batch.advantage.sum())) == ((5, 5), 12)


def test_the_ratio_of_rows_is_that_of_the_paper_and_an_empty_stream_is_explained(tmp_path: Path) -> None:
    """2048 rows of D_exp beside 256 of D_pef."""
    assert make_mixture(tmp_path, rows=2048).num_rehearsed == 256
    assert math.isclose(make_mixture(tmp_path, rows=96, ratio=3.0).num_rehearsed, 32)
    with pytest.raises(ValueError, match=r"1 had none, 0 are left to explore.*Raise"):
        make_mixture(tmp_path, problems=2, threshold=4, drop_unsolved=True)
