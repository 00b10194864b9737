import os
from pathlib import Path

import pytest

from sweeps import before_launch, machine


def test_cores_are_those_of_the_affinity_within_the_quota(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A quota of 300 ms in each 100 ms is three cores, one of 10 ms still a core."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8))
    monkeypatch.setattr(machine, "Path", lambda _: tmp_path / "cpu.max")
    assert machine.available_cores() == 8  # no control groups here
    for quota, cores in (("max", 8), ("300000", 3), ("1600000", 8), ("10000", 1)):
        (tmp_path / "cpu.max").write_text(f"{quota} 100000\n")
        assert machine.available_cores() == cores


def test_a_cpu_lists_whether_it_computes_bfloat16(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "Path", lambda _: tmp_path / "cpuinfo")
    assert machine.computes_bfloat16()  # no such file: unknown, so nothing is said
    for text, computes in {
        "flags\t\t: fpu avx avx2 bmi1\n": False,
        "flags\t\t: fpu avx512f avx512_bf16 bmi1\n": True,
        "flags\t\t: fpu amx_bf16 amx_tile\n": True,
        "Features\t: fp asimd bf16 i8mm\n": True,
        "Features\t: fp asimd\n": False,
        "model name\t: avx512_bf16 in a name\n": True,  # no list of abilities: unknown
    }.items():
        (tmp_path / "cpuinfo").write_text(f"processor\t: 0\n{text}")
        assert machine.computes_bfloat16() is computes, text


def test_every_run_has_gpus_of_its_own_and_no_more_run_than_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "available_cores", lambda: 64)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3,5,7,8")
    assert [machine.at_once(None, 1, ranks, gpus_each=ranks) for ranks in (1, 2)] == [5, 2]
    assert machine.at_once(9, threads=1, ranks=1, gpus_each=1) == 9  # asked for: they share
    gpus = machine.available_gpus()
    assert [machine.share_of(gpus, number, 2) for number in range(3)] == ["2,3", "5,7", "2,3"]
    with pytest.raises(ValueError, match="has 6 processes with a GPU each.* shows 5. Pass fewer"):
        machine.at_once(None, threads=1, ranks=4, gpus_each=6)
    for none in ("", "-1", "NoDevFiles"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", none)
        assert machine.at_once(None, threads=1, ranks=4, gpus_each=4) == 16
    assert machine.share_of([], 0, 1) is None


def test_a_launch_in_bfloat16_on_a_cpu_that_emulates_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for dtype, computes, gpus, lines in (
        ("bfloat16", False, "", 1),
        ("bfloat16", True, "", 0),
        ("bfloat16", False, "0", 0),
        ("float32", False, "", 0),
    ):
        monkeypatch.setattr(before_launch, "computes_bfloat16", lambda computes=computes: computes)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpus)
        before_launch.warn_of_slow_numbers({"trains": {"trainer": {"dtype": dtype}}, "evaluates": {"trainer": None}})
        said = capsys.readouterr().err.count("trainer.dtype=float32 is faster here")
        assert said == lines, (dtype, computes, gpus)
