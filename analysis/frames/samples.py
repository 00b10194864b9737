"""The samples of evaluations, read on request: from the files of a home, or from a table of responses. And numbers on
their texts, of which a bundle stores those in `stored` for every evaluation, in place of the texts."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rlvr.ledger import layout
from rlvr.metrics import distinct_n

SAMPLE_COLUMNS = ("source", "problem_id", "sample", "outcome", "reward", "num_tokens", "finished")  # all but the texts

LATER = ("right_answer", "turns", "extras")  # columns that older runs and bundles lack
Texts = dict[str, dict[str, list[tuple[str, str]]]]  # by benchmark and problem, (response, outcome) of every sample


@dataclass(frozen=True)
class Response:
    """One sample with its text. prompt, right_answer, turns, extras: "" where the run did not store it."""

    source: str
    problem_id: str
    prompt: str
    sample: int
    response: str
    outcome: str
    num_tokens: int
    right_answer: str = ""
    turns: str = ""  # of a conversation: JSON, [role, text] of each turn after the prompt
    extras: str = ""  # JSON: what the task measured beside the reward, by name


@dataclass(frozen=True)
class StoredSamples:
    """The samples that evaluations stored.

    steps: of a run, the steps of its evaluations, ascending. read: of (run, step), the table of its samples with those
    of these columns that it has; None if it is not available. complete: whether it has every sample of an evaluation.
    """

    steps: Callable[[str], list[int]]
    read: Callable[[str, int, Sequence[str]], pa.Table | None]
    complete: bool

    def frame(self, run_ids: Iterable[str]) -> pd.DataFrame:
        """run_id, step and SAMPLE_COLUMNS, of the first and the last evaluation of each run."""
        parts: list[pd.DataFrame] = []
        for run_id in run_ids:
            steps = self.steps(run_id)
            for step in dict.fromkeys([*steps[:1], *steps[-1:]]):
                table = self.read(run_id, step, SAMPLE_COLUMNS)
                parts += [] if table is None else [table.to_pandas().assign(run_id=run_id, step=step)]
        columns = ["run_id", "step", *SAMPLE_COLUMNS]
        return pd.concat(parts, ignore_index=True).reindex(columns=columns) if parts else pd.DataFrame(columns=columns)

    def texts(self, run_id: str, step: int) -> Texts:
        """By benchmark, the responses of one evaluation; {} if they are not available."""
        texts: Texts = {}
        table = self.read(run_id, step, ("source", "problem_id", "response", "outcome"))
        if table is not None:
            for source, problem, response, outcome in zip(*table.to_pydict().values(), strict=True):
                texts.setdefault(source, {}).setdefault(problem, []).append((response, outcome))
        return texts

    def responses(self, run_id: str, step: int, problems: Collection[tuple[str, str]]) -> list[Response]:
        """The samples of these problems (benchmark, id), in the order of the file; [] if they are not available."""
        table = self.read(run_id, step, [field.name for field in fields(Response)])
        if table is None:
            return []
        ids = pc.field("problem_id").isin(sorted({problem for _, problem in problems}))
        rows: list[dict[str, Any]] = table.filter(ids).to_pylist()
        chosen = set(problems)
        known = [{name: value for name, value in row.items() if value is not None} for row in rows]
        return [Response(**{"prompt": "", **row}) for row in known if (row["source"], row["problem_id"]) in chosen]


def of_home(home: Path) -> StoredSamples:
    """The files under `runs/` of a home."""

    def steps(run_id: str) -> list[int]:
        return [layout.step_of(file) or 0 for file in layout.evaluations(layout.run(home, run_id))]

    def read(run_id: str, step: int, columns: Sequence[str]) -> pa.Table | None:
        required = [column for column in columns if column not in ("prompt", *LATER)]
        return read_table(layout.evaluation(layout.run(home, run_id), step), required, optional=columns)

    return StoredSamples(steps, read, complete=True)


def of_table(table: pa.Table, *, complete: bool) -> StoredSamples:
    """The samples in a table `responses` (frames/tables.py)."""

    def steps(run_id: str) -> list[int]:
        return sorted(set(table.filter(pc.field("run_id") == run_id)["step"].to_pylist()))

    def read(run_id: str, step: int, columns: Sequence[str]) -> pa.Table | None:
        of_evaluation = table.filter((pc.field("run_id") == run_id) & (pc.field("step") == step))
        return of_evaluation.select([column for column in columns if column in table.column_names])

    return StoredSamples(steps, read, complete=complete)


def read_table(file: Path, columns: Sequence[str], *, optional: Sequence[str] = ()) -> pa.Table | None:
    """The columns, and those of `optional` that the file has; None for a file that is missing, truncated or damaged.

    Pages are compared with their checksums, which files of earlier versions do not have. The names and types of columns
    have none: a file that lacks a column, or holds bytes in place of text, is damaged.
    """
    try:
        with pq.ParquetFile(file, page_checksum_verification=True) as parquet:
            schema = parquet.schema_arrow
            present = [c for c in dict.fromkeys([*columns, *optional]) if c in schema.names]
            if not set(columns) <= set(present) or any(pa.types.is_binary(schema.field(c).type) for c in present):
                return None
            return parquet.read(present, use_threads=False)
    except (OSError, pa.ArrowException, UnicodeDecodeError):
        return None


# --- numbers on texts


TextsOfProblems = Mapping[str, list[tuple[str, str]]]  # by problem, (response, outcome) of every sample
RIGHT_ANSWERS, DISTINCT = "right answers", "distinct-"
STYLES = "styles"  # and the task whose responses name their style in the first word


def stored(task: str) -> tuple[str, ...]:
    """The names of the numbers that a bundle stores for a run on this task."""
    return (f"{DISTINCT}3", f"{DISTINCT}4", RIGHT_ANSWERS, *((STYLES,) if task == STYLES else ()))


def of_texts(name: str, texts: TextsOfProblems) -> dict[str, float]:
    """The numbers of this name, on the responses to one benchmark. `distinct-N`: by problem, rlvr.metrics.distinct_n of
    the words of its responses; `right answers`: by problem, how many different responses are right; `styles`: by first
    word, how many responses are right."""
    if name == STYLES:
        right = (text for answers in texts.values() for text, outcome in answers if outcome == "correct")
        return dict(Counter[str](text.partition(" ")[0] for text in right))
    if name == RIGHT_ANSWERS:
        return {p: float(len({t for t, outcome in texts[p] if outcome == "correct"})) for p in texts}
    n = int(name.removeprefix(DISTINCT))
    return {p: distinct_n([text.split() for text, _ in answers], n) for p, answers in texts.items()}
