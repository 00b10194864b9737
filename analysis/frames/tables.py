"""The tables of runs from which every report is made: derived from the files of a home, read from a bundle or from
MLflow, or imported.

| table | a row | columns |
|---|---|---|
| counts | a problem in an evaluation | run_id, step, source, problem_id, n, correct, errors |
| digest | a number that tables read | run_id, what, name, step, value (frames/digest.py) |
| drawn | a point of a curve of training | run_id, name, step, value (frames/digest.py) |
| texts | a number on responses in an evaluation | summary, run_id, step, source, key, value (frames/samples.py) |
| responses | a sample with its text | run_id, step, and the fields of Response (frames/samples.py) |
| policy | an arm of a bandit's last policy | run_id, step, arm, reward, probability, probability_old, advantage |

`texts` and `responses` are of bundles and imports; a home has the files of its samples instead.
"""

from collections.abc import Callable, Collection, Iterable, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

TEXT, WHOLE, NUMBER = pa.string(), pa.int64(), pa.float64()
POLICY = ("arm", "reward", "probability", "probability_old", "advantage")
SCHEMAS: Mapping[str, Mapping[str, pa.DataType]] = {
    "counts": {
        **{"run_id": TEXT, "step": WHOLE, "source": TEXT, "problem_id": TEXT},
        **{"n": pa.int32(), "correct": pa.int32(), "errors": pa.int32()},
    },
    "digest": {"run_id": TEXT, "what": TEXT, "name": TEXT, "step": WHOLE, "value": NUMBER},
    "drawn": {"run_id": TEXT, "name": TEXT, "step": WHOLE, "value": pa.float32()},
    "texts": {"summary": TEXT, "run_id": TEXT, "step": WHOLE, "source": TEXT, "key": TEXT, "value": NUMBER},
    "responses": {
        **{"run_id": TEXT, "step": WHOLE, "source": TEXT, "problem_id": TEXT, "prompt": TEXT, "sample": WHOLE},
        **{"response": TEXT, "outcome": TEXT, "num_tokens": WHOLE, "right_answer": TEXT, "turns": TEXT},
        "extras": TEXT,
    },
    "policy": {"run_id": TEXT, "step": WHOLE, "arm": WHOLE, **dict.fromkeys(POLICY[1:], NUMBER)},
}
METRICS = "metrics"  # run_id, step, name and value of everything that was logged


def schema(name: str) -> pa.Schema:
    columns = {METRICS: SCHEMAS["drawn"], **SCHEMAS}
    return pa.schema(list(columns[name].items()))


class Tables:
    """Tables by name, each read whenever it is asked for. Texts may be dictionaries. One without a reader is empty."""

    def __init__(self, readers: Mapping[str, Callable[[], pa.Table]]) -> None:
        self._readers = readers

    def __getitem__(self, name: str) -> pa.Table:
        return self._readers[name]() if name in self._readers else schema(name).empty_table()


def joined(name: str, of_runs: Iterable[tuple[str, pa.Table]]) -> pa.Table:
    """The rows of the tables of runs, with a first column run_id; the empty table of this name without any. of_runs:
    (run id, a table of the run)."""
    parts = [table.add_column(0, "run_id", _repeated(run_id, table.num_rows)) for run_id, table in of_runs]
    return pa.concat_tables(parts).unify_dictionaries() if parts else schema(name).empty_table()


def _repeated(text: str, number: int) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(number, np.int32)), pa.array([text], TEXT))


def with_names(table: pa.Table, names: Collection[str]) -> pa.Table:
    """The rows of a table `drawn` of these metrics."""
    return table.filter(pc.field("name").isin(sorted(names)))


def decoded(table: pa.Table, name: str) -> tuple[NDArray[np.int64], list[str]]:
    """(code of each row, text of each code) of a column of text."""
    column = table[name].combine_chunks()
    column = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    return column.indices.to_numpy(zero_copy_only=False).astype(np.int64), column.dictionary.to_pylist()
