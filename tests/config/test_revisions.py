from pathlib import Path

import pytest

from rlvr.config import revisions
from rlvr.config.checks import Checker
from rlvr.config.freeze import frozen_config
from rlvr.records import NotAvailable
from tests.support.composed import REGISTRY, composed, identity
from tests.support.hub_cache import cached
from tests.support.hub_server import COMMIT, serving

pytestmark = pytest.mark.usefixtures("composing")
OLD, NEW = "a" * 40, "b" * 40
HUB = ("model=hf", "model.path=some/model")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty HF_HOME, without a network."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hf" / "hub"))
    revisions.clear_caches()
    return tmp_path / "hf"


def files(folder: Path, content: str) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(content)
    return folder


def model_path(*overrides: str) -> str:
    return frozen_config(*composed(*HUB, *overrides))["model"]["path"]


def test_a_model_is_named_by_the_commit_that_its_branch_is_at(cache: Path, tmp_path: Path) -> None:
    cached(cache, "some/model", files(tmp_path / "old", "1"), OLD)
    before = identity(*HUB)
    assert model_path() == f"some/model@{OLD}"
    cached(cache, "some/model", files(tmp_path / "new", "2"), NEW)
    assert model_path() == f"some/model@{OLD}"  # one launch, one commit
    revisions.clear_caches()
    assert model_path() == f"some/model@{NEW}"
    assert identity(*HUB) != before
    for typed in (f"model.revision={OLD}", f"model.path=some/model@{OLD}"):
        assert model_path(typed) == f"some/model@{OLD}"
        assert identity(*HUB, typed) == before
    reader = frozen_config(*composed(*HUB, "task=math", "task.train=a/b", "task.test=a/b"))["task"]["reader"]
    assert reader["path"] == f"some/model@{NEW}"


def test_data_are_named_by_their_commit_before_config_and_split() -> None:
    config, choices = composed(
        "task=math", "task.train=a/b/main:train", "task.test={x: c/d@v1, y: [e/f:dev]}", f"task.revision={OLD}"
    )
    folder = Path("unused")
    assert not folder.exists()
    revision = {("c/d", "v1"): NEW}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(revisions, "_commit", lambda name, _, typed: revision.get((name, typed), typed))
        task = frozen_config(config, choices)["task"]
    assert task["train"] == f"a/b@{OLD}/main:train"
    assert task["test"] == {"x": f"c/d@{NEW}", "y": [f"e/f@{OLD}:dev"]}
    assert task["revision"] is None


def test_the_hub_is_asked_first(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = files(tmp_path / "old", "1")
    cached(cache, "some/model", folder, OLD)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    with serving({"models/some/model": folder, "datasets/some/data": folder}) as address:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
        assert model_path() == f"some/model@{COMMIT}"
        assert revisions.pinned("some/data:test", "dataset", "v1") == f"some/data@{COMMIT}:test"
        assert revisions.pinned("some/other", "model", None) == "some/other"


def test_files_and_directories_are_no_names_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    files(tmp_path / "some", "{}")
    files(tmp_path / "some" / "model", "{}")
    assert model_path() == str(tmp_path / "some" / "model")
    with pytest.raises(ValueError, match=f"model.revision=v1 has no effect: model.path={tmp_path}/some/model is no"):
        model_path("model.revision=v1")
    (tmp_path / "x.jsonl").write_text('{"problem": "1", "answer": "1"}\n')
    data = ("task=math", "task.train=x.jsonl", "task.test=x.jsonl")
    assert identity(*data) == identity(*data, "task.revision=null")
    with pytest.raises(ValueError, match="task.revision=v1 has no effect: task.train and task.test name files"):
        identity(*data, "task.revision=v1")


def test_what_has_no_commit_is_not_launched() -> None:
    checker = Checker(REGISTRY)
    run = composed(*HUB, "task=sums")
    with pytest.raises(NotAvailable, match=r"some/model: which commit .* or pass model.revision=COMMIT"):
        checker.check_task(*run)
    Checker(REGISTRY, dry_run=True).check_task(*run)
    checker.check_task(*composed(*HUB, f"model.revision={OLD}", "task=sums"))
