"""The configuration files of the local cluster, as text."""

from __future__ import annotations

import json
import secrets
import socket
from dataclasses import asdict, dataclass
from pathlib import Path

FIRST_PORT, LAST_PORT = 17000, 19000


@dataclass(frozen=True)
class Settings:
    """One cluster. All its files are under `root`, a short absolute path (that of a socket has at most 107 bytes)."""

    root: Path
    base_port: int
    nodes: int = 4
    cpus: int = 4  # per node; virtual, in sum more than the machine may have
    gpus: int = 2  # per node; fake
    memory_mb: int = 16000  # per node; declared, whatever the machine has
    grace_s: int = 20  # between SIGTERM and SIGKILL of a preempted job

    @property
    def controller_port(self) -> int:
        return self.base_port

    @property
    def accounting_port(self) -> int:
        return self.base_port + 1

    @property
    def node_names(self) -> list[str]:
        return [f"n{k}" for k in range(1, self.nodes + 1)]

    def node_port(self, name: str) -> int:
        return self.base_port + 10 + int(name[1:])

    @property
    def conf(self) -> Path:
        return self.root / "slurm.conf"

    @property
    def socket(self) -> Path:
        return self.root / "munge.sock"

    @property
    def database(self) -> Path:
        return self.root / "database"

    @property
    def database_socket(self) -> Path:
        return self.database / "db.sock"

    def write(self) -> None:
        """Write all files. Those with the password, which is new each time, are readable by their owner alone."""
        host, password = socket.gethostname(), secrets.token_hex(32)
        (self.root / "slurm.conf").write_text(slurm_conf(self, host))
        (self.root / "gres.conf").write_text(gres_conf(self))
        for name, text in (
            ("slurmdbd.conf", slurmdbd_conf(self, host, password)),
            ("database.sql", database_sql(password)),
        ):
            (self.root / name).unlink(missing_ok=True)
            (self.root / name).touch(mode=0o600)
            (self.root / name).write_text(text)
        state = {**asdict(self), "root": str(self.root)}
        (self.root / "cluster.json").write_text(json.dumps(state) + "\n")

    @classmethod
    def read(cls, root: Path) -> Settings | None:
        """The settings of the cluster in `root`; None if there is none."""
        try:
            state = json.loads((root / "cluster.json").read_text())
        except (FileNotFoundError, ValueError):
            return None
        return cls(**{**state, "root": Path(state["root"])})


def free_base_port(count: int) -> int:
    """First port of a block of free ports. Each is tried: an old slurmd on it would serve an old configuration."""
    for base in range(FIRST_PORT, LAST_PORT, 20):
        if all(_is_free(base + k) for k in range(count)):
            return base
    raise ValueError(f"no {count} free ports in a row between {FIRST_PORT} and {LAST_PORT}")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def slurm_conf(cluster: Settings, host: str) -> str:
    root = cluster.root
    return f"""\
ClusterName=rlvr
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={cluster.controller_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={cluster.socket},cred_expire=5
CredType=cred/munge
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool/%n
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/%n.pid
SlurmctldLogFile={root}/log/slurmctld.log
SlurmdLogFile={root}/log/%n.log
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
DefMemPerCPU=500
SlurmdParameters=config_overrides
GresTypes=gpu
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
SlurmctldTimeout=30
SlurmdTimeout=15
KillWait=5
MinJobAge=300
ReturnToService=2
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=2,sched_interval=2,sched_min_interval=0,batch_sched_delay=0
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=2
JobAcctGatherParams=OverMemoryKill
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={cluster.accounting_port}
AccountingStorageTRES=gres/gpu
AccountingStorageEnforce=associations,limits,qos
AccountingStoragePass={cluster.socket}
{_nodes(cluster, host)}{_partitions(cluster)}"""


def _nodes(cluster: Settings, host: str) -> str:
    return "".join(
        f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={cluster.node_port(name)} "
        f"CPUs={cluster.cpus} RealMemory={cluster.memory_mb} Gres=gpu:{cluster.gpus} State=UNKNOWN\n"
        for name in cluster.node_names
    )


def _partitions(cluster: Settings) -> str:
    """`urgent` preempts `main` and `preemptible`; `main` preempts `preemptible`. Preempted jobs first get SIGTERM."""
    lines, all_nodes = "", ",".join(cluster.node_names)
    for name, tier, options in (
        ("main", 5, f"Default=YES PreemptMode=REQUEUE GraceTime={cluster.grace_s}"),
        ("preemptible", 1, f"PreemptMode=REQUEUE GraceTime={cluster.grace_s}"),
        ("urgent", 9, "PreemptMode=OFF"),
    ):
        lines += (
            f"PartitionName={name} Nodes={all_nodes} PriorityTier={tier} DefaultTime=60 MaxTime=INFINITE State=UP "
            f"{options}\n"
        )
    return lines


def gres_conf(cluster: Settings) -> str:
    """The fake GPUs. They need device files: with a count alone the node is drained."""
    last = cluster.gpus - 1
    return "".join(
        f"NodeName={name} Name=gpu File={cluster.root}/dev/{name}-gpu[0-{last}]\n" for name in cluster.node_names
    )


def slurmdbd_conf(cluster: Settings, host: str, password: str) -> str:
    """StorageHost=localhost means the socket that `processes.start` sets in the environment: there is no port."""
    return f"""\
DbdHost={host}
DbdAddr=127.0.0.1
DbdPort={cluster.accounting_port}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={cluster.socket}
PidFile={cluster.root}/slurmdbd.pid
LogFile={cluster.root}/log/slurmdbd.log
CommunicationParameters=NoInAddrAny
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=slurm
StoragePass={password}
StorageLoc=slurm_acct_db
"""


def database_sql(password: str) -> str:
    """SQL that is run at each start of the database, which contains only the history of this cluster."""
    return (
        "CREATE DATABASE IF NOT EXISTS slurm_acct_db;\n"
        "CREATE USER IF NOT EXISTS 'slurm'@'localhost';\n"
        f"ALTER USER 'slurm'@'localhost' IDENTIFIED BY '{password}';\n"
        "GRANT ALL ON slurm_acct_db.* TO 'slurm'@'localhost';\n"
    )
