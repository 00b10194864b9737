"""Lays a batch out for the model, and divides it into micro-batches."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import torch
from torch import Tensor

from rlvr.objective.batch import Batch
from rlvr.trainer.layout import Layout, Packed, Segment, Varlen

# Longest sequence for which responses share their prompt in segments: attention then needs a mask, which grows with
# the square of the length and which rules out the flash kernel. In longer sequences a prompt is a small part anyway.
MAX_SHARED = 2048
MIN_SAVED = 0.1  # smallest share of all tokens that sharing prompts must save to be worth its cost
# Sequences are padded, in attention only, to the longest of their segment: by this factor at most.
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
        response = (batch.mask * torch.arange(1, batch.mask.shape[1] + 1)).amax(1)  # not a sum: the mask may have holes
        return cls(prompt, response, batch.group)

    @property
    def read(self) -> Tensor:
        """[B] response tokens that the model reads: all but the last, which predicts nothing."""
        return (self.response - 1).clamp(min=0)

    def cost(self, *, shared: bool) -> Tensor:
        """[P] tokens that the model reads of each group."""
        rows = torch.bincount(self.group, minlength=len(self.prompt))
        prompts = self.prompt * (rows > 0).long() if shared else self.prompt * rows
        return prompts.index_add(0, self.group, self.read)

    def sharing_pays(self, *, longest: int | None = MAX_SHARED) -> bool:
        """Whether sharing one copy of each prompt saves enough tokens to outweigh its cost in attention: a mask, or a
        copy of the keys. longest: of the sequences for which prompts may be shared; None: no limit.
        """
        if longest is not None and int((self.prompt[self.group] + self.read).max()) > longest:
            return False
        return int(self.cost(shared=True).sum()) <= (1 - MIN_SAVED) * int(self.cost(shared=False).sum())


def pieces(lengths: Lengths, cost: Tensor, *, budget: int, shared: bool, whole: bool) -> tuple[list[Tensor], Tensor]:
    """(row numbers of each piece, tokens of each piece): the pieces from which micro-batches are put together.

    A piece is a group. A group of more than `budget` tokens is cut into runs of rows within the budget, unless `whole`.
    cost: [P] tokens of each group. A row counts with its response and, unless prompts are shared, its prompt.
    """
    num_rows = torch.bincount(lengths.group, minlength=len(cost))
    groups = list(torch.arange(len(lengths.group)).split(num_rows.tolist()))
    if whole or bool((cost <= budget).all()):
        return groups, cost
    rows_of_pieces, tokens_of_pieces = list[Tensor](), list[int]()
    for group, rows in enumerate(groups):
        if int(cost[group]) <= budget:
            rows_of_pieces.append(rows)
            tokens_of_pieces.append(int(cost[group]))
            continue
        first, prompt = 0, int(lengths.prompt[group])
        num_tokens = prompt * shared
        for index, read in enumerate(lengths.read[rows].tolist()):
            of_row = read + prompt * (not shared)
            if index > first and num_tokens + of_row > budget:
                rows_of_pieces.append(rows[first:index])
                tokens_of_pieces.append(num_tokens)
                first, num_tokens = index, prompt * shared
            num_tokens += of_row
        rows_of_pieces.append(rows[first:])
        tokens_of_pieces.append(num_tokens)
    return rows_of_pieces, torch.tensor(tokens_of_pieces)


def plan(cost: Tensor, *, budget: int, num_ranks: int) -> list[list[Tensor]]:
    """Pieces of each micro-batch of each rank: [rank][micro-batch] → ascending piece numbers, possibly none.

    cost: [N] tokens of each of the `pieces`. Every rank gets the same number of micro-batches and about the same number
    of tokens: the largest pieces are assigned first, each to the emptiest micro-batch. A micro-batch has at most
    `budget` tokens, unless it is a single larger piece.
    """
    order = sorted(range(len(cost)), key=lambda piece: (-int(cost[piece]), piece))
    max_rounds = -(-len(cost) // num_ranks)  # one piece per micro-batch
    rounds = max(1, min(max_rounds, -(-int(cost.sum()) // (budget * num_ranks))))
    while True:
        bins: list[list[int]] = [[] for _ in range(rounds * num_ranks)]
        heap = [(0, number) for number in range(len(bins))]
        for piece in order:
            tokens, number = heapq.heappop(heap)
            bins[number].append(piece)
            heapq.heappush(heap, (tokens + int(cost[piece]), number))
        if all(len(bins[number]) <= 1 or tokens <= budget for tokens, number in heap):
            filled = [torch.tensor(sorted(b), dtype=torch.int64) for b in bins]
            return [filled[rank::num_ranks] for rank in range(num_ranks)]
        rounds += 1


def pack(batch: Batch, *, shared: bool, varlen: bool = False) -> Layout:
    """All sequences end to end in one row, without padding; with `shared`, one copy of each prompt.

    For a model with the attention of `rlvr.trainer.attention`: in segments, or with `varlen` in one call. Positions
    count from the start of each sequence, as if it had a row of its own.
    """
    row = _Row.of(batch, shared=shared, together=varlen and not shared)
    if varlen:
        return _laid_out(batch, row, row.shared_varlen() if shared else row.separate_varlen())
    segments = row.shared_segments() if shared else row.separate_segments()
    order = torch.zeros(row.num_tokens, dtype=torch.int64)
    num_queries = 0  # of the segments before, padding included
    for segment, real in segments:
        order[segment.query[real]] = num_queries + torch.arange(real.numel()).view_as(real)[real]
        num_queries += real.numel()
    return _laid_out(batch, row, Packed(tuple(segment for segment, _ in segments), order))


def _laid_out(batch: Batch, row: _Row, packed: Packed | Varlen) -> Layout:
    predict, target, place = row.predictions(batch)
    prompts = row.prompts(batch)
    return Layout(row.ids[None], row.positions[None], packed, predict, target, place, row.num_tokens, *prompts)


def pad(batch: Batch, *, pad_token_id: int) -> Layout:
    """One row per response, right-padded, so that causal attention needs no mask. For any causal model."""
    row = _Row.of(batch, shared=False)
    width = row.prompt_length + row.read
    index, real = row.sequence(torch.arange(len(width)), int(width.max()))
    ids = torch.where(real, row.ids[index], pad_token_id)
    predict, target, place = row.predictions(batch)
    padded = torch.zeros(row.num_tokens, dtype=torch.int64)  # place in the padded rows of each token of `row`
    padded[index[real]] = torch.arange(real.numel()).view_as(real)[real]
    prompt, owner, num_prompts = row.prompts(batch)
    return Layout(ids, None, None, padded[predict], target, place, row.num_tokens, padded[prompt], owner, num_prompts)


@dataclass(frozen=True)
class _Row:
    """All prompts, then all responses less their last token; with `together` each response follows its prompt."""

    ids: Tensor  # [N]
    positions: Tensor  # [N]
    prompt_length: Tensor  # [P']  P' = P if prompts are shared, else B
    prompt_start: Tensor  # [P']
    owner: Tensor  # [B] prompt of each response
    read: Tensor  # [B]
    response_start: Tensor  # [B]

    @classmethod
    def of(cls, batch: Batch, *, shared: bool, together: bool = False) -> _Row:
        """together: only if prompts are not shared."""
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
        """ids and positions [N], given as all prompts, then all responses, reordered sequence by sequence."""
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
        copy = self.owner[first]  # index of each group's prompt among the prompts of this row
        place, real = _span(self.prompt_start[copy], self.prompt_length[copy])
        return place[real], torch.arange(P)[:, None].expand_as(real)[real], P

    def sequence(self, rows: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """Places of whole sequences, prompt and response, [b, width], and which of them are not padding."""
        column = torch.arange(width)
        length = self.prompt_length[self.owner[rows], None]
        in_prompt = self.prompt_start[self.owner[rows], None] + column
        in_response = self.response_start[rows, None] + column - length
        real = column < length + self.read[rows, None]
        return torch.where(real, torch.where(column < length, in_prompt, in_response), 0), real

    def separate_segments(self) -> list[tuple[Segment, Tensor]]:
        width = self.prompt_length[self.owner] + self.read
        padded = [self.sequence(rows, int(width[rows].max())) for rows in _alike(width)]
        return [(Segment(index, index, None), real) for index, real in padded]

    def separate_varlen(self) -> Varlen:
        """Each sequence attends to itself; its keys are contiguous in the row."""
        width = self.prompt_length + self.read
        ends, longest = _ends(width), int(width.max())
        return Varlen(ends, ends, longest, longest, None)

    def shared_varlen(self) -> Varlen:
        """Prompts attend to themselves; responses to their prompt and to themselves."""
        rows = self.read.nonzero()[:, 0]
        prompts, num_read = self.owner[rows], self.read[rows]
        prompt, in_prompt = _span(self.prompt_start[prompts], self.prompt_length[prompts])
        response, in_response = _span(self.response_start[rows], num_read)
        of_responses = torch.cat([prompt, response], 1)[torch.cat([in_prompt, in_response], 1)]
        query = torch.cat([self.prompt_length, num_read])
        key = torch.cat([self.prompt_length, self.prompt_length[prompts] + num_read])
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
            causal = torch.ones(t, t, dtype=torch.bool).tril().expand(len(in_prompt), t, t)
            mask = torch.cat([in_prompt[:, None].expand(-1, t, -1), causal], 2)[:, None]
            segments.append((Segment(query, torch.cat([key, query], 1), mask), real))
        return segments


def _ends(length: Tensor) -> Tensor:
    """[S + 1] int32: where each of S sequences ends, 0 first."""
    return torch.nn.functional.pad(length.cumsum(0), (1, 0)).int()


def _span(start: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
    """Places start, start + 1, … of each row, [b, longest], and which of them are not padding."""
    column = torch.arange(int(length.max()) if len(length) else 0)
    real = column < length[:, None]
    return torch.where(real, start[:, None] + column, 0), real


def _alike(length: Tensor) -> list[Tensor]:
    """Row numbers in buckets of similar length, the longest first."""
    order = length.argsort(descending=True, stable=True)
    buckets, first = list[Tensor](), 0
    lengths = length[order].tolist()
    for index, row_length in enumerate(lengths):
        if row_length * MAX_STRETCH < lengths[first]:
            buckets.append(order[first:index])
            first = index
    return [*buckets, order[first:]] if lengths else []
