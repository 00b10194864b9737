"""How a batch is laid out for the model, and how it is cut into micro-batches."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import torch
from torch import Tensor

from rlvr.objective.batch import Batch
from rlvr.trainer.layout import Layout, Packed, Segment, Varlen

# Longest sequence for which responses share their prompt in segments: their attention needs a mask, which grows with
# its square and rules out the flash kernel. Longer than this, a prompt is a small part of the work anyway.
MAX_SHARED = 2048
MIN_SAVED = 0.1  # share of all tokens below which sharing prompts is not worth its price
# Sequences are padded, in attention only, to the longest of their segment: at most this factor.
MAX_STRETCH = 1.5


@dataclass(frozen=True)
class Lengths:
    """Tokens of each prompt [P], of each response [B] (0: an empty row), and the group of each response [B]."""

    prompt: Tensor
    response: Tensor
    group: Tensor

    @classmethod
    def of(cls, batch: Batch) -> Lengths:
        """Raises ValueError for an empty prompt: nothing would predict the first response token."""
        prompt = batch.prompt_mask.sum(1)
        if bool((prompt == 0).any()):
            raise ValueError(f"prompt {int((prompt == 0).nonzero()[0])} of the batch has no tokens; it needs one.")
        last = (batch.mask * torch.arange(1, batch.mask.shape[1] + 1)).amax(1)  # the mask may have holes
        return cls(prompt, last, batch.group)

    @property
    def read(self) -> Tensor:
        """[B] response tokens that the model reads: the last one predicts nothing."""
        return (self.response - 1).clamp(min=0)

    def cost(self, *, shared: bool) -> Tensor:
        """[P] tokens that each group costs."""
        rows = torch.bincount(self.group, minlength=len(self.prompt))
        prompts = self.prompt * (rows > 0).long() if shared else self.prompt * rows
        return prompts.index_add(0, self.group, self.read)

    def sharing_pays(self, *, longest: int | None = MAX_SHARED) -> bool:
        """Whether one copy of each prompt saves enough tokens for its price, a mask or a copy of keys in attention.

        longest: sequence for which it may; None: any.
        """
        if longest is not None and int((self.prompt[self.group] + self.read).max()) > longest:
            return False
        return int(self.cost(shared=True).sum()) <= (1 - MIN_SAVED) * int(self.cost(shared=False).sum())


def pieces(lengths: Lengths, cost: Tensor, *, budget: int, shared: bool, whole: bool) -> tuple[list[Tensor], Tensor]:
    """What a micro-batch is made of, as rows, and the tokens of each: groups, and those that are longer than the budget
    cut into runs of rows within it, unless groups must stay whole.

    cost: [P] tokens of each group; a row's own number of tokens is its response and, unless shared, its prompt.
    """
    rows = list(torch.arange(len(lengths.group)).split(torch.bincount(lengths.group, minlength=len(cost)).tolist()))
    if whole or bool((cost <= budget).all()):
        return rows, cost
    cut, tokens = list[Tensor](), list[int]()
    for group, own in enumerate(rows):
        if int(cost[group]) <= budget:
            cut.append(own)
            tokens.append(int(cost[group]))
            continue
        first, prompt = 0, int(lengths.prompt[group])
        held = prompt * shared
        for place, read in enumerate(lengths.read[own].tolist()):
            row = read + prompt * (not shared)
            if place > first and held + row > budget:
                cut.append(own[first:place])
                tokens.append(held)
                first, held = place, prompt * shared
            held += row
        cut.append(own[first:])
        tokens.append(held)
    return cut, torch.tensor(tokens)


def plan(cost: Tensor, *, budget: int, num_ranks: int) -> list[list[Tensor]]:
    """Groups of each micro-batch of each rank: [rank][micro-batch] → ascending group numbers, possibly none.

    cost: [P] tokens. Every rank gets the same number of micro-batches, of `budget` tokens at most unless one group
    alone is larger, and about the same number of tokens: the largest groups go first, each to the emptiest bin.
    What is said of groups holds for any `pieces`.
    """
    order = sorted(range(len(cost)), key=lambda group: (-int(cost[group]), group))
    at_most = -(-len(cost) // num_ranks)  # every group alone
    rounds = max(1, min(at_most, -(-int(cost.sum()) // (budget * num_ranks))))
    while True:
        bins: list[list[int]] = [[] for _ in range(rounds * num_ranks)]
        heap = [(0, number) for number in range(len(bins))]
        for group in order:
            tokens, number = heapq.heappop(heap)
            bins[number].append(group)
            heapq.heappush(heap, (tokens + int(cost[group]), number))
        if all(len(bins[number]) <= 1 or tokens <= budget for tokens, number in heap):
            filled = [torch.tensor(sorted(b), dtype=torch.int64) for b in bins]
            return [filled[rank::num_ranks] for rank in range(num_ranks)]
        rounds += 1


def pack(batch: Batch, *, shared: bool, varlen: bool = False) -> Layout:
    """All sequences end to end in one row, without padding; with `shared`, one copy of each prompt.

    For a model that attends as `rlvr.trainer.attention` does: in segments, or with `varlen` in one call. Positions
    count from the start of each sequence, so that they are those of a row of its own.
    """
    row = _Row.of(batch, shared=shared, together=varlen and not shared)
    if varlen:
        return _laid_out(batch, row, row.shared_varlen() if shared else row.separate_varlen())
    segments = row.shared_segments() if shared else row.separate_segments()
    order = torch.zeros(row.num_tokens, dtype=torch.int64)
    done = 0
    for segment, real in segments:
        order[segment.query[real]] = done + torch.arange(real.numel()).view_as(real)[real]
        done += real.numel()
    return _laid_out(batch, row, Packed(tuple(segment for segment, _ in segments), order))


def _laid_out(batch: Batch, row: _Row, packed: Packed | Varlen) -> Layout:
    predict, target, place = row.predictions(batch)
    prompts = row.prompts(batch)
    return Layout(row.ids[None], row.positions[None], packed, predict, target, place, row.num_tokens, *prompts)


def pad(batch: Batch, *, pad_token_id: int) -> Layout:
    """One row per response, right-padded: causal attention needs no mask then. For any causal model."""
    row = _Row.of(batch, shared=False)
    width = row.prompt_length + row.read
    index, real = row.sequence(torch.arange(len(width)), int(width.max()))
    ids = torch.where(real, row.ids[index], pad_token_id)
    predict, target, place = row.predictions(batch)
    where = torch.zeros(row.num_tokens, dtype=torch.int64)
    where[index[real]] = torch.arange(real.numel()).view_as(real)[real]
    tokens, owner, num_prompts = row.prompts(batch)
    return Layout(ids, None, None, where[predict], target, place, row.num_tokens, where[tokens], owner, num_prompts)


@dataclass(frozen=True)
class _Row:
    """All prompts, then all responses less their last token, end to end; or `together`, each after its prompt."""

    ids: Tensor  # [N]
    positions: Tensor  # [N]
    prompt_length: Tensor  # [P']  P' = P if prompts are shared, else B
    prompt_start: Tensor  # [P']
    owner: Tensor  # [B] prompt of each response
    read: Tensor  # [B]
    response_start: Tensor  # [B]

    @classmethod
    def of(cls, batch: Batch, *, shared: bool, together: bool = False) -> _Row:
        """together: of prompts that are not shared."""
        lengths = Lengths.of(batch)
        B, T = batch.tokens.shape
        prompt, prompt_mask, owner = batch.prompt, batch.prompt_mask, batch.group
        if not shared:
            prompt, prompt_mask, owner = prompt[owner], prompt_mask[owner], torch.arange(B)
        length, read = prompt_mask.sum(1), lengths.read
        column = torch.arange(T)
        inside = column < read[:, None]
        ids = torch.cat([prompt[prompt_mask], batch.tokens[inside]])
        positions = torch.cat([(prompt_mask.cumsum(1) - 1)[prompt_mask], (length[owner, None] + column)[inside]])
        if together:
            width = length + read
            first = width.cumsum(0) - width
            ids, positions = cls._each_after_its_prompt(ids, positions, length, read)
            return cls(ids, positions, length, first, owner, read, first + length)
        starts = read.cumsum(0) - read + length.sum()
        return cls(ids, positions, length, length.cumsum(0) - length, owner, read, starts)

    @staticmethod
    def _each_after_its_prompt(ids: Tensor, positions: Tensor, length: Tensor, read: Tensor) -> tuple[Tensor, Tensor]:
        """ids and positions [N] of all prompts, then all responses, sequence by sequence."""
        sequence = torch.arange(len(length))
        owner = torch.cat([sequence.repeat_interleave(length), sequence.repeat_interleave(read)])
        order = owner.argsort(stable=True)
        return ids[order], positions[order]

    @property
    def num_tokens(self) -> int:
        return len(self.ids)

    def predictions(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """`Layout.predict` (in this row), `target` and `place` of every response token."""
        before = self.response_start[:, None] + torch.arange(batch.tokens.shape[1]) - 1
        before[:, 0] = (self.prompt_start + self.prompt_length - 1)[self.owner]
        return before[batch.mask], batch.tokens[batch.mask], batch.mask.flatten().nonzero()[:, 0]

    def prompts(self, batch: Batch) -> tuple[Tensor, Tensor, int]:
        """`Layout.prompt_place` (in this row), `prompt_owner` and `num_prompts`."""
        P = batch.num_groups
        first = torch.searchsorted(batch.group, torch.arange(P)).clamp(max=len(batch.group) - 1)
        copy = self.owner[first]  # the prompt's number among those of this row
        place, real = _span(self.prompt_start[copy], self.prompt_length[copy])
        return place[real], torch.arange(P)[:, None].expand_as(real)[real], P

    def sequence(self, rows: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """Positions of whole sequences, prompt and response, [b, width], and which of them are real."""
        column = torch.arange(width)
        length = self.prompt_length[self.owner[rows], None]
        in_prompt = self.prompt_start[self.owner[rows], None] + column
        in_response = self.response_start[rows, None] + column - length
        real = column < length + self.read[rows, None]
        return torch.where(real, torch.where(column < length, in_prompt, in_response), 0), real

    def separate_segments(self) -> list[tuple[Segment, Tensor]]:
        width = self.prompt_length[self.owner] + self.read
        cut = [self.sequence(rows, int(width[rows].max())) for rows in _alike(width)]
        return [(Segment(index, index, None), real) for index, real in cut]

    def separate_varlen(self) -> Varlen:
        """Each sequence attends to itself, where it lies."""
        width = self.prompt_length + self.read
        ends, longest = _ends(width), int(width.max())
        return Varlen(ends, ends, longest, longest, None)

    def shared_varlen(self) -> Varlen:
        """Prompts attend to themselves; responses to their prompt and to themselves."""
        rows = self.read.nonzero()[:, 0]
        prompts, own = self.owner[rows], self.read[rows]
        prompt, in_prompt = _span(self.prompt_start[prompts], self.prompt_length[prompts])
        response, in_response = _span(self.response_start[rows], own)
        of_responses = torch.cat([prompt, response], 1)[torch.cat([in_prompt, in_response], 1)]
        query = torch.cat([self.prompt_length, own])
        key = torch.cat([self.prompt_length, self.prompt_length[prompts] + own])
        places = torch.cat([torch.arange(int(self.prompt_length.sum())), of_responses])
        return Varlen(_ends(query), _ends(key), int(query.max()), int(key.max()), places)

    def shared_segments(self) -> list[tuple[Segment, Tensor]]:
        """Prompts attend to themselves; responses to their prompt and to themselves."""
        segments = list[tuple[Segment, Tensor]]()
        for prompts in _alike(self.prompt_length):
            index, real = _span(self.prompt_start[prompts], self.prompt_length[prompts])
            segments.append((Segment(index, index, None), real))
        rows = self.read.nonzero()[:, 0]
        width = self.prompt_length[self.owner] + self.read
        for bucket in (rows[chosen] for chosen in _alike(width[rows])):
            prompts = self.owner[bucket]
            query, real = _span(self.response_start[bucket], self.read[bucket])
            key, in_prompt = _span(self.prompt_start[prompts], self.prompt_length[prompts])
            t = query.shape[1]
            if bool(in_prompt.all()):
                in_prompt = in_prompt[:1]  # prompts of one length: one mask for all
            own = torch.ones(t, t, dtype=torch.bool).tril().expand(len(in_prompt), t, t)
            mask = torch.cat([in_prompt[:, None].expand(-1, t, -1), own], 2)[:, None]
            segments.append((Segment(query, torch.cat([key, query], 1), mask), real))
        return segments


def _ends(length: Tensor) -> Tensor:
    """[S + 1] int32: where each of S sequences ends, 0 first."""
    return torch.nn.functional.pad(length.cumsum(0), (1, 0)).int()


def _span(start: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
    """Positions start, start + 1, … of each row, [b, longest], and which of them are real."""
    column = torch.arange(int(length.max()) if len(length) else 0)
    real = column < length[:, None]
    return torch.where(real, start[:, None] + column, 0), real


def _alike(length: Tensor) -> list[Tensor]:
    """Row numbers in buckets of similar length, the longest first."""
    order = length.argsort(descending=True, stable=True)
    buckets, first = list[Tensor](), 0
    sizes = length[order].tolist()
    for position, size in enumerate(sizes):
        if size * MAX_STRETCH < sizes[first]:
            buckets.append(order[first:position])
            first = position
    return [*buckets, order[first:]] if sizes else []
