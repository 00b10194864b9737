import re
from pathlib import Path

import pytest

from analysis.command import VERBS
from rlvr.ledger.sweeps import Ledger
from sweeps.naming import check_free
from sweeps.plan import with_unique_names, write
from tests.sweeps.test_plan import planned
from tests.test_run import Command, command

__all__ = ["command"]  # a fixture


BAD = {
    "name=my sweep": "name=my sweep is not allowed. A name has 1 to 60 letters, digits",
    "name=../x": "name=../x is not allowed",
    "name=a,b": "name=a,b is not allowed",
    "tags=pilot,": "tags=pilot, is not allowed. Each tag has",
    **{f"name={name}": f"name={name} is the name of a study. Type another one." for name in ("main", "search", "eta")},
    "name=evaluation": "name=evaluation is the name of a study. Type another one.",
}


@pytest.mark.slow
def test_a_bad_name_is_one_line_before_anything_is_launched(command: Command, tmp_path: Path) -> None:
    for word, message in BAD.items():
        code, _, (line,) = command("-m", "loss=grpo", "seed=0,1", "cluster=local", word, home=tmp_path)
        assert (code, message in line) == (2, True), line
        assert not list(tmp_path.iterdir())


def test_a_named_sweep_has_the_same_runs_and_a_group_of_its_own(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    named = planned(["seed=0", "name=pilot", "tags='a, b'"], ["seed=1", "name=pilot", "tags='a, b'"])
    unnamed = planned(["seed=0"], ["seed=1"])
    assert [run.run_id for run in named.runs] == [run.run_id for run in unnamed.runs]
    assert [run.overrides for run in named.runs] == [("seed=0",), ("seed=1",)]
    assert (unnamed.study, named.study) == ("main", "pilot")
    assert planned(["study=eta", "eta=2", "name=pilot"]).study == "eta"
    write(unnamed, ledger)
    write(named, ledger)
    for text in ("pilot", named.sweep_id, named.sweep_id[:5]):
        assert ledger.resolve_sweep(text).name == "pilot"
    assert ledger.resolve_sweep("pilot").info["tags"] == "a, b"


def test_a_name_is_of_one_sweep_and_of_those_that_have_all_its_runs(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.record_sweep("s1", {"study": "pilot", "name": "pilot", "command": "x"}, [{"run_id": "a"}, {"run_id": "b"}])
    ledger.record_sweep("s2", {"study": "mine", "command": "y"}, [{"run_id": "c"}])
    check_free("pilot", "s1", ["a", "b"], ledger)
    check_free("pilot", "s3", ["a", "b", "c"], ledger)
    check_free("other", "s3", ["c"], ledger)
    with pytest.raises(ValueError, match=re.escape("name=pilot is taken by sweep s1 (x), which has other runs.")):
        check_free("pilot", "s3", ["a", "c"], ledger)
    for name in (*(verb for (verb,) in VERBS), "eta.rlvr", "eta-part", "eta-bundle"):
        with pytest.raises(ValueError, match=f"name={name} means something else to `python -m analysis`"):
            check_free(name, "s3", ["c"], ledger)
    with pytest.raises(ValueError, match="name=mine is the name of a study in"):
        check_free("mine", "s3", ["c"], ledger)


def test_names_of_runs_are_unique_and_stay(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    first, other = planned(["steps=10"]), planned(["steps=20"])
    name = first.runs[0].name
    assert name == other.runs[0].name.replace("steps20", "steps10")
    clash = planned(["steps=10", "keep_rollouts=1", "lr=1e-3"])
    ledger.create_run("0" * 12, "{}", {"name": clash.runs[0].name})
    unique = with_unique_names(clash, ledger)
    assert unique.runs[0].name == f"{clash.runs[0].name}-{clash.runs[0].run_id[:6]}"
    write(unique, ledger)
    again = with_unique_names(clash, ledger)
    assert again.runs[0].name == unique.runs[0].name
    assert len(set(ledger.names().values())) == len(ledger.runs()) == 2
