import errno
import hashlib
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlvr.ledger.digests import digests, fault_of, files_of, read_digests, set_aside, write_digests

CONTENT = {"trainer.json": b'{"updates": 3}', "weights/0.bin": bytes(range(256)), "empty": b""}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    directory = tmp_path / "step-00000040"
    for name, content in CONTENT.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(content)
    write_digests(directory)
    return directory


def flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def test_every_file_has_its_sha_256_and_one_wrong_bit_is_named(directory: Path) -> None:
    assert files_of(directory) == ["empty", "trainer.json", "weights/0.bin"]
    assert read_digests(directory) == {name: hashlib.sha256(CONTENT[name]).hexdigest() for name in files_of(directory)}
    assert fault_of(directory) == ""
    for name, bit in (("trainer.json", 0), ("weights/0.bin", 0), ("weights/0.bin", 2047)):
        flip(directory / name, bit)
        assert fault_of(directory) == f"{name} is not as it was written"
        flip(directory / name, bit)
        assert fault_of(directory) == ""


def test_what_is_missing_cut_or_unreadable_is_named(directory: Path) -> None:
    (directory / "weights/0.bin").write_bytes(CONTENT["weights/0.bin"][:-1])
    (directory / "trainer.json").unlink()
    assert fault_of(directory) == "trainer.json is missing, and 1 more"
    (directory / "digests.json").write_text('{"trainer.json": "12')
    assert fault_of(directory) == "digests.json is missing or damaged"
    assert fault_of(directory / "nowhere") == "digests.json is missing or damaged"


def test_digests_that_several_ranks_have_computed_are_used(directory: Path) -> None:
    names = files_of(directory)
    parts = [digests(directory, names[rank::2]) for rank in range(2)]
    assert ([len(part) for part in parts], fault_of(directory, parts[0] | parts[1])) == ([2, 1], "")
    assert fault_of(directory, parts[0]) == "trainer.json is not as it was written"  # its digest was not computed


def test_damaged_directories_are_kept_under_new_names(directory: Path) -> None:
    first = set_aside(directory)
    directory.mkdir()
    second = set_aside(directory)
    assert [first.name, second.name] == ["damaged-step-00000040", "damaged-step-00000040-2"]
    assert json.loads((first / "trainer.json").read_text()) == {"updates": 3}
    assert not directory.exists()


def test_errors_of_an_unreachable_server_are_raised_and_errors_of_a_disk_count_as_damage(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The errors are simulated. EIO is the error of a disk; the others are those of a network file system."""

    def opened(code: int) -> Callable[..., Any]:
        def fail(*_: object) -> Any:
            raise OSError(code, os.strerror(code))

        return fail

    names = files_of(directory)
    for code in (errno.ESTALE, errno.ETIMEDOUT, errno.EACCES, errno.EMFILE):
        with monkeypatch.context() as only_here:
            only_here.setattr(Path, "open", opened(code))
            with pytest.raises(OSError, match=re.escape(os.strerror(code))):
                digests(directory, names)
    monkeypatch.setattr(Path, "open", opened(errno.EIO))
    assert digests(directory, names) == dict.fromkeys(names, "")
