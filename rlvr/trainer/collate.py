"""The only crossing from text to tensors: prompts to token ids, rollouts to a `Batch`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlvr.model.tokenizer import encode as token_ids
from rlvr.objective.batch import Advantage, Batch, Policy, needed
from rlvr.records import Completion, Problem, Reward, Rollout, SolvedTask, Task


def encode(tokenizer: Any, problems: Sequence[Problem], *, chat: bool) -> list[NDArray[np.int64]]:
    """Token ids of each prompt, [L] int64; with `chat` the prompt is the user's turn of the model's own template."""
    texts = [p.prompt for p in problems]
    if chat:
        turns = [[{"role": "user", "content": text}] for text in texts]
        texts = [tokenizer.apply_chat_template(t, tokenize=False, add_generation_prompt=True) for t in turns]
    return [np.asarray(token_ids(tokenizer, text), dtype=np.int64) for text in texts]


def decode(tokenizer: Any, tokens: Sequence[NDArray[np.int64]], silent: Sequence[int]) -> list[str]:
    """Response texts without the `silent` tokens: all others, special ones too, stay visible to the verifier."""
    dropped = set(silent)
    return tokenizer.batch_decode([[t for t in row.tolist() if t not in dropped] for row in tokens])


def solved(rollouts: Sequence[Rollout], task: Task, tokenizer: Any, *, max_tokens: int) -> list[Rollout]:
    """Each group with the task's known answer as its only response, reward 1: what loss=cross_entropy learns.

    The end token is added where there is room and the answer does not end with it. Its log-probabilities are NaN: the
    policy did not sample it, and `collate` asks the policy for them. Raises ValueError for a task that knows no
    answers and for an answer of more than `max_tokens` tokens.
    """
    if not isinstance(task, SolvedTask):
        raise ValueError(
            f"loss=cross_entropy learns known answers and task {task.name} gives none: it has no `solution`. "
            "Pass another loss, or a task such as task=digits or task=maze."
        )
    groups = list[Rollout]()
    for rollout in rollouts:
        text = task.solution(rollout.problem)
        ids = token_ids(tokenizer, text)
        if tokenizer.eos_token_id is not None and len(ids) < max_tokens and ids[-1:] != [tokenizer.eos_token_id]:
            ids = [*ids, tokenizer.eos_token_id]
        if len(ids) > max_tokens:
            raise ValueError(
                f"the known answer of {rollout.problem.id} has {len(ids)} tokens and responses have {max_tokens} at "
                f"most: pass rollout.max_tokens={len(ids)} or more."
            )
        unknown = np.full(len(ids), np.nan, dtype=np.float32)
        answer = Completion(np.asarray(ids, dtype=np.int64), unknown, unknown, finished=True)
        groups.append(Rollout(rollout.problem, rollout.prompt, (answer,), (text,), (Reward(1.0, "correct"),)))
    return groups


def collate(
    rollouts: Sequence[Rollout],
    advantage: Advantage,
    *,
    pad_token_id: int,
    look: Callable[[Batch], Policy] | None = None,
    own: bool = False,
) -> Batch:
    """Whole groups, in order, as one right-padded batch on the CPU. Advantages are taken over all groups at once.

    look: what the policy says of a batch, for an advantage that reads its values or entropies (`with_advantage`) and
    for the log-probabilities of known answers (`solved`).
    own: all log-probabilities are the policy's own, by `look`, and those of the engine stand beside them.
    Raises ValueError if a completion has no reward because its verifier failed: such groups are dropped before.
    """
    rows = [
        (g, c, r) for g, group in enumerate(rollouts) for c, r in zip(group.completions, group.rewards, strict=True)
    ]
    if any(r.outcome == "error" for _, _, r in rows):
        raise ValueError("a completion whose verifier failed has no reward and cannot be trained on")
    reward = torch.tensor([r.value for _, _, r in rows], dtype=torch.float32)
    group = torch.tensor([g for g, _, _ in rows], dtype=torch.int64)
    length = torch.tensor([len(c.tokens) for _, c, _ in rows])
    T = int(length.max())
    mask = torch.arange(T) < length[:, None]
    prompts = [g.prompt for g in rollouts]
    L = max(len(p) for p in prompts)
    batch = Batch(
        tokens=_pad([c.tokens for _, c, _ in rows], T, pad_token_id),
        mask=mask,
        logp_old=_pad([c.logp for _, c, _ in rows], T, 0.0),
        advantage=torch.zeros_like(reward),
        reward=reward,
        group=group,
        prompt=_pad([p[::-1] for p in prompts], L, pad_token_id).flip(1),  # left-padded
        prompt_mask=(torch.arange(L) < torch.tensor([len(p) for p in prompts])[:, None]).flip(1),
    )
    if look is not None and (own or bool(batch.logp_old.isnan().any())):
        batch = replace(batch, logp_old=look(batch).logp.cpu(), logp_engine=batch.logp_old if own else None)
    return with_advantage(batch, advantage, look)


def with_advantage(batch: Batch, advantage: Advantage, look: Callable[[Batch], Policy] | None = None) -> Batch:
    """The batch with its advantages, and with the returns and values where the advantage function gives them.

    What the function declares with `needs` it gets by name, [B, T]: mask, logp_old; value and entropy of the policy
    that sampled, from `look`: one forward pass over the batch. Raises ValueError for what nobody knows.
    """
    wanted = needed(advantage)
    known: dict[str, Tensor | None] = {"mask": batch.mask, "logp_old": batch.logp_old}
    if look is not None and not wanted <= known.keys():
        old = look(batch)
        known |= {"value": old.value, "entropy": old.entropy}
    given = {name: value.cpu() for name, value in known.items() if name in wanted and value is not None}
    missing = ", ".join(sorted(wanted - given.keys()))
    if missing:
        raise ValueError(
            f"the advantage needs {missing}, which nothing gives: a value head comes with loss=ppo. "
            "Pass another advantage, for example advantage=grpo."
        )
    found = advantage(batch.reward, batch.group, **given)
    if isinstance(found, tuple):
        return replace(batch, advantage=found[0], returns=found[1], value_old=given.get("value"))
    return replace(batch, advantage=found)


def _pad(rows: Sequence[NDArray[Any]], width: int, value: float) -> Tensor:
    padded = np.full((len(rows), width), value, dtype=rows[0].dtype)
    for row, content in zip(padded, rows, strict=True):
        row[: len(content)] = content
    return torch.from_numpy(padded)
