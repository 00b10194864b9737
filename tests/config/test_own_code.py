import hashlib
import importlib
import sys
from pathlib import Path

import pytest

from rlvr.config import own_code
from rlvr.ledger import layout
from rlvr.ledger.inputs import record_code, recorded_code

FILES = {
    "oc_loss.py": "import math\nimport oc_terms.parts as parts\nfrom rlvr.objective.batch import Terms\n",
    "oc_terms/__init__.py": "",
    "oc_terms/parts.py": "from . import weights\nfrom .within.without.last import x\n",
    "oc_terms/within/without/last.py": "",  # two directories without __init__.py
    "oc_terms/weights.py": "def late():\n    import oc_late\n",
    "oc_terms/unused.py": "",
    "oc_late.py": "this is no Python\n",
    "oc_unused.py": "",
}
CONFIG = {"loss": {"_target_": "oc_loss.loss"}, "task": {"_target_": "rlvr.task.maze.Maze"}}


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's directory that Python searches."""
    folder = tmp_path / "mine"
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    monkeypatch.setattr(sys, "path", [*sys.path, str(folder)])
    for name in [name for name in sys.modules if name.startswith("oc_")]:  # of the directory of another test
        monkeypatch.delitem(sys.modules, name)
    importlib.invalidate_caches()
    return folder


def recorded(run_dir: Path, mine: Path) -> list[str]:
    """The modules of which the run used other versions before, once it has recorded those that it uses now."""
    return record_code(run_dir, own_code.versions(CONFIG, [str(mine)]))


def test_files_are_those_of_targets_and_of_what_they_import_from_the_same_directories(mine: Path) -> None:
    files = own_code.files(CONFIG, [str(mine)])
    used = ("oc_loss.py", "oc_terms/__init__.py", "oc_terms/parts.py", "oc_terms/weights.py", "oc_late.py")
    used += ("oc_terms/within/without/last.py",)
    assert {file for file in files.values() if file.is_relative_to(mine)} == {mine / name for name in used}
    assert files["oc_terms.weights"] == mine / "oc_terms/weights.py"


@pytest.mark.parametrize(
    ("code", "seen"),
    [
        ('import importlib\nimportlib.import_module("oc_unused")', "oc_unused"),
        ('from importlib import import_module as load\nfor name in ("oc_unused",):\n    load(name)', "oc_unused"),
        (
            'TABLE = {"mine": "oc_unused:loss"}\n\ndef find(name):\n    return pkgutil.resolve_name(TABLE[name])',
            "oc_unused",
        ),
        ('__import__(name="oc_unused")', "oc_unused"),
        ('importlib.import_module(".unused", __package__)', "oc_terms.unused"),
        ('LABEL = "oc_unused"', None),  # nothing is imported by name
        ('importlib.import_module(f"oc_{which}")', None),
    ],
)
def test_modules_that_texts_name_count_where_code_imports_by_name(mine: Path, code: str, seen: str | None) -> None:
    (mine / "oc_terms/weights.py").write_text(code)
    files = own_code.files(CONFIG, [str(mine)])
    assert {"oc_unused", "oc_terms.unused"} & files.keys() == ({seen} if seen else set())


def test_the_objective_has_files_of_ours(mine: Path) -> None:
    ours = own_code.files({"loss": {"_target_": "rlvr.loss.grpo.grpo"}}, [])
    assert {"rlvr.loss.grpo", "rlvr.objective.batch", "rlvr.objective.micro_batch", "rlvr.objective.reduce"} <= set(
        ours
    )
    assert "rlvr.loss.lad" not in ours
    assert "rlvr.objective.batch" in own_code.files(CONFIG, [str(mine)])  # which its own loss imports


def test_comments_and_docstrings_make_no_other_version(mine: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    recorded(tmp_path / "run", mine)
    (mine / "oc_terms/weights.py").write_text(
        '"""Late."""\n\ndef late():\n    """Imports."""\n    import oc_late  # now\n'
    )
    assert own_code.changed(recorded_code(tmp_path / "run")) == []


def test_of_the_platform_what_makes_numbers_counts_and_of_its_tasks_the_one_that_is_used(mine: Path) -> None:
    maze = own_code.files({"task": {"_target_": "rlvr.task.maze.Maze"}}, [str(mine)])
    assert {"rlvr.trainer", "rlvr.rollout", "rlvr.job", "rlvr.model", "rlvr.noise", "rlvr.task.maze"} <= set(maze)
    assert maze["rlvr.trainer"].is_dir()
    assert not any(module.startswith(("rlvr.ledger", "rlvr.task.math", "rlvr.loss")) for module in maze)
    math = own_code.files({"task": {"_target_": "rlvr.task.math.Math"}}, [])
    assert math["rlvr.task.verify"].is_dir()  # its modules are named to processes, which no import statement shows
    for installed in ({"task": {"_target_": "collections.Counter"}}, {}):
        assert own_code.files(installed, []).keys() == set(own_code.PLATFORM)


def test_any_file_of_a_package_makes_another_version_of_it_but_not_its_comments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkout that moves to another commit between two attempts."""
    for number, text in enumerate(("X = 1\n", "X = 1  # one\n", "X = 2\n")):
        package = tmp_path / str(number)
        (package / "inner").mkdir(parents=True)
        (package / "inner/late.py").write_text(text)
    monkeypatch.setattr(own_code, "PLATFORM", ("rlvr.trainer",))
    monkeypatch.setattr(own_code, "_as_imported", {})
    in_short: list[str] = []
    for number in range(3):
        monkeypatch.setattr(own_code, "_file", lambda _module, number=number: tmp_path / str(number))
        monkeypatch.delitem(sys.modules, "rlvr.trainer", raising=False)  # as in a new process
        in_short.append(own_code.in_short(own_code.versions({}, [])))
    assert in_short[0] == in_short[1] != in_short[2]


def test_an_edited_file_is_reported(mine: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    assert recorded(run_dir, mine) == []
    late = hashlib.sha256((mine / "oc_late.py").read_bytes()).hexdigest()  # it is no Python
    assert (recorded_code(run_dir)["oc_late"], own_code.changed(recorded_code(run_dir))) == ((late,), [])
    (mine / "oc_terms/weights.py").write_text("def late():\n    return 2\n")
    (mine / "oc_unused.py").write_text("edited")
    assert own_code.changed(recorded_code(run_dir)) == [str(mine / "oc_terms/weights.py")]
    layout.journal(run_dir).write_text("a step\n")
    assert recorded(run_dir, mine) == ["oc_terms.weights"]
    assert own_code.changed(recorded_code(run_dir)) == [
        str(mine / "oc_terms/weights.py")
    ]  # it began with the other one


def test_a_file_that_is_edited_while_a_run_begins_counts_with_both_versions(
    mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run_dir := tmp_path / "run").mkdir()
    monkeypatch.delitem(sys.modules, "oc_terms.weights", raising=False)
    code = own_code.versions(CONFIG, [str(mine)])
    not_imported = code.keys() - sys.modules.keys()
    importlib.import_module("oc_terms.weights")
    assert own_code.edited_meanwhile(code, not_imported) == {}
    (mine / "oc_terms/weights.py").write_text("X = 3\n")
    also = own_code.edited_meanwhile(code, not_imported)
    record_code(run_dir, code, also)
    assert recorded_code(run_dir)["oc_terms.weights"] == (code["oc_terms.weights"], also["oc_terms.weights"])
    assert own_code.edited_meanwhile(code, set()) == {}  # imported before: it uses the version that it had


def test_a_process_keeps_using_the_version_that_it_imported(
    mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker trains several runs: the second one uses the modules that were imported for the first."""
    monkeypatch.delitem(sys.modules, "oc_terms.weights", raising=False)
    importlib.import_module("oc_terms.weights")
    digests: list[str] = []
    for number, text in enumerate(("X = 1\n", "X = 22\n")):
        (mine / "oc_terms/weights.py").write_text(FILES["oc_terms/weights.py"] if number == 0 else text)
        run_dir = tmp_path / str(number)
        run_dir.mkdir()
        recorded(run_dir, mine)
        digests += recorded_code(run_dir)["oc_terms.weights"]
    assert digests[0] == digests[1]
