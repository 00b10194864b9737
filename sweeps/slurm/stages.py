"""Jobs that build stages: each stage is built once, before the arrays that start from it, for all sweeps.

The queue and the file system decide: for a stage that exists there is nothing to do; for one that a job is building,
runs wait for that job; the others get a job.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from hydra.utils import instantiate

from rlvr.config.nodes import ranks_of_node
from rlvr.ledger import layout
from rlvr.ledger.stages import Stage, record_stages, stages
from rlvr.ledger.sweeps import Ledger
from slurm.client import QueuedTask
from sweeps.slurm import jobs, submissions


class StageJobs:
    """The stage jobs of this home: those in `queue`, and those submitted here."""

    def __init__(self, ledger: Ledger, sweep_id: str, queue: Sequence[QueuedTask], held: int) -> None:
        """held: the submitter's lock, which sbatch inherits."""
        self.ledger, self.sweep_id, self.held = ledger, sweep_id, held
        self.store = layout.stages(ledger.home)
        self.jobs = {stage: task.job for stage, task in submissions.by_kind(ledger, queue, "stage").items()}
        self.fresh: list[str] = []  # ids of the stages whose jobs were submitted by this object
        self._known: dict[str, list[Stage]] = {}

    def needed(self, run_id: str, config: Mapping[str, Any]) -> list[Stage]:
        """The stages that have to be built before this run; all of its stages are recorded beside it."""
        of_run = self._stages(config)
        record_stages(self.ledger.run_dir(run_id), [stage.id for stage in of_run])
        return [stage for stage in of_run if not stage.quick and not (self.store / stage.id).is_dir()]

    def send_missing(self, stages: Sequence[Stage], run_id: str, config: Mapping[str, Any]) -> list[str]:
        """Jobs of these stages, which `needed` returned for a run. Submits those that are missing. Raises QueueFull."""
        waits: list[str] = []
        for stage in stages:
            if stage.id not in self.jobs:
                ranks = ranks_of_stage(config["cluster"], config["rollout"]["engine"]) if stage.shared else 1
                self.jobs[stage.id] = self._send(stage, run_id, config["cluster"], ranks, waits)
                self.fresh.append(stage.id)
            waits.append(self.jobs[stage.id])
        return waits

    def _stages(self, config: Mapping[str, Any]) -> list[Stage]:
        """The stages of a run. Computed once for each setting, as it reads the problems of a task."""
        parts = [config["task"], config["model"], config.get("presample"), config["rollout"]]
        key = json.dumps(parts, sort_keys=True)
        if key not in self._known:
            task = instantiate(config["task"], _convert_="all")
            try:
                self._known[key] = stages(config, task, self.store)
            finally:
                task.close()
        return self._known[key]

    def _send(self, stage: Stage, run_id: str, cluster: Mapping[str, Any], ranks: int, after: Sequence[str]) -> str:
        """Submit the job of a stage. It has a GPU for each rank, if the run has GPUs."""
        stage_cluster = {**cluster, "ranks": ranks, "nodes": 1, "sampling_nodes": 0}
        resources = jobs.resources(
            cluster,
            time_min=cluster["time_min"],
            memory_gb=cluster["memory_gb"],
            gpus=min(ranks, cluster["gpus"]),
            cpus=jobs.cpus(stage_cluster),
        )
        keys = ("ranks", "threads", "retries", "requeues", "time_min", "container")
        about = {key: stage_cluster[key] for key in keys}
        about |= {"stage": stage.id, "source": stage.source, "run": run_id}
        where = self.ledger, self.sweep_id
        return submissions.send(
            *where, "stage", about, resources, held=self.held, count=None, after_ok=after, requeues=cluster["requeues"]
        )


def ranks_of_stage(cluster: Mapping[str, Any], engine: Mapping[str, Any]) -> int:
    """Ranks that sample a run's answers before training: those of one node, rounded down so that each vLLM engine has
    all of its GPUs. (Workers of Ray have GPUs besides those of the ranks; the run has enough of them.)
    """
    of_node = ranks_of_node(cluster)
    of_engine = engine.get("tensor_parallel", 1) if cluster["gpus"] else 1
    return max(of_node // of_engine, 1) * of_engine
