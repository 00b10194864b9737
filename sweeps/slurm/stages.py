"""Stages as jobs of their own: each is built once, before the arrays that start from it, for all sweeps.

Asked of the queue and the file system, like all else: a stage that stands is depended on by nobody, one that a job is
building is waited for, and the rest get a job.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from hydra.utils import instantiate

from rlvr.ledger import layout
from rlvr.ledger.files import write_text
from rlvr.ledger.stages import Stage, record_stages, stages
from rlvr.ledger.sweeps import Ledger
from slurm.client import Task
from slurm.submit import hand_in, script
from sweeps.slurm import jobs, submissions


class StageJobs:
    """The stage jobs of this home: those in `queue`, and those submitted here."""

    def __init__(self, ledger: Ledger, sweep_id: str, queue: Sequence[Task], held: int) -> None:
        """held: the submitter's lock, which sbatch inherits."""
        self.ledger, self.sweep_id, self.held = ledger, sweep_id, held
        self.store = layout.stages(ledger.home)
        self.jobs = {stage: task.job for stage, task in submissions.by_word(ledger, queue, "stage").items()}
        self.fresh: list[str] = []  # ids of stages submitted here
        self._known: dict[str, list[Stage]] = {}

    def before(self, run_id: str, config: Mapping[str, Any]) -> list[str]:
        """Jobs that must have succeeded before this run can start; submitted if need be."""
        needed = self._stages(config)
        record_stages(self.ledger.run_dir(run_id), [stage.id for stage in needed])
        waits: list[str] = []
        for stage in needed:
            if stage.quick or (self.store / stage.id).is_dir():
                continue
            if stage.id not in self.jobs:
                ranks = ranks_of_stage(config["cluster"], config["rollout"]["engine"]) if stage.shared else 1
                self.jobs[stage.id] = self._send(stage, run_id, config["cluster"], ranks, waits)
                self.fresh.append(stage.id)
            waits.append(self.jobs[stage.id])
        return waits

    def _stages(self, config: Mapping[str, Any]) -> list[Stage]:
        """Of each setting only once: the problems of a task are read for it."""
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
        """Recorded before sbatch, numbered after it, as an array is. As many GPUs as ranks, if the run has GPUs."""
        here = {**cluster, "ranks": ranks, "nodes": 1, "sampling_nodes": 0}
        asked = jobs.resources(
            cluster,
            time_min=cluster["time_min"],
            memory_gb=cluster["memory_gb"],
            gpus=min(here["ranks"], cluster["gpus"]),
            cpus=jobs.cpus(here),
        )
        about = {key: here[key] for key in ("ranks", "threads", "retries", "requeues", "time_min", "container")}
        about |= {"stage": stage.id, "source": stage.source, "run": run_id}
        target = submissions.record(self.ledger, self.sweep_id, [], about)
        text = script(
            jobs.command("sweeps.slurm.job_of_stage", target),
            asked,
            name=submissions.job_name(target),
            folder=target,
            log=layout.job_log(target, submissions.STAGE).name,
            count=None,
            after_ok=after,
        )
        path = layout.script(target, submissions.STAGE)
        write_text(path, text, private=True)
        job = hand_in(path, asked, keep_open=[self.held])
        submissions.record_job(target, job)
        return job


def ranks_of_stage(cluster: Mapping[str, Any], engine: Mapping[str, Any]) -> int:
    """Ranks that sample a run's answers before training: those of one of its nodes, so many that each vLLM has all of
    its GPUs. (Workers of Ray have GPUs beside the ranks', of which the run has enough.)
    """
    of_node = cluster["ranks"] // (cluster["nodes"] - cluster["sampling_nodes"])
    of_engine = engine.get("tensor_parallel", 1) if cluster["gpus"] else 1
    return max(of_node // of_engine, 1) * of_engine
