"""The Debian packages that the local cluster is made of, and how to come by them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

PACKAGES = ("slurmctld", "slurmd", "slurm-client", "munge", "slurmdbd", "mariadb-server")
PROGRAMS = ("munged", "mariadbd", "mariadb-install-db", "slurmdbd", "slurmctld", "slurmd", "sacctmgr", "sbatch", "srun")
# Where Debian puts daemons; a user's PATH may lack it.
SEARCH = os.pathsep.join((os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/bin", "/bin"))


def program(name: str) -> str:
    """Path of an installed program. ValueError if it is missing."""
    found = shutil.which(name, path=SEARCH)
    if found is None:
        raise ValueError(f"{name} is not installed. As root on Debian: apt-get install {' '.join(PACKAGES)}")
    return found


def missing() -> list[str]:
    return [name for name in PROGRAMS if shutil.which(name, path=SEARCH) is None]


def obstacle() -> str:
    """Why this machine cannot run the local cluster; "" if it can (packages may still have to be installed)."""
    if os.geteuid() != 0:
        return "the local cluster needs root: several daemons, device nodes, jobs as any user"
    if missing() and (not Path("/etc/debian_version").exists() or shutil.which("apt-get") is None):
        return f"{', '.join(missing())} not found, and only Debian's packages can be installed from here"
    return ""


def install(log: Path) -> None:
    """Install what is missing, about a minute. ValueError with the way out if that fails."""
    if not missing():
        return
    if why := obstacle():
        raise ValueError(why)
    print(f"Installing {', '.join(PACKAGES)} (about a minute; log: {log})", flush=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", *PACKAGES]):
        with log.open("ab") as file:
            done = subprocess.run(["apt-get", *command], env=environment, stdout=file, stderr=file, check=False)
        if done.returncode:
            raise ValueError(f"apt-get {command[0]} failed with code {done.returncode}: see {log}")
