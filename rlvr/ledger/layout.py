"""Where everything lies: the one module that knows a path or the name of a file.

    $RLVR_HOME, the checkout, or the current directory
        mlflow.db  mlartifacts/       MLflow's store, where no server is named
        reports/<study>/              tables, figures, page
        reports/.cache/               what analysis parsed before; safe to delete
        tracking/                     the server of `make tracking-up`
        runs/
            mlflow.lock               held by the pass that ships
            sync.log                  what the last one in the background said
            <run_id>/
                run.json config.yaml  where it comes from; the frozen config
                lock                  held by the attempt at work
                attempts/<N>/         job.json heartbeat.json exit.json rank-<R>.json prune.json log.txt
                metrics.jsonl         the journal
                mlflow.json           how much of that is in MLflow
                stages.json           what it starts from
                inputs.json           hashes of the data that it reads; own_code.json: of components of its user
                checkpoints/step-<S>/ trainer.json, beside tensors
                samples/              test-<S>.parquet policy-<S>.parquet
                rollouts/             step-<S>.parquet
                diversity/            problems.parquet embeddings-<model>.parquet, of `rlvr.diagnostics.diversity`
            sweeps/<sweep_id>/        sweep.json manifest.jsonl mlflow.json waves.json, logs; of a search its study
                lock lock-1 ...       each held by a launch at work on this machine
                cancelled.json        its jobs do not go on with it
                planned.jsonl         of a sweep that grows: every run that it may come to; deciding.lock
            stages/<stage_id>/        stage.json, beside what was built; <stage_id>.lock
            evaluations/<set_id>/     set.json, <SHA-256>.parquet: samples that several evaluations share
            judgements.jsonl          what judges of diversity have said
            submissions/<token>/      submission.json job.json end.json end_<run_id>.json, scripts and logs; lock
            replay/                   stages of `python -m rlvr.diagnostics.replay`

What is half-written lies beside its place as `.<name>.<owner>.tmp` (rlvr/ledger/files.py).
"""

from __future__ import annotations

import os
import re
from pathlib import Path

BUNDLE = ".rlvr"  # what the name of a study as one file ends with (analysis/frames/bundle.py)
_ROOT = Path(__file__).resolve().parents[2]


def home() -> Path:
    """The directory of `runs/`, `mlflow.db` and `reports/`: $RLVR_HOME, else the checkout, else where you are.

    ValueError for a RLVR_HOME that is no directory. It need not exist yet.
    """
    if chosen := os.environ.get("RLVR_HOME"):
        directory = Path(chosen).expanduser().resolve()
        if directory.exists() and not directory.is_dir():
            raise ValueError(f"RLVR_HOME={chosen} is a file. Set it to a directory, which may be a new one.")
        return directory
    if (_ROOT / "pyproject.toml").is_file() and (_ROOT / "conf").is_dir():
        return _ROOT
    return Path.cwd()


# --- under the home


def runs(home: Path) -> Path:
    return home / "runs"


def run(home: Path, run_id: str) -> Path:
    return runs(home) / run_id


def run_ids(home: Path) -> list[str]:
    """Names of the directories that a launch has written something of a run to, sorted."""
    found = {path.parent.name for name in ("run.json", "config.yaml") for path in runs(home).glob(f"*/{name}")}
    return sorted(name for name in found if not name.startswith("."))


def sweeps(home: Path) -> Path:
    return runs(home) / "sweeps"


def sweep(home: Path, sweep_id: str) -> Path:
    return sweeps(home) / sweep_id


def stages(home: Path) -> Path:
    """The store of stages that all runs share."""
    return runs(home) / "stages"


def stages_beside(run_dir: Path) -> Path:
    """The same, from one of the runs."""
    return run_dir.parent / "stages"


def sample_set(run_dir: Path, set_id: str) -> Path:
    """Samples of one policy under one setting, beside the runs that read them."""
    return run_dir.parent / "evaluations" / set_id


def sample_set_info(sample_set: Path) -> Path:
    return sample_set / "set.json"


def submissions(home: Path) -> Path:
    return runs(home) / "submissions"


def replay_stages(home: Path) -> Path:
    """Of diagnostics that train nothing."""
    return runs(home) / "replay"


def reports(home: Path) -> Path:
    return home / "reports"


def report_page(report: Path) -> Path:
    return report / "index.html"


def report_summary(report: Path) -> Path:
    """For programs: the sweeps that a report is on, and its verdicts."""
    return report / "summary.json"


def report_summaries(home: Path) -> list[Path]:
    return sorted(reports(home).glob("*/summary.json"))


def analysis_cache(home: Path) -> Path:
    """What analysis parsed before, so that it need not again."""
    return reports(home) / ".cache"


def remembered_report(home: Path, name: str) -> Path:
    """What a report of this name was made of and showed, so that an unchanged one need not be made again."""
    return analysis_cache(home) / "reports" / f"{name}.json"


def mlflow_database(home: Path) -> Path:
    return home / "mlflow.db"


def mlflow_artifacts(home: Path) -> Path:
    return home / "mlartifacts"


def mlflow_lock(home: Path) -> Path:
    return runs(home) / "mlflow.lock"


def sync_log(home: Path) -> Path:
    return runs(home) / "sync.log"


def tracking(home: Path) -> Path:
    return home / "tracking"


def home_of(directory: Path) -> Path:
    """The home that a sweep or a submission belongs to."""
    return directory.resolve().parents[2]


# --- of a run


def home_of_run(run_dir: Path) -> Path:
    return run_dir.parents[1]


def info(run_dir: Path) -> Path:
    return run_dir / "run.json"


def config(run_dir: Path) -> Path:
    return run_dir / "config.yaml"


def lock(directory: Path) -> Path:
    """Of a run, a sweep, or all submissions."""
    return directory / "lock"


def journal(run_dir: Path) -> Path:
    return run_dir / "metrics.jsonl"


def cursor(directory: Path) -> Path:
    """Of a run or a sweep: how much of it is in MLflow."""
    return directory / "mlflow.json"


def stages_used(run_dir: Path) -> Path:
    return run_dir / "stages.json"


def inputs(run_dir: Path) -> Path:
    return run_dir / "inputs.json"


def own_code(run_dir: Path) -> Path:
    """Versions of the Python files of its user that a run was made with."""
    return run_dir / "own_code.json"


def checkpoints(run_dir: Path) -> Path:
    return run_dir / "checkpoints"


def checkpoint(checkpoints: Path, step: int) -> Path:
    return checkpoints / f"step-{step:08d}"


def trainer_state(checkpoint: Path) -> Path:
    """What a checkpoint holds beside tensors; what has none is no checkpoint of ours."""
    return checkpoint / "trainer.json"


def run_of_checkpoint(checkpoint: Path) -> Path:
    return checkpoint.resolve().parents[1]


def evaluation(run_dir: Path, step: int) -> Path:
    """The samples of an evaluation."""
    return run_dir / "samples" / f"test-{step:08d}.parquet"


def evaluations(run_dir: Path) -> list[Path]:
    """Those there are, by step."""
    return sorted((run_dir / "samples").glob("test-*.parquet"))


def policy(run_dir: Path, step: int) -> Path:
    """A bandit's whole policy at an evaluation."""
    return run_dir / "samples" / f"policy-{step:08d}.parquet"


def policies(run_dir: Path) -> list[Path]:
    """Those there are, by step."""
    return sorted((run_dir / "samples").glob("policy-*.parquet"))


def diversity(run_dir: Path) -> Path:
    """What was measured of an evaluation's texts, a row per problem and measure."""
    return run_dir / "diversity" / "problems.parquet"


def embeddings(run_dir: Path, embedder: str) -> Path:
    """Of the right answers of an evaluation."""
    return run_dir / "diversity" / f"embeddings-{re.sub(r'[^A-Za-z0-9.-]+', '-', embedder).strip('-')}.parquet"


def all_embeddings(run_dir: Path) -> list[Path]:
    """Those there are."""
    return sorted((run_dir / "diversity").glob("embeddings-*.parquet"))


def judgements(home: Path) -> Path:
    """What judges have said, so that none is asked twice."""
    return runs(home) / "judgements.jsonl"


def rollouts(run_dir: Path, step: int) -> Path:
    """The rollouts of a training step."""
    return run_dir / "rollouts" / f"step-{step:08d}.parquet"


def run_of_rollouts(file: Path) -> Path:
    return file.resolve().parents[1]


def step_of(path: Path) -> int | None:
    """The step that a checkpoint, or a file of samples or rollouts, is named after; None: its name is another's."""
    match = re.fullmatch(r"(?:step|test|policy)-(\d+)(?:\.parquet)?", path.name)
    return int(match[1]) if match else None


# --- of an attempt


def attempts(run_dir: Path) -> Path:
    return run_dir / "attempts"


def attempt(run_dir: Path, number: int) -> Path:
    return attempts(run_dir) / str(number)


def job(directory: Path) -> Path:
    """Of an attempt: the process at work. Of a submission: the number that SLURM gave."""
    return directory / "job.json"


def heartbeat(attempt: Path) -> Path:
    return attempt / "heartbeat.json"


def end(attempt: Path) -> Path:
    """How it ended."""
    return attempt / "exit.json"


def rank_end(attempt: Path, rank: int) -> Path:
    """How another rank than the first ended, where it could say so."""
    return attempt / f"rank-{rank}.json"


def rank_ends(attempt: Path) -> list[Path]:
    """Those there are, by rank."""
    return sorted(attempt.glob("rank-*.json"), key=lambda path: int(path.stem.removeprefix("rank-")))


def prune_request(attempt: Path) -> Path:
    return attempt / "prune.json"


def log(attempt: Path) -> Path:
    return attempt / "log.txt"


# --- of a sweep


def sweep_info(sweep_dir: Path) -> Path:
    return sweep_dir / "sweep.json"


def launch_lock(sweep_dir: Path, place: int) -> Path:
    """Held by a launch at work on the sweep on this machine: the first has place 0, one beside it the next."""
    return sweep_dir / f"lock-{place}" if place else lock(sweep_dir)


def launch_locks(sweep_dir: Path) -> list[Path]:
    """Those there are."""
    return sorted([*sweep_dir.glob("lock"), *sweep_dir.glob("lock-*")])


def manifest(sweep_dir: Path) -> Path:
    return sweep_dir / "manifest.jsonl"


def waves(sweep_dir: Path) -> Path:
    """Runs that jobs are to submit when the queue has room."""
    return sweep_dir / "waves.json"


def cancelled(sweep_dir: Path) -> Path:
    """There from `python -m sweeps cancel` on SLURM until the next launch: jobs do not go on with the sweep."""
    return sweep_dir / "cancelled.json"


def planned(sweep_dir: Path) -> Path:
    """Of a sweep that grows: every run that it may come to."""
    return sweep_dir / "planned.jsonl"


def deciding_lock(sweep_dir: Path) -> Path:
    """Of a sweep that grows: held by whoever decides what comes next."""
    return sweep_dir / "deciding.lock"


def worker_log(sweep_dir: Path, number: int) -> Path:
    return sweep_dir / f"worker-{number}.log"


def shipper_log(sweep_dir: Path) -> Path:
    return sweep_dir / "shipper.log"


def search_study(sweep_dir: Path) -> Path:
    """Optuna's own journal."""
    return sweep_dir / "optuna.journal"


def search_best(sweep_dir: Path) -> Path:
    return sweep_dir / "best.md"


def search_trials(sweep_dir: Path) -> Path:
    return sweep_dir / "trials.csv"


# --- of a stage


def stage_info(stage: Path) -> Path:
    return stage / "stage.json"


def stage_lock(store: Path, stage_id: str) -> Path:
    return store / f"{stage_id}.lock"


# --- of a submission to SLURM


def submission_info(submission: Path) -> Path:
    return submission / "submission.json"


def script(directory: Path, kind: str) -> Path:
    """What sbatch was given for an array, a stage or a report."""
    return directory / f"{kind}.sbatch"


def job_log(directory: Path, kind: str) -> Path:
    """What the job of a stage or a report printed."""
    return directory / f"{kind}.out"


def task_log(submission: Path, index: int | str) -> Path:
    """What a task of an array printed. "%a" is SLURM's own word for its index."""
    return submission / f"task_{index}.out"


def task_nodes(submission: Path, index: int, restarts: int) -> Path:
    """Where the nodes of a task meet."""
    return submission / f"task_{index}.nodes-{restarts}"


def stage_end(submission: Path) -> Path:
    """Why its stage does not stand."""
    return submission / "end.json"


def run_end(submission: Path, run_id: str) -> Path:
    """How a run that shares its job with others ended, where the job is not to try it again."""
    return submission / f"end_{run_id}.json"
