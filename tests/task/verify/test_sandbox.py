"""The sandbox itself: it stands for everybody, or says what is missing; nothing runs without it."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from rlvr.task.verify.sandbox import Sandbox
from tests.support.sandboxed import copy_package, need_sandbox


def output(sandbox: Sandbox, program: str, *arguments: str) -> str:
    """What a program says on both streams."""
    with sandbox.popen(
        ["-c", program, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        return process.communicate()[0]


def test_the_same_program_gives_the_same_answer() -> None:
    need_sandbox()
    program = "print(hash('x'), list({'a', 'b', 'c', 'd'}))"  # both depend on the hash seed
    sandbox = Sandbox(cpu_s=2)
    outputs = {output(sandbox, program) for _ in range(3)}
    assert len(outputs) == 1


def test_a_machine_without_a_sandbox_is_refused_with_the_cure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "prlimit").symlink_to("/usr/bin/prlimit")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match=r"bwrap is not installed. Type apt-get install bubblewrap util-linux"):
        Sandbox().check()
    failing = tmp_path / "bwrap"
    failing.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    failing.chmod(0o755)
    for name in ("setpriv", "choom"):
        (tmp_path / name).symlink_to(f"/usr/bin/{name}")
    with pytest.raises(ValueError, match=r"does not start here: bwrap: No permissions .* allow user namespaces"):
        Sandbox().check()


ORDINARY = """
import subprocess
from rlvr.task.verify import sandbox
FORKS = '''
import os, time
n = 0
try:
    while n < 500:
        if os.fork() == 0: time.sleep(60)
        n += 1
except OSError: pass
print(os.getuid(), n < 100)
'''
tested = sandbox.Sandbox(cpu_s=1)
tested.check()
with tested.popen(["-c", FORKS], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
    print(process.communicate()[0])
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can try as somebody else")
def test_the_sandbox_holds_for_an_ordinary_user() -> None:
    """With a Python that such a user can read: the system's."""
    need_sandbox()
    system = shutil.which("python3", path="/usr/bin:/usr/local/bin")
    if system is None:
        pytest.skip("no Python outside root's home")
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        copy_package(Path(folder))
        done = subprocess.run(
            [system, "-c", ORDINARY],
            user=65534,
            group=65534,
            extra_groups=[],
            cwd=folder,
            capture_output=True,
            text=True,
            env={"PATH": os.environ["PATH"]},
            check=False,
        )
    assert done.stdout.strip() == "65534 True", done.stderr


def test_what_is_shown_can_be_read_and_not_written_and_its_neighbours_are_not_there(tmp_path: Path) -> None:
    need_sandbox()
    shown, hidden = tmp_path / "shown.txt", tmp_path / "hidden.txt"
    for file in (shown, hidden):
        file.write_text("content")
    program = (
        "import sys\nfrom pathlib import Path\nshown, hidden = map(Path, sys.argv[1:])\n"
        "assert shown.read_text() == 'content'\nassert not hidden.exists()\n"
        "try: shown.write_text('x')\nexcept OSError: print('read only')"
    )
    assert output(Sandbox(shown=(shown,)), program, str(shown), str(hidden)) == "read only\n"


def test_packages_of_another_environment_named_here_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_sandbox()
    packages = tmp_path / "site-packages"
    packages.mkdir(mode=0o755)
    (packages / "extra.py").write_text("kept = 7")
    (tmp_path / "beside.py").write_text("")
    monkeypatch.syspath_prepend(str(packages))
    code = f"import os, sys; print(open('{packages}/extra.py').read(), os.listdir('{tmp_path}'))"
    assert output(Sandbox(), code) == "kept = 7 ['site-packages']\n"
