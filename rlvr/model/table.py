"""A tabular base policy, built for a task from its demonstrations."""

import functools
from pathlib import Path
from typing import Any

from rlvr.ledger.stages import stage, table_identity
from rlvr.model import native_only
from rlvr.model.table_policy import TableConfig, TablePolicy, register
from rlvr.model.tokenizer import encode, word_tokenizer
from rlvr.records import OneWordTask, TaughtTask

TABLE_DEMONSTRATIONS = 4096  # number read to find which words may follow which


@native_only
def table(task: TaughtTask, store: Path) -> Path:
    """The tabular policy, uniform over the words that the task's demonstrations show after each word.

    For a bandit, whose demonstrations are its arms in turn: uniform over exactly the arms. A task of one-word answers
    may list all of them as `answers`: they are then allowed after every prompt.
    """

    def build(directory: Path) -> dict[str, Any]:
        register()
        tokenizer = word_tokenizer(task.vocabulary, task.end_word)
        following: dict[int, set[int]] = {}
        ids = functools.cache(functools.partial(encode, tokenizer))  # the same few texts recur
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
