"""Processes for code written by a model: no network, no files but Python's own, no secrets, limits on everything.

Bubblewrap (`bwrap`) starts each process in new namespaces: visible are /usr, this Python and the `shown` paths, all
read-only, and an empty /tmp that is deleted with the sandbox, but no other process and no network. A filter allows only
the system calls that Python needs (`seccomp.py`). `prlimit` bounds CPU time, file sizes and the number of processes;
the limit of the address space is that of the caller (`pool.py`); the total of all processes is bounded by the process
that waits for them (`watch.py`). When memory is short the kernel kills them first. When the caller ends, so does
everything inside. There is no fallback: where the sandbox does not work, no code of a model is run.
"""

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

SCRATCH_BYTES = 64 * 2**20  # size of /tmp inside
FILE_BYTES = 16 * 2**20  # largest file, the standard output included
FILES = 64  # open files of a process: their buffers are kernel memory, which no process's usage includes
PROCESSES = 64  # processes and threads
FIRST_UID = 50_000  # as root: each caller's programs run as a separate user, because Linux counts processes per user


@dataclass(frozen=True)
class Sandbox:
    """cpu_s: CPU seconds of a process; None: no limit. shown: files and folders readable in addition to Python's."""

    cpu_s: int | None = None
    shown: tuple[Path, ...] = ()

    def check(self) -> None:
        """Start Python in the sandbox and open the `shown` paths. Raises ValueError, with a remedy, if that fails."""
        seccomp.program()
        missing = [name for name in ("bwrap", "prlimit", "choom", *_drop_root()[:1]) if shutil.which(name) is None]
        if missing:
            raise ValueError(f"What a model writes runs in a sandbox, and {missing[0]} is not installed. {CURE}")
        trial = self._try("")
        if trial.returncode:
            reason = " ".join(trial.stderr.split()) or f"exit status {trial.returncode}"
            raise ValueError(f"The sandbox for what a model writes does not start here: {reason}. {CURE}")
        if hidden := self._try(UNREADABLE, *map(str, self.shown)).stdout.splitlines():
            raise ValueError(
                f"{hidden[0]} cannot be read by another user than root, and what a model writes never runs as root. "
                f"Type chmod a+r {hidden[0]}"
            )

    def _try(self, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        with self.popen(["-c", code, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            stdout, stderr = process.communicate()
        return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)

    def popen(self, arguments: Sequence[str], *, pass_fds: Sequence[int] = (), **options: Any) -> subprocess.Popen[Any]:
        """Start this Python with these arguments inside the sandbox. options: those of Popen except `env`."""
        with in_memory(seccomp.program()) as calls:
            command = self._command(arguments, calls)
            return subprocess.Popen(command, pass_fds=[calls, *pass_fds], env=environment(), **options)

    def _command(self, arguments: Sequence[str], calls: int) -> list[str]:
        """The command line. calls: descriptor of the filter of system calls."""
        limits = ["prlimit", f"--fsize={FILE_BYTES}", "--core=0", f"--nofile={FILES}", f"--nproc={PROCESSES}"]
        if self.cpu_s is not None:
            limits.append(f"--cpu={self.cpu_s}:{self.cpu_s + 1}")
        python = [sys.executable, "-s", "-P", "-B", *arguments]
        bubblewrap = [*_bwrap(self.shown), "--seccomp", str(calls)]
        return ["choom", "--adjust", "1000", "--", *bubblewrap, "--", *_drop_root(), *limits, *python]

    @contextmanager
    def start(
        self, script: bytes, *arguments: str, stdin: int, stdout: int, pass_fds: Sequence[int] = ()
    ) -> Iterator[subprocess.Popen[bytes]]:
        """Run a Python script inside; it is killed when the context ends. Its standard error is discarded.

        The script must leave this process group (`os.setpgid(0, 0)`) before it runs a model's code: kill(0, ...)
        reaches every process of the group, including those outside.
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
    """Whether a process inside was killed at its CPU limit, or killed itself with the same signal: its own fault."""
    return returncode in (-SIGXCPU, -SIGKILL, 128 + SIGXCPU, 128 + SIGKILL)


@contextmanager
def in_memory(content: bytes) -> Iterator[int]:
    """Descriptor of an unnamed file in memory with this content, positioned at its start."""
    descriptor = os.memfd_create("rlvr")
    try:
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(content)
        os.lseek(descriptor, 0, os.SEEK_SET)
        yield descriptor
    finally:
        os.close(descriptor)


def path_of(descriptor: int) -> str:
    """The path under which a process opens a file again whose descriptor it has inherited."""
    return f"/proc/self/fd/{descriptor}"


def environment() -> dict[str, str]:
    """The environment inside: none of this process's variables (such as tokens) but LD_LIBRARY_PATH.

    One thread and one hash seed, so that the same program gives the same answer.
    """
    kept = {name: value for name, value in os.environ.items() if name == "LD_LIBRARY_PATH"}
    one = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    return {**kept, "PATH": "/usr/bin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8", **one}


def _bwrap(shown: Iterable[Path]) -> list[str]:
    namespaces = ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
    command = [shutil.which("bwrap") or "bwrap", *namespaces, "--die-with-parent", "--ro-bind", "/usr", "/usr"]
    if os.geteuid() == 0:  # root keeps the capabilities to change its user, and loses them by the change
        command += ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    for path in map(Path, ("/bin", "/lib", "/lib64", "/sbin")):
        if path.is_symlink():
            command += ["--symlink", str(path.readlink()), str(path)]
        elif path.is_dir():
            command += ["--ro-bind", str(path), str(path)]
    # /tmp first: the shown paths may be below it.
    command += ["--perms", "1777", "--size", str(SCRATCH_BYTES), "--tmpfs", "/tmp"]
    visible = [Path("/etc/ld.so.cache"), *_python(), *shown]
    parents = {parent for path in visible for parent in path.parents} - {Path("/"), Path("/tmp")}
    for parent in sorted(parents):  # parents first; those that bwrap creates itself are closed to other users
        if not parent.is_relative_to("/usr"):
            command += ["--perms", "0755", "--dir", str(parent)]
    for path in visible:
        command += ["--ro-bind-try", str(path), str(path)]
    # No /dev/zero, /dev/shm or terminals: their memory is not part of any process's usage.
    command += ["--perms", "0755", "--dir", "/dev"]
    for device in ("/dev/null", "/dev/random", "/dev/urandom"):
        command += ["--dev-bind", device, device]
    for name, target in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        command += ["--symlink", f"/proc/self/fd{target}", f"/dev/{name}"]
    # /proc is read-only: nothing inside may raise its priority or lower its oom_score_adj.
    return [*command, "--proc", "/proc", "--remount-ro", "/proc", "--chdir", "/tmp", "--remount-ro", "/"]


def _python() -> list[Path]:
    """The files and folders of this Python outside /usr: never an entire prefix, which may be a home directory.

    Includes packages of another environment that a .pth file of this one names.
    """
    parts = ("bin", "lib", "lib64", "pyvenv.cfg")
    prefixes = dict.fromkeys(Path(p) for p in (sys.prefix, sys.base_prefix, Path(sys.executable).resolve().parents[1]))
    packages = [Path(p) for p in dict.fromkeys(sys.path) if Path(p).name in ("site-packages", "dist-packages")]
    paths = [*(prefix / part for prefix in prefixes for part in parts), *packages]
    return [path for path in paths if not path.is_relative_to("/usr")]


def _drop_root() -> list[str]:
    """If this process is root: the command that changes to another user, after the namespaces were created."""
    if os.geteuid() != 0:
        return []
    uid = str(FIRST_UID + os.getpid() % 10_000)
    return ["setpriv", "--reuid", uid, "--regid", uid, "--clear-groups", "--inh-caps=-all"]
