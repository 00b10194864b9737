"""`python -m tests.bench --quick` runs every benchmark. The numbers are not tested: they depend on the machine."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench import __main__ as bench
from tests.bench.row import row

FIELDS = {"bench", "name", "value", "unit", "peer", "peer_value", "ratio", "target", "met", "machine"}


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_every_bench_gives_whole_rows_of_finite_numbers(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    command = [sys.executable, "-m", "tests.bench", "--quick", "--json", str(file)]
    done = subprocess.run(command, cwd=bench.ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert {one["bench"] for one in rows} == set(bench.names())
    assert set(bench.names()) >= {"expand", "rollout", "step", "sweeps", "tracker", "train", "vllm"}
    for one in rows:
        assert one.keys() == FIELDS
        assert 0 < one["value"] < math.inf, one
        for name in ("peer_value", "ratio", "target"):
            assert one[name] is None or 0 < one[name] < math.inf, one
    assert len(done.stdout.split("| met |")[1].splitlines()) == 2 + len(rows)  # rest of the header, rule, rows


def test_the_table_replaces_the_old_one_text_around_it_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    docs = tmp_path / "performance.md"
    docs.write_text("before\n<!-- measured -->\nold\n<!-- end -->\nafter\n")
    monkeypatch.setattr(bench, "DOCS", docs)
    on = {"cores": 2, "cpu": "C", "memory_gb": 8, "torch": "2", "transformers": "5", "busy_elsewhere": 0.04}
    measured = row("n", 1234.6, "s", "p", 3703.8, smaller=True, target=2.0)  # three times as fast
    bench.write_docs([{**measured, "met": bench.met(measured), "machine": on}])
    assert docs.read_text() == (
        "before\n<!-- measured -->\n2 cores of C, 8 GB, torch 2, transformers 5; other processes kept at "
        "most 0.0 cores busy\n\n"
        "| what | ours    | peer | peer's | ratio | target | met |\n"
        "|------|---------|------|--------|-------|--------|-----|\n"
        "| n    | 1,235 s | p    | 3,704  | 3.00  | 2      | yes |\n"
        "<!-- end -->\nafter\n"
    )


def test_an_unknown_bench_is_named_with_those_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        bench.main(["steps"])
    assert stopped.value.code == 2
    known = "expand rollout start step sweeps tracker train vllm"
    assert f"no bench steps. Type some of: {known}" in capsys.readouterr().err
