"""A report whose runs have not changed is shown again; one whose runs, files or options have changed is rebuilt."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from analysis import command
from analysis.report import report
from rlvr.ledger import layout
from rlvr.ledger.journal import encode
from tests.analysis.ledger_factory import config, counts, write_run, write_study, write_sweep


@pytest.fixture
def builds(tmp_path, monkeypatch) -> list[int]:
    """One entry for each time that a report is built."""
    calls: list[int] = []
    build = report.build
    monkeypatch.setattr(report, "build", lambda *a, **k: calls.append(1) or build(*a, **k))
    write_study(tmp_path)
    return calls


def test_a_report_is_rebuilt_only_after_something_changes(tmp_path, capsys, builds):
    ask = ["--home", str(tmp_path), "--no-figures"]

    def shown(*more: str) -> str:
        assert command.main([*ask, *more]) == 0
        return capsys.readouterr().out

    first = shown()
    assert shown() == first
    assert len(builds) == 1
    shown("--metrics", "pass@8")
    assert len(builds) == 2
    page = tmp_path / "reports" / "default-part" / "index.html"
    page.write_text("something else")
    shown("--metrics", "pass@8")
    assert len(builds) == 3
    assert "<title>" in page.read_text()
    journal = layout.journal(layout.run(tmp_path, "id-grpo-s0"))
    with journal.open("ab") as file:
        file.write(encode(41, 50.0, 1, {"policy/entropy": 0.5}))
    shown("--metrics", "pass@8")
    assert len(builds) == 4
    # As `python -m rlvr.diagnostics.diversity` writes it.
    measured = layout.diversity(layout.run(tmp_path, "id-grpo-s0"))
    measured.parent.mkdir()
    measured.write_bytes(b"of this evaluation")
    shown("--metrics", "pass@8")
    assert len(builds) == 5
    (Path(layout.run(tmp_path, "id-grpo-s0")) / "attempts" / "1" / "exit.json").unlink()
    assert "13 runs (12 finished, 1 lost)" in shown("--metrics", "pass@8")
    assert len(builds) == 6


def test_a_tuning_run_that_measured_more_rebuilds_the_report(tmp_path, builds):
    run_id = write_run(tmp_path, config("grpo", seed=7), {40: {"maze7": counts(4)}})
    write_sweep(tmp_path, "tuning", [(run_id, "grpo-s7", ["seed=7"])])
    manifest = tmp_path / "runs" / "sweeps" / "tuning" / "manifest.jsonl"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "stage": "tuning"}) + "\n")
    ask = ["--home", str(tmp_path), "--no-figures"]
    assert [command.main(ask), command.main(ask), len(builds)] == [0, 0, 1]
    with layout.journal(layout.run(tmp_path, run_id)).open("ab") as file:
        file.write(encode(41, 50.0, 1, {"validation/maze7/avg_at_8": 0.5}))
    assert [command.main(ask), len(builds)] == [0, 2]
