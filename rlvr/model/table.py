"""The tabular policy: next-token logits that depend on the last token alone."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast

from rlvr.ledger.stages import stage, table_identity
from rlvr.model import native_only
from rlvr.model.tokenizer import encode, word_tokenizer
from rlvr.records import OneWordTask, TaughtTask

TABLE_DEMONSTRATIONS = 4096  # read to learn which word may follow which

# A next word that can never follow: exp(-1e4) is 0 in every float format, so its probability and the gradient of its
# logit are exactly 0 and training leaves it where it is. A finite number keeps 0 · logit = 0 in entropies.
IMPOSSIBLE = -1e4


@native_only
def table(task: TaughtTask, store: Path) -> Path:
    """The tabular policy, uniform over the words that the task's demonstrations show after each word.

    For a bandit, whose demonstrations are its arms in turn: uniform over exactly the arms. A task of one-word answers
    may list them all as `answers`: too many to be shown after each prompt, they are allowed after every one.
    """

    def build(directory: Path) -> dict[str, Any]:
        register()
        tokenizer = word_tokenizer(task.vocabulary, task.end_word)
        following: dict[int, set[int]] = {}
        ids = functools.cache(functools.partial(encode, tokenizer))  # the same few texts come again and again
        answers = set(ids(" ".join(task.answers))) if isinstance(task, OneWordTask) else set[int]()
        for index in range(TABLE_DEMONSTRATIONS):
            prompt, response = (ids(text) for text in task.demonstration(index))
            following.setdefault(prompt[-1], set(answers))
            for before, after in zip([prompt[-1], *response], response, strict=False):
                following.setdefault(before, set()).add(after)
        model = TablePolicy(TableConfig(vocab_size=len(tokenizer), eos_token_id=tokenizer.eos_token_id))
        model.allow({before: sorted(after) for before, after in following.items()})
        model.save_pretrained(directory)
        tokenizer.save_pretrained(directory)
        return {"num_parameters": model.num_parameters()}

    return stage(store, table_identity(task), build)


class TableConfig(PreTrainedConfig):
    """Configuration of `TablePolicy`: the number of words."""

    model_type = "rlvr_table"

    def __init__(self, vocab_size: int = 2, **kwargs: Any) -> None:
        kwargs.setdefault("tie_word_embeddings", False)
        super().__init__(**kwargs)
        self.vocab_size = vocab_size


class TablePreTrained(PreTrainedModel):
    config_class = TableConfig
    base_model_prefix = "model"
    _supports_sdpa = True

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Embedding):
            nn.init.zeros_(module.weight)


class TableModel(TablePreTrained):
    """The table as a decoder: the "hidden state" after a token is its row of logits, [V]."""

    def __init__(self, config: TableConfig) -> None:
        super().__init__(config)
        self.table = nn.Embedding(config.vocab_size, config.vocab_size)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.table

    def forward(self, input_ids: Tensor, **_: Any) -> BaseModelOutputWithPast:
        return BaseModelOutputWithPast(last_hidden_state=self.table(input_ids))  # type: ignore[arg-type]


class TablePolicy(TablePreTrained):
    """Next-token logits from a table [V, V] row of the last token alone: bandits and exact studies in the same loop.

    Starts at 0, the uniform policy. `get_decoder()` then `get_output_embeddings()` (the identity) gives the logits, as
    for a transformer. It has no key-value cache, masks and positions mean nothing to it.
    """

    def __init__(self, config: TableConfig) -> None:
        super().__init__(config)
        self.model = TableModel(config)
        self.lm_head = nn.Identity()
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.model.table

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def get_decoder(self) -> nn.Module:
        return self.model

    def forward(self, input_ids: Tensor, **_: Any) -> CausalLMOutputWithPast:
        hidden = self.model(input_ids=input_ids).last_hidden_state
        return CausalLMOutputWithPast(logits=self.lm_head(hidden))

    @torch.no_grad()
    def allow(self, following: dict[int, Sequence[int]]) -> None:
        """Uniform over `following[token]` after each of these tokens; all other words become impossible there."""
        for token, words in following.items():
            self.model.table.weight[token] = IMPOSSIBLE
            self.model.table.weight[token, torch.as_tensor(list(words))] = 0.0


def register() -> None:
    """Make the tabular policy known to transformers. Harmless when repeated."""
    AutoConfig.register(TableConfig.model_type, TableConfig, exist_ok=True)
    AutoModel.register(TableConfig, TableModel, exist_ok=True)
    AutoModelForCausalLM.register(TableConfig, TablePolicy, exist_ok=True)
