"""Processes for what a model wrote: no network, no files but Python's own, no secrets, limits on everything.

Bubblewrap (`bwrap`) gives each process namespaces of its own: it sees /usr, this Python and what it is shown, all
read-only, an empty /tmp that vanishes with it, no other process and no network. A filter leaves it the system calls
that Python needs (`seccomp.py`). `prlimit` bounds CPU time, file sizes and processes; the address space is that of the
caller (`pool.py`); what all processes take together is bounded by who waits for them (`watch.py`). When memory is
short the kernel ends them first. When the caller dies, so does everything inside. There is no way around it: where the
sandbox cannot be had, nothing that a model wrote is run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL, SIGXCPU
from typing import Any

from rlvr.task.verify import seccomp

SCRATCH_BYTES = 64 * 2**20  # of /tmp inside
FILE_BYTES = 16 * 2**20  # of one file: of the standard output, too
FILES = 64  # open ones of a process: what their buffers hold is the kernel's memory and in nobody's account
PROCESSES = 64  # and threads
FIRST_UID = 50_000  # as root: each caller's programs get a user of their own, for Linux counts processes by user


@dataclass(frozen=True)
class Sandbox:
    """cpu_s: CPU seconds of a process; None: no limit. shown: files and folders that it may read beside Python's."""

    cpu_s: int | None = None
    shown: tuple[Path, ...] = ()

    def check(self) -> None:
        """Start Python in it and open what is shown. ValueError, with what to install, if that does not work here."""
        seccomp.program()
        missing = [name for name in ("bwrap", "prlimit", "choom", *_become()[:1]) if shutil.which(name) is None]
        if missing:
            raise ValueError(f"What a model writes runs in a sandbox, and {missing[0]} is not installed. {CURE}")
        done = self._try("")
        if done.returncode:
            reason = " ".join(done.stderr.split()) or f"exit status {done.returncode}"
            raise ValueError(f"The sandbox for what a model writes does not start here: {reason}. {CURE}")
        if hidden := self._try(UNREADABLE, *map(str, self.shown)).stdout.splitlines():
            raise ValueError(
                f"{hidden[0]} cannot be read by another user than root, and what a model writes never runs as root. "
                f"Type chmod a+r {hidden[0]}"
            )

    def _try(self, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        with self.popen(["-c", code, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            said, complaint = process.communicate()
        return subprocess.CompletedProcess(process.args, process.returncode, said, complaint)

    def popen(self, arguments: Sequence[str], *, pass_fds: Sequence[int] = (), **options: Any) -> subprocess.Popen[Any]:
        """This Python with these arguments, started inside. options: those of Popen, but for the environment."""
        with in_memory(seccomp.program()) as calls:
            command = self._command(arguments, calls)
            return subprocess.Popen(command, pass_fds=[calls, *pass_fds], env=environment(), **options)

    def _command(self, arguments: Sequence[str], calls: int) -> list[str]:
        """calls: descriptor of the filter of system calls."""
        limits = ["prlimit", f"--fsize={FILE_BYTES}", "--core=0", f"--nofile={FILES}", f"--nproc={PROCESSES}"]
        if self.cpu_s is not None:
            limits.append(f"--cpu={self.cpu_s}:{self.cpu_s + 1}")
        python = [sys.executable, "-s", "-P", "-B", *arguments]
        bubble = [*_bwrap(self.shown), "--seccomp", str(calls)]
        return ["choom", "--adjust", "1000", "--", *bubble, "--", *_become(), *limits, *python]

    @contextmanager
    def start(
        self, script: bytes, *arguments: str, stdin: int, stdout: int, pass_fds: Sequence[int] = ()
    ) -> Iterator[subprocess.Popen[bytes]]:
        """A Python script, running inside; dead on leaving. What it says on standard error is thrown away.

        It must leave our process group (`os.setpgid(0, 0)`) before it runs what a model wrote: kill(0, ...) reaches
        every process of the group, those outside too.
        """
        with in_memory(script) as source:
            process = self.popen(
                [path_of(source), *arguments],
                stdin=stdin,
                stdout=stdout,
                stderr=subprocess.DEVNULL,
                pass_fds=[source, *pass_fds],
                cwd=tempfile.gettempdir(),
            )
            try:
                yield process
            finally:
                process.kill()
                process.wait()


CURE = "Type apt-get install bubblewrap util-linux (bubblewrap 0.7 or newer), and allow user namespaces."
UNREADABLE = "import os, sys\nfor p in sys.argv[1:]:\n    if not os.access(p, os.R_OK): print(p)"


def out_of_time(returncode: int) -> bool:
    """Whether a process inside was killed for its CPU time (or had itself killed so: no verifier's failure)."""
    return returncode in (-SIGXCPU, -SIGKILL, 128 + SIGXCPU, 128 + SIGKILL)


@contextmanager
def in_memory(content: bytes) -> Iterator[int]:
    """Descriptor of a file without a name, at its start."""
    descriptor = os.memfd_create("rlvr")
    try:
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(content)
        os.lseek(descriptor, 0, os.SEEK_SET)
        yield descriptor
    finally:
        os.close(descriptor)


def path_of(descriptor: int) -> str:
    """How a process that inherits a descriptor opens it anew."""
    return f"/proc/self/fd/{descriptor}"


def environment() -> dict[str, str]:
    """Nothing of ours, such as tokens. One thread and one hash seed: the same program gives the same answer."""
    ours = {k: v for k, v in os.environ.items() if k == "LD_LIBRARY_PATH"}
    return {
        **ours,
        "PATH": "/usr/bin:/bin",
        "HOME": "/tmp",
        "LANG": "C.UTF-8",
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }


def _bwrap(shown: Iterable[Path]) -> list[str]:
    namespaces = ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
    command = [shutil.which("bwrap") or "bwrap", *namespaces, "--die-with-parent", "--ro-bind", "/usr", "/usr"]
    if os.geteuid() == 0:  # root keeps what it needs to become somebody else, and loses it by that
        command += ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    for place in map(Path, ("/bin", "/lib", "/lib64", "/sbin")):
        if place.is_symlink():
            command += ["--symlink", str(place.readlink()), str(place)]
        elif place.is_dir():
            command += ["--ro-bind", str(place), str(place)]
    # /tmp first: what is shown may lie there.
    command += ["--perms", "1777", "--size", str(SCRATCH_BYTES), "--tmpfs", "/tmp"]
    visible = [Path("/etc/ld.so.cache"), *_python(), *shown]
    parents = {parent for path in visible for parent in path.parents} - {Path("/"), Path("/tmp")}
    for parent in sorted(parents):  # a parent comes before its children; bwrap's own would be closed to others
        if not parent.is_relative_to("/usr"):
            command += ["--perms", "0755", "--dir", str(parent)]
    for path in visible:
        command += ["--ro-bind-try", str(path), str(path)]
    # No /dev/zero, /dev/shm or terminals: memory that no process holds.
    command += ["--perms", "0755", "--dir", "/dev"]
    for device in ("/dev/null", "/dev/random", "/dev/urandom"):
        command += ["--dev-bind", device, device]
    for name, target in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        command += ["--symlink", f"/proc/self/fd{target}", f"/dev/{name}"]
    # /proc is read-only: nothing inside may raise its priority or lower its oom_score_adj.
    return [*command, "--proc", "/proc", "--remount-ro", "/proc", "--chdir", "/tmp", "--remount-ro", "/"]


def _python() -> list[Path]:
    """What this Python is made of, outside /usr: never a whole prefix, which may be somebody's home.

    Packages of another environment that a .pth file of this one names are a part of it.
    """
    parts = ("bin", "lib", "lib64", "pyvenv.cfg")
    prefixes = dict.fromkeys(Path(p) for p in (sys.prefix, sys.base_prefix, Path(sys.executable).resolve().parents[1]))
    packages = [Path(p) for p in dict.fromkeys(sys.path) if Path(p).name in ("site-packages", "dist-packages")]
    made_of = [*(prefix / part for prefix in prefixes for part in parts), *packages]
    return [path for path in made_of if not path.is_relative_to("/usr")]


def _become() -> list[str]:
    """As root: give up being root, after the namespaces are made."""
    if os.geteuid() != 0:
        return []
    uid = str(FIRST_UID + os.getpid() % 10_000)
    return ["setpriv", "--reuid", uid, "--regid", uid, "--clear-groups", "--inh-caps=-all"]
