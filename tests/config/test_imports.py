import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlvr.config import imports

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _path() -> Iterator[None]:
    """sys.path and what was imported from it, as they were. In a test without another checkout of this project, whose
    path comes with an environment that both use."""
    path, modules = list(sys.path), set(sys.modules)
    sys.path[:] = [entry for entry in path if not is_another_checkout(Path(entry))]
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def is_another_checkout(entry: Path) -> bool:
    return (entry / "rlvr/config").is_dir() and entry.resolve() != ROOT


def module(folder: Path, name: str, text: str = "") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.py").write_text(text)
    return folder


# --- processes


def in_a_child(code: str, cwd: Path, environment: dict[str, str]) -> str:
    command = imports.python_command("-c", code)
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_a_child_finds_this_checkout_and_not_its_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("slurm", "analysis", "rlvr"):
        module(tmp_path, name, "raise SystemExit('somebody else')")
    monkeypatch.setenv("PYTHONPATH", f"/nowhere{os.pathsep}{tmp_path}")  # theirs comes after ours
    code = "import slurm, analysis, rlvr; print(slurm.__file__); print(analysis.__file__); print(rlvr.__file__)"
    origins = in_a_child(code, tmp_path, imports.child_environment()).splitlines()
    assert origins == [str(ROOT / name / "__init__.py") for name in ("slurm", "analysis", "rlvr")]
    grandchild = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import sys; print(sys.path[0])'])"
    assert in_a_child(grandchild, tmp_path, imports.child_environment()) == str(ROOT)


def test_a_foreign_package_in_the_working_directory_is_named_in_one_line(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "RLVR_HOME": str(tmp_path)}
    for name, words in (("slurm", "rlvr.run --help"), ("slurm", "rlvr status"), ("rlvr", "analysis")):
        folder = module(tmp_path / name, name, "raise RuntimeError" if name == "slurm" else "")
        run = [sys.executable, "-m", *words.split()]
        done = subprocess.run(run, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 2
        (line,) = done.stderr.splitlines()
        assert f"`import {name}` finds {folder}/{name}.py, not {ROOT}/{name}. Rename that file" in line


# --- the user's own code


def test_packages_of_python_and_of_this_project_need_no_path() -> None:
    assert imports.import_paths({"rlvr", "sweeps", "json", "torch", "time"}) == ()


def test_the_users_own_directories_are_named_in_the_order_of_the_path(tmp_path: Path) -> None:
    first, second, third = (module(tmp_path / name, f"of_{name}") for name in ("first", "second", "third"))
    imports.add_import_paths([str(first), str(second)])
    sys.path.insert(0, str(third))
    assert imports.import_paths({"rlvr", "of_second"}) == tuple(map(str, (third, first, second)))
    assert imports.import_paths({"rlvr"}) == ()


def test_a_module_that_hides_the_users_is_refused(tmp_path: Path) -> None:
    """`random.py` in a config directory: Python's own comes first."""
    imports.add_import_paths([str(module(tmp_path / "mine", "random"))])
    with pytest.raises(ValueError, match=r"`import random` finds \S+random\.py, which hides random in \S+mine"):
        imports.import_paths({"random"})
    imports.add_import_paths([str(module(tmp_path / "mine", "time"))])
    with pytest.raises(ValueError, match="`import time` finds built-in, which hides time"):
        imports.import_paths({"time"})


def test_a_module_is_found_without_importing_its_parents(tmp_path: Path) -> None:
    (tmp_path / "outer").mkdir()
    module(tmp_path / "outer", "__init__", "raise RuntimeError")
    module(tmp_path / "outer", "inner")
    imports.add_import_paths([str(tmp_path)])
    spec = imports.find_spec("outer.inner")
    assert spec is not None
    assert spec.origin == str(tmp_path / "outer/inner.py")
    assert imports.find_spec("outer.nothing") is None
    assert imports.find_spec("outer.inner.deeper") is None
    assert imports.find_spec("__main__.x") is None
