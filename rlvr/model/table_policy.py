"""The tabular policy: next-token logits that depend on the last token alone."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rlvr.model.hugging_face import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    BaseModelOutputWithPast,
    CausalLMOutputWithPast,
    PreTrainedConfig,
    PreTrainedModel,
)

# A next word that can never follow: exp(-1e4) is 0 in every float format, so its probability and the gradient of its
# logit are exactly 0 and training leaves it where it is. A finite number keeps 0 · logit = 0 in entropies.
IMPOSSIBLE = -1e4


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
    """Next-token logits from a table [V, V], the row of the last token alone: for bandits and exact studies in the
    usual loop.

    Starts at 0, the uniform policy. `get_decoder()` followed by `get_output_embeddings()` (the identity) gives the
    logits, as for a transformer. It has no key-value cache, and ignores masks and positions.
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
        """Make the policy uniform over `following[token]` after these tokens; other words become impossible."""
        for token, words in following.items():
            self.model.table.weight[token] = IMPOSSIBLE
            self.model.table.weight[token, torch.as_tensor(list(words))] = 0.0


def register() -> None:
    """Make the tabular policy known to transformers. Harmless when repeated."""
    AutoConfig.register(TableConfig.model_type, TableConfig, exist_ok=True)
    AutoModel.register(TableConfig, TableModel, exist_ok=True)
    AutoModelForCausalLM.register(TableConfig, TablePolicy, exist_ok=True)
