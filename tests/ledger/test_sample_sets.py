import hashlib
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from rlvr.ledger import sample_sets
from rlvr.ledger.sample_sets import SampleSet, Wanted, key_of, write_ordered
from rlvr.records import Problem


def row(key: str, sample: int, response: str = "") -> dict[str, Any]:
    return {"source": "bench", "problem_id": f"id-{key}", "key": key, "sample": sample, "response": response}


def kept(samples: SampleSet, keys: list[str], count: int) -> list[tuple[str, int]]:
    samples.refresh()
    rows = [row for table in samples.ordered(keys, count) for row in table.to_pylist()]
    return [(row["key"], row["sample"]) for row in rows]


def test_only_samples_that_are_in_no_chunk_are_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_sets, "CHUNK", 4)
    samples = SampleSet(tmp_path / "set", {})
    assert samples.missing(["a", "b"], 3) == [[Wanted(0, 0, 3), Wanted(1, 0, 1)], [Wanted(1, 1, 2)]]
    samples.add([row("a", 0), row("a", 1), row("b", 1)])
    samples.refresh()
    assert samples.missing(["a", "b"], 2) == [[Wanted(1, 0, 1)]]
    # a lacks 2 to 6, b lacks 0 and 2 to 6: eleven samples in pieces of four
    pieces = samples.missing(["a", "b"], 7)
    assert pieces[0] == [Wanted(0, 2, 4)]
    assert pieces[1] == [Wanted(0, 6, 1), Wanted(1, 0, 1), Wanted(1, 2, 2)]
    assert pieces[2:] == [[Wanted(1, 4, 3)]]
    assert samples.missing(["a"], 2) == []


def test_samples_are_read_in_order_in_any_order_of_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_sets, "BLOCK", 2)
    orders = [
        [[row("b", 1)], [row("c", 0), row("a", 0)], [row("a", 1), row("b", 0)], [row("c", 1)]],
        [[row("a", 0), row("a", 1), row("b", 0)], [row("b", 0), row("b", 1), row("c", 0), row("c", 1), row("c", 2)]],
    ]
    files: list[bytes] = []
    for number, chunks in enumerate(orders):
        samples = SampleSet(tmp_path / str(number), {})
        for chunk in chunks:
            samples.add(chunk)
        assert kept(samples, ["c", "a", "b"], 2) == [(key, i) for key in "cab" for i in (0, 1)]
        out = tmp_path / f"{number}.parquet"
        write_ordered(samples.ordered(["c", "a", "b"], 2), out, step=1, right_answer={k: k.upper() for k in "abc"})
        files.append(out.read_bytes())
    assert files[0] == files[1]
    assert "key" not in pq.read_schema(tmp_path / "0.parquet").names
    assert set(pq.read_table(tmp_path / "0.parquet")["step"].to_pylist()) == {1}
    assert pq.read_table(tmp_path / "0.parquet")["right_answer"].to_pylist() == [*"CCAABB"]


def test_a_damaged_chunk_is_set_aside_and_its_samples_are_missing_again(tmp_path: Path) -> None:
    samples = SampleSet(tmp_path / "set", {})
    damaged, intact = samples.add([row("a", 0, "said")]), samples.add([row("b", 0)])
    content = bytearray(damaged.read_bytes())
    content[len(content) // 3] ^= 1
    damaged.write_bytes(content)
    assert samples.missing(["a", "b"], 1) == [[Wanted(0, 0, 1)]]
    assert {p.name for p in (tmp_path / "set").glob("*.parquet")} == {f"damaged-{damaged.name}", intact.name}
    with pytest.raises(ValueError, match="lacks 1 samples"):
        list(samples.ordered(["a", "b"], 1))
    assert samples.add([row("a", 0, "said")]) == damaged  # the same bytes have the same name
    assert hashlib.sha256(damaged.read_bytes()).hexdigest() == damaged.stem
    assert kept(samples, ["a", "b"], 1) == [("a", 0), ("b", 0)]
    damaged.write_bytes(b"damaged again")
    assert SampleSet(tmp_path / "set", {}).missing(["a", "b"], 1) == [[Wanted(0, 0, 1)]]
    aside = sorted((tmp_path / "set").glob("damaged-*"))
    assert [path.read_bytes() for path in aside] == [bytes(content), b"damaged again"]


def test_the_key_of_a_problem_depends_on_its_content() -> None:
    one = Problem("1", "2 + 2", "4")
    assert key_of(one) == key_of(Problem("1", "2 + 2", "4", source="renamed"))
    others = (Problem("2", "2 + 2", "4"), Problem("1", "2+2", "4"), Problem("1", "2 + 2", "5"))
    assert len({key_of(problem) for problem in (one, *others)}) == 4
