"""requirements.lock (`make lock`) has every package of pyproject.toml, in versions that it allows, with hashes."""

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]


def test_the_lock_has_every_package_in_a_version_that_is_asked_for_and_names_no_place() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    text = (ROOT / "requirements.lock").read_text()
    entries = re.split(r"\n(?=\S)", text.strip())
    assert all("--hash=sha256:" in entry for entry in entries)
    locked = [Requirement(entry.partition("\\")[0].partition("--hash")[0]) for entry in entries]
    versions: dict[str, list[str]] = {}
    for entry in locked:
        versions.setdefault(entry.name, []).append(str(entry.specifier).removeprefix("=="))
    asked = map(Requirement, [*project["dependencies"], *project["optional-dependencies"]["dev"]])
    wrong = [str(r) for r in asked if not all(map(r.specifier.contains, versions.get(r.name, ["missing"])))]

    assert not wrong, f"{wrong}: make lock"
    assert "torch==2.13.0 ; sys_platform == 'none'" in text  # it differs between CPUs and GPUs
    assert not re.search(r"://|@|--(?:index|extra|find)", text)
