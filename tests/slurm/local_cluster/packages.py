"""The Debian packages of the local cluster, and their installation."""

import os
import shutil
import subprocess
from pathlib import Path

PACKAGES = ("slurmctld", "slurmd", "slurm-client", "munge", "slurmdbd", "mariadb-server")
PROGRAMS = ("munged", "mariadbd", "mariadb-install-db", "slurmdbd", "slurmctld", "slurmd", "sacctmgr", "sbatch", "srun")
# With the directories of daemons in Debian, which may be missing in a user's PATH.
SEARCH = os.pathsep.join((os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/bin", "/bin"))


def program(name: str) -> str:
    """Path of an installed program. ValueError if it is missing."""
    path = shutil.which(name, path=SEARCH)
    if path is None:
        raise ValueError(f"{name} is not installed. As root on Debian: apt-get install {' '.join(PACKAGES)}")
    return path


def missing() -> list[str]:
    return [name for name in PROGRAMS if shutil.which(name, path=SEARCH) is None]


def obstacle() -> str:
    """Why this machine cannot run the local cluster; "" if it can (packages may still have to be installed)."""
    if os.geteuid() != 0:
        return "the local cluster needs root: several daemons, device nodes, jobs as any user"
    if missing() and (not Path("/etc/debian_version").exists() or shutil.which("apt-get") is None):
        return f"{', '.join(missing())} not found, and only Debian's packages can be installed by this command"
    return ""


def install(log: Path) -> None:
    """Install the missing packages, which takes about a minute. ValueError if that fails."""
    if not missing():
        return
    if why := obstacle():
        raise ValueError(why)
    print(f"Installing {', '.join(PACKAGES)} (about a minute; log: {log})", flush=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", *PACKAGES]):
        with log.open("ab") as file:
            process = subprocess.run(["apt-get", *command], env=environment, stdout=file, stderr=file, check=False)
        if process.returncode:
            raise ValueError(f"apt-get {command[0]} failed with code {process.returncode}: see {log}")
