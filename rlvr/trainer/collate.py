"""From text to tensors, and nowhere else: prompts to token ids, rollouts to a `Batch`."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlvr.model.tokenizer import encode as token_ids
from rlvr.model.tokenizer import start_tokens
from rlvr.objective.batch import Advantage, Batch, Policy, declared_needs, name_of, unchanged
from rlvr.records import Completion, Problem, Reward, Rollout, SolvedTask, Task
from rlvr.task.chat_template import ChatTemplate, now, turns


def encode(
    tokenizer: Any, problems: Sequence[Problem], *, chat: bool, system: str | None = None
) -> list[NDArray[np.int64]]:
    """Token ids of each prompt, [L] int64.

    With `chat` the prompt is the user's turn in the model's chat template, after the system prompt if there is one.
    Without `chat` it begins with the tokens that the tokenizer puts before a text.
    """
    texts, start = [p.prompt for p in problems], [] if chat else start_tokens(tokenizer)
    if chat:
        options = {"tokenize": False, "add_generation_prompt": True, "strftime_now": now}
        texts = [tokenizer.apply_chat_template(turns(text, system), **options) for text in texts]
    return [np.asarray([*start, *token_ids(tokenizer, text)], dtype=np.int64) for text in texts]


def end_of_turn(directory: Path, tokenizer: Any) -> int | None:
    """Id of the token that ends a turn in the chat template of a directory; None if there is none."""
    template = ChatTemplate.of(lambda name: file if (file := directory / name).is_file() else None)
    added: dict[str, int] = tokenizer.get_added_vocab()
    token = None if template is None else template.end_of_turn(added)
    return None if token is None else added[token]


def decode(tokenizer: Any, tokens: Sequence[NDArray[np.int64]], silent: Sequence[int]) -> list[str]:
    """Response texts without the `silent` tokens. All other tokens, special ones too, stay visible to the verifier."""
    dropped = set(silent)
    return tokenizer.batch_decode([[t for t in row.tolist() if t not in dropped] for row in tokens])


def known_answers(
    groups: Sequence[Rollout], task: Task, tokenizer: Any, *, end: int | None, max_tokens: int
) -> list[Rollout]:
    """Each group with the task's known answer as its only response, with reward 1: what loss=cross_entropy learns.

    The token `end` is added if there is room and the answer does not end with it. The answer's log-probabilities are
    NaN: `collate` computes them with the policy. Raises ValueError for an answer of more than `max_tokens` tokens.
    """
    assert isinstance(task, SolvedTask)
    answered = list[Rollout]()
    for group in groups:
        text = task.solution(group.problem)
        ids = token_ids(tokenizer, text)
        if end is not None and len(ids) < max_tokens and ids[-1:] != [end]:
            ids = [*ids, end]
        if len(ids) > max_tokens:
            raise ValueError(
                f"the known answer of {group.problem.id} has {len(ids)} tokens and responses have {max_tokens} at "
                f"most: pass rollout.max_tokens={len(ids)} or more."
            )
        unknown = np.full(len(ids), np.nan, dtype=np.float32)
        answer = Completion(np.asarray(ids, dtype=np.int64), unknown, unknown, finished=True)
        answered.append(Rollout(group.problem, group.prompt, (answer,), (text,), (Reward(1.0, "correct"),)))
    return answered


def collate(
    groups: Sequence[Rollout],
    advantage: Advantage,
    *,
    pad_token_id: int,
    policy_of: Callable[[Batch], Policy] | None = None,
    own_logp: bool = False,
) -> Batch:
    """Whole groups, in order, as one right-padded batch on the CPU. Advantages are taken over all groups at once.

    policy_of: returns the policy's outputs for a batch; used for an advantage that reads its values or entropies
    (`with_advantage`) and for the log-probabilities of known answers (`known_answers`).
    own_logp: take all log-probabilities from `policy_of`, and keep the engine's as `logp_engine`.
    Raises ValueError if a completion has no reward because its verifier failed: the caller drops such groups.
    """
    completions = [completion for group in groups for completion in group.completions]
    rewards = [reward for group in groups for reward in group.rewards]
    if any(reward.outcome == "error" for reward in rewards):
        raise ValueError("a completion whose verifier failed has no reward and cannot be trained on")
    num_rows = torch.tensor([len(group.completions) for group in groups])
    reward = torch.tensor([reward.value for reward in rewards], dtype=torch.float32)
    length = torch.tensor([len(completion.tokens) for completion in completions])
    T = int(length.max())
    prompts = [group.prompt for group in groups]
    L = max(len(prompt) for prompt in prompts)
    batch = Batch(
        tokens=_pad([completion.tokens for completion in completions], T, pad_token_id),
        mask=_pad([np.ones(len(c.tokens), bool) if c.given is None else ~c.given for c in completions], T, False),
        logp_old=_pad([completion.logp for completion in completions], T, 0.0),
        advantage=torch.zeros_like(reward),
        reward=reward,
        group=torch.arange(len(groups)).repeat_interleave(num_rows),
        prompt=_pad([p[::-1] for p in prompts], L, pad_token_id).flip(1),  # left-padded
        prompt_mask=(torch.arange(L) < torch.tensor([len(p) for p in prompts])[:, None]).flip(1),
    )
    if policy_of is not None and (own_logp or bool(batch.logp_old.isnan().any())):
        logp_engine = batch.logp_old if own_logp else None
        batch = replace(batch, logp_old=policy_of(batch).logp.cpu(), logp_engine=logp_engine)
    return with_advantage(batch, advantage, policy_of)


def with_advantage(batch: Batch, advantage: Advantage, policy_of: Callable[[Batch], Policy] | None) -> Batch:
    """The batch with its advantages, and with returns and values if the advantage function returns them.

    The function gets the inputs that it declares with `needs` by name, each [B, T]: mask, logp_old; value and entropy
    of the policy that sampled, by a forward pass. Raises ValueError for an input that is not available.
    """
    required = declared_needs(advantage)
    available: dict[str, Tensor | None] = {"mask": batch.mask, "logp_old": batch.logp_old}
    if policy_of is not None and not required <= available.keys():
        old = policy_of(batch)
        available |= {"value": old.value, "entropy": old.entropy}
    inputs = {name: value.cpu() for name, value in available.items() if name in required and value is not None}
    missing = ", ".join(sorted(required - inputs.keys()))
    if missing:
        raise ValueError(
            f"the advantage needs {missing}, which this run does not compute: a value head comes with loss=ppo. "
            "Pass another advantage, for example advantage=grpo."
        )
    result = unchanged(advantage, batch)(batch.reward, batch.group, **inputs)
    values = [*(result if isinstance(result, tuple) else (result,))]
    allowed = {batch.mask.shape, batch.reward.shape}
    if wrong := [list(value.shape) for value in values if value.shape not in allowed]:
        B, T = batch.mask.shape
        raise ValueError(f"the advantage {name_of(advantage)} returned the shape {wrong[0]}, not [{B}] or [{B}, {T}].")
    if isinstance(result, tuple):
        per_token, returns = result
        return replace(batch, advantage=per_token, returns=returns, value_old=inputs.get("value"))
    return replace(batch, advantage=result)


# --- responses at or near the limit of length: a penalty on their reward, and a filter (DAPO, arXiv:2503.14476) ---


def penalty(length: int, *, max_tokens: int, buffer: float, factor: float) -> float:
    """min(−(length − (max_tokens − buffer)) / buffer · factor, 0) (Eq. 13): 0 up to the buffer, −factor at the end."""
    return min((max_tokens - buffer - length) / buffer * factor, 0.0)


def penalised(groups: Sequence[Rollout], *, max_tokens: int, buffer: float | None, factor: float) -> Sequence[Rollout]:
    """The groups, with the penalty for the response's length added to each reward. Outcomes, and so accuracy, stay.

    buffer: tokens, at most max_tokens; below 1: a share of max_tokens; None: no penalty.
    """
    if buffer is None:
        return groups
    buffer = buffer * max_tokens if buffer < 1 else buffer
    penalised_groups = list[Rollout]()
    for group in groups:
        rewards = list[Reward]()
        for completion, reward in zip(group.completions, group.rewards, strict=True):
            length = len(completion.tokens)
            change = penalty(length, max_tokens=max_tokens, buffer=buffer, factor=factor)
            rewards.append(replace(reward, value=reward.value + change))
        penalised_groups.append(replace(group, rewards=tuple(rewards)))
    return penalised_groups


def without_cut(batch: Batch, groups: Sequence[Rollout]) -> Batch:
    """The batch without the tokens of responses that were cut at the limit, whose rewards have entered the advantages
    (section 3.4, overlong filtering). Raises ValueError if all responses were cut.
    """
    finished = torch.tensor([c.finished for group in groups for c in group.completions])
    if not bool(finished.any()):
        raise ValueError(
            f"all {len(finished)} responses of a step were cut: rollout.overlong_filter=true leaves nothing to learn "
            "from. Pass more rollout.max_tokens, or drop it."
        )
    return replace(batch, mask=batch.mask & finished[:, None])


def _pad(rows: Sequence[NDArray[Any]], width: int, value: float) -> Tensor:
    padded = np.full((len(rows), width), value, dtype=rows[0].dtype)
    for row, content in zip(padded, rows, strict=True):
        row[: len(content)] = content
    return torch.from_numpy(padded)
