from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import pytest
import torch
from torch import Tensor

from rlvr.ledger.rollouts import rollouts_from_bytes, to_bytes
from rlvr.model.tokenizer import load_tokenizer
from rlvr.objective.advantage import dr_grpo
from rlvr.records import Completion, Problem, Reward, Rollout, Sampling, reply_of
from rlvr.rollout.native import NativeEngine
from rlvr.rollout.sampler import RolloutCost, Sampler
from rlvr.trainer.collate import collate, decode
from tests.rollout.scripted import ScriptedEngine
from tests.trainer.tiny import gradients, make_trainer, qwen2, save_base, surrogate, worst

WORDS = ["up", "down", "end", "PATH", "GOAL"]


class Echo:
    """Replies to "up" with PATH, to "down down" with GOAL GOAL, to "end" not at all. Right: what ended by itself."""

    name, max_tokens, turn_tokens = "echo", 9, 2
    replies: ClassVar = {"up": "PATH", "down": "GOAL GOAL"}

    def size(self, split: str) -> None: ...
    def problem(self, split: str, index: int) -> Problem:
        return Problem(str(index), "w1 w2")

    def reward(self, answers: Sequence[tuple[Problem, str]]) -> list[Reward]:
        return [Reward(float("end" in text.split()), "correct" if "end" in text else "wrong") for _, text in answers]

    def reply(self, problem: Problem, response: str) -> str | None:
        return self.replies.get(response.split()[-1])

    def close(self) -> None: ...


class Scripted(ScriptedEngine):
    """Says what the script has for (sample, turn); a turn of fewer than two words ends with an end token."""

    script: ClassVar = {0: ["up", "down down", "end"], 1: ["end"], 2: ["down down", "down down"]}

    def __init__(self) -> None:
        self.asked: list[list[tuple[list[int], int, int]]] = []

    def generate(self, requests: Sequence[Any], sampling: Sampling) -> list[tuple[Completion, ...]]:
        turn = len(self.asked)
        self.asked.append([(request.prompt.tolist(), request.num_samples, request.first) for request in requests])
        assert sampling.max_tokens == 2
        return [tuple(self._said(r.first + i, turn) for i in range(r.num_samples)) for r in requests]

    def _said(self, sample: int, turn: int) -> Completion:
        words = self.script[sample][turn].split()
        logp = -0.5 * np.arange(1, len(words) + 1, dtype=np.float32) - turn
        return Completion(np.array([WORDS.index(word) for word in words]), logp, logp, finished=len(words) < 2)


class Dumb(Echo):
    def reply(self, problem: Problem, response: str) -> Any:
        return 7


def test_a_reply_that_is_no_text_is_an_error_with_its_place() -> None:
    line = Path(__file__).read_text().split("\n").index("class Dumb(Echo):") + 2
    assert reply_of(Echo(), Echo().problem("train", 0), "up") == "PATH"
    with pytest.raises(ValueError, match=rf"test_turns\.py:{line}: `reply` returned 7\. It returns a text, or None"):
        reply_of(Dumb(), Dumb().problem("train", 0), "up")


def test_turns_and_replies_are_one_response() -> None:
    """By hand. Sample 2 is cut: after down down, GOAL GOAL and down down there is no room for GOAL GOAL and a turn of
    two within nine: 6 + 2 + 2 > 9."""
    engine = Scripted()
    sampler = Sampler(
        Echo(),
        cast("Any", engine),
        encode=lambda problems: [np.array([7, 8]) for _ in problems],
        decode=lambda rows: [" ".join(WORDS[token] for token in row) for row in rows],
        encode_reply=lambda text: [WORDS.index(word) for word in text.split()],
    )
    (group,) = sampler([Echo().problem("train", 0)], 3, Sampling(9, seed=0, step=1), RolloutCost())
    assert group.texts == ("up PATH down down GOAL GOAL end", "end", "down down GOAL GOAL down down")
    assert [completion.finished for completion in group.completions] == [True, True, False]
    given = [[0, 1, 0, 0, 1, 1, 0], [0], [0, 0, 1, 1, 0, 0]]
    assert [c.given.astype(int).tolist() for c in group.completions if c.given is not None] == given
    assert group.completions[0].logp.tolist() == [-0.5, 0, -1.5, -2, 0, 0, -2.5]
    assert engine.asked == [
        [([7, 8], 3, 0)],
        [([7, 8, 0, 3], 1, 0), ([7, 8, 1, 1, 4, 4], 1, 2)],
        [([7, 8, 0, 3, 1, 1, 4, 4], 1, 0)],
    ]
    spoken = (("assistant", "up"), ("environment", "PATH"), ("assistant", "down down"), ("environment", "GOAL GOAL"))
    assert group.turns[0] == (*spoken, ("assistant", "end"))
    assert group.turns[1] == (("assistant", "end"),)
    (read,) = rollouts_from_bytes(to_bytes([group]))
    assert read.turns == group.turns
    assert [c.given.astype(int).tolist() for c in read.completions if c.given is not None] == given
    mask = collate([group], dr_grpo, pad_token_id=0).mask
    assert mask.int().tolist() == [[1, 0, 1, 1, 0, 0, 1], [1] + 6 * [0], [1, 1, 0, 0, 1, 1, 0]]


class Numbers(Echo):
    """Replies w3 w4 to every turn of fewer than ten words in all."""

    def reply(self, problem: Problem, response: str) -> str | None:
        return "w3 w4" if len(response.split()) < 8 else None


@pytest.mark.slow
def test_the_native_engine_and_the_trainer_take_conversations_as_they_are(tmp_path: Path) -> None:
    """Log-probabilities and gradient are those of a plain loop that reads all and sums over the policy's tokens."""
    model, tokenizer = qwen2(), load_tokenizer(save_base(tmp_path))
    engine = NativeEngine(qwen2(), eos_token_ids=[15], pad_token_id=14)
    sampler = Sampler(
        Numbers(),
        engine,
        encode=lambda problems: [np.array([1, 2]) for _ in problems],
        decode=lambda rows: decode(tokenizer, rows, []),
        encode_reply=lambda text: tokenizer(text, add_special_tokens=False).input_ids,
    )
    groups = sampler([Numbers().problem("train", i) for i in range(2)], 3, Sampling(11, seed=3, step=1), RolloutCost())
    completions = [completion for group in groups for completion in group.completions]
    assert len({tuple(completion.tokens.tolist()) for completion in completions}) == 6
    rewards = torch.tensor([1.0, 0, 0, 0, 1, 1])
    terms, count = list[Tensor](), 0
    for completion, advantage in zip(completions, rewards - torch.tensor([1 / 3] * 3 + [2 / 3] * 3), strict=True):
        assert completion.given is not None
        assert completion.given.sum() >= 4
        ids = torch.tensor([1, 2, *completion.tokens.tolist()])[None]
        logp = model(input_ids=ids).logits[0, 1:-1].log_softmax(-1).gather(-1, ids[0, 2:, None])[:, 0]
        wrote = torch.from_numpy(~completion.given)
        torch.testing.assert_close(logp.detach()[wrote], torch.from_numpy(completion.logp)[wrote], rtol=0, atol=1e-5)
        terms.append(-advantage * logp[wrote].sum())
        count += int(wrote.sum())
    (torch.stack(terms).sum() / count).backward()
    expected = {name: p.grad for name, p in model.named_parameters()}
    learned = [
        Rollout(g.problem, g.prompt, g.completions, g.texts, tuple(Reward(float(r), "correct") for r in of_group))
        for g, of_group in zip(groups, rewards.view(2, 3), strict=True)
    ]
    trainer = make_trainer(qwen2(), surrogate, max_tokens=11)
    trainer.learn(collate(learned, dr_grpo, pad_token_id=14))
    assert worst(gradients(trainer), {name: grad for name, grad in expected.items() if grad is not None}) < 1e-4
