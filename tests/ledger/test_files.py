import errno
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rlvr.ledger import files

ROOT = Path(files.__file__).parents[2]


def test_a_missing_or_torn_json_file_reads_as_none_and_a_rewrite_leaves_one_whole_file(tmp_path: Path) -> None:
    assert files.read_json(tmp_path / "a.json") is None
    for content in (b"", b'{"step": 1', b"[1]", b"\xff\xfe"):
        (tmp_path / "a.json").write_bytes(content)
        assert files.read_json(tmp_path / "a.json") is None, content
    for value in (1, 2):
        files.write_json(tmp_path / "a.json", {"value": value})
    assert files.read_json(tmp_path / "a.json") == {"value": 2}
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_a_file_and_then_its_name_are_forced_to_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each sync with whether the file has its name: without that of the directory a power cut would lose it."""
    synced: list[tuple[int, bool]] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append((os.fstat(fd).st_ino, (tmp_path / "a.json").exists())))
    files.write_json(tmp_path / "a.json", {})
    assert synced == [((tmp_path / "a.json").stat().st_ino, False), (tmp_path.stat().st_ino, True)]
    files.write_json(tmp_path / "b.json", {}, durable=False)
    assert len(synced) == 2


def test_an_error_while_writing_leaves_what_was_there_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("before")

    def write_half(name: str, *, directory: bool) -> None:
        with files.write_atomically(tmp_path / name) as aside:
            aside.mkdir() if directory else aside.write_text("half")
            raise RuntimeError

    for name, directory in (("a", False), ("b", True)):
        with pytest.raises(RuntimeError):
            write_half(name, directory=directory)
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {"a": "before"}


def test_a_directory_takes_the_place_of_another_unless_it_is_to_be_new(tmp_path: Path) -> None:
    def write(content: str, *, new: bool) -> None:
        with files.write_atomically(tmp_path / "d", new=new) as aside:
            aside.mkdir()
            (aside / content).touch()

    write("first", new=True)
    write("second", new=False)
    with pytest.raises(FileExistsError):
        write("third", new=True)
    assert [str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*")] == ["d", "d/second"]


def test_a_directory_that_cannot_be_replaced_is_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file server fails between the two renames."""
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "first").touch()
    rename = Path.rename

    def fail_once_moved_aside(path: Path, target: Path) -> Path:
        if path.name.startswith(".d.") and not (path / "first").exists():
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return rename(path, target)

    def write() -> None:
        with files.write_atomically(tmp_path / "d") as aside:
            aside.mkdir()
            (aside / "second").touch()

    monkeypatch.setattr(Path, "rename", fail_once_moved_aside)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        write()
    monkeypatch.undo()
    assert [str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*")] == ["d", "d/first"]


def test_a_temporary_path_names_its_process_and_is_hidden(tmp_path: Path) -> None:
    with files.write_atomically(tmp_path / "metrics.v2.json") as aside:
        assert (aside.parent, aside.name[0], files.owner_of(aside)) == (tmp_path, ".", os.getpid())
        aside.touch()
    assert files.owner_of(files.temporary_path(tmp_path / "step-00000080")) is None  # it has no owner but a lock
    assert files.temporary_path(tmp_path / "step-00000080").name == ".step-00000080.tmp"
    for name in ("run.json", "grpo-eta0.5-s0", ".hidden", "v1.2"):  # messages show the final name
        with files.write_atomically(tmp_path / name) as aside:
            aside.touch()
            assert files.final_path(aside) == tmp_path / name
        assert files.final_path(files.temporary_path(tmp_path / name)) == tmp_path / name
        assert files.final_path(tmp_path / name) == tmp_path / name


WRITER = """
import sys
from pathlib import Path
from rlvr.ledger.files import write_text
while True:
    for letter in "ab":
        write_text(Path(sys.argv[1]), letter * 2_000_000, durable=False)
"""


def test_kill_9_of_a_writer_leaves_a_whole_file_and_at_most_one_aside(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for _ in range(4):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], cwd=ROOT)
        deadline = time.monotonic() + 20
        while not path.exists():
            assert time.monotonic() < deadline
        seen = {path.read_text() for _ in range(40)}
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        assert {*seen, path.read_text()} <= {"a" * 2_000_000, "b" * 2_000_000}
        left = [p for p in tmp_path.iterdir() if p != path]
        assert [files.owner_of(p) for p in left] in ([], [writer.pid])
        for path_left in left:
            files.remove(path_left)


def test_lines_that_are_no_objects_or_lack_the_key_are_named_and_the_others_read(tmp_path: Path) -> None:
    text = '{"id": "a"}\n{"id": "b\n\n[1]\n{"name": "c"}\n{"id": "d"}\n{"id": "e"'
    (tmp_path / "m.jsonl").write_text(text)
    objects, damaged = files.read_json_lines(tmp_path / "m.jsonl", "id")
    assert objects == [{"id": "a"}, {"id": "d"}]
    assert damaged == ["line 2 is damaged", "line 4 is damaged", "line 5 is damaged", "line 7 is torn"]
    assert files.read_json_lines(tmp_path / "none", "id") == ([], [])


@pytest.mark.parametrize(("stale", "is_read"), [(0, True), (1, True), (2, False)])
def test_a_file_that_its_server_has_replaced_is_read_once_more(
    stale: int, is_read: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Simulates NFS: the first reads raise the error of its client."""
    path, read_bytes, num_reads = tmp_path / "a.json", Path.read_bytes, 0
    path.write_text('{"id": 1}\n')

    def of_a_server(self: Path) -> bytes:
        nonlocal num_reads
        num_reads += 1
        if num_reads <= stale:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(self))
        return read_bytes(self)

    monkeypatch.setattr(Path, "read_bytes", of_a_server)
    for read, content in ((files.read_json, {"id": 1}), (lambda p: files.read_json_lines(p, "id"), ([{"id": 1}], []))):
        num_reads = 0
        if is_read:
            assert read(path) == content
        else:
            with pytest.raises(OSError, match="[Ss]tale"):
                read(path)


def test_what_a_library_writes_for_its_user_alone_is_the_groups_in_a_shared_home(tmp_path, monkeypatch) -> None:
    """As safetensors does: its files are 0600 whatever the umask."""
    for shared, mode in (("", 0o600), ("1", 0o660)):
        monkeypatch.setenv("RLVR_SHARED", shared)
        with files.write_atomically(tmp_path / f"stage{shared}") as aside:
            aside.mkdir()
            (aside / "model.safetensors").touch(mode=0o600)
            (aside / "of others").symlink_to(tmp_path / "original")
            (tmp_path / "original").touch(mode=0o600)
        assert stat.S_IMODE((tmp_path / f"stage{shared}" / "model.safetensors").stat().st_mode) == mode
        assert stat.S_IMODE((tmp_path / "original").stat().st_mode) == 0o600


def test_only_the_owner_may_read_private_files(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        files.write_json(tmp_path / "run.json", {"a": 1}, private=True)
        files.write_text(tmp_path / "run.json", "again", private=True)
        files.write_text(tmp_path / "journal", "b")
    finally:
        os.umask(before)
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("run.json", "journal")] == [0o600, 0o644]
