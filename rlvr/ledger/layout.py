"""The place of every file: the only module that contains paths and names of files.

    $RLVR_HOME, the checkout, or the current directory
        mlflow.db  mlartifacts/       MLflow's store, if no server is set
        reports/<study>/              tables, figures, page
        reports/.cache/               files that analysis has parsed; safe to delete
        tracking/                     the server of `make tracking-up`
        runs/
            mlflow.lock               held while metrics are shipped to MLflow
            sync.log                  output of the last shipping in the background
            <run_id>/
                run.json config.yaml  the run's origin; its frozen config
                lock                  held by the running attempt
                attempts/<N>/         job.json heartbeat.json exit.json rank-<R>.json prune.json log.txt
                metrics.jsonl         the journal
                mlflow.json           which steps are in MLflow
                stages.json           ids of the stages that it starts from
                inputs.json           hashes of the data that it reads; own_code.json: of its user's own components
                checkpoints/step-<S>/ trainer.json, and tensors
                samples/              test-<S>.parquet policy-<S>.parquet
                rollouts/             step-<S>.parquet
                diversity/            problems.parquet embeddings-<model>.parquet, of `rlvr.diagnostics.diversity`
            sweeps/<sweep_id>/        sweep.json manifest.jsonl mlflow.json waves.json, logs; for a search its study
                lock lock-1 ...       each held by one running launch on this machine
                cancelled.json        present if its SLURM jobs must not continue the sweep
                planned.jsonl         for a growing sweep: every run that it may add; deciding.lock
            stages/<stage_id>/        stage.json, and what was built; <stage_id>.lock
            evaluations/<set_id>/     set.json, <SHA-256>.parquet: samples that several evaluations share
            judgements.jsonl          answers of the judges of diversity
            submissions/<token>/      submission.json job.json end.json end_<run_id>.json, scripts and logs; lock
            replay/                   stages of `python -m rlvr.diagnostics.replay`

An incomplete file is called `.<name>.<owner>.tmp`, in the same directory (rlvr/ledger/files.py).
"""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

BUNDLE = ".rlvr"  # suffix of a study as one file (analysis/frames/bundle.py)
_ROOT = Path(__file__).resolve().parents[2]


def home() -> Path:
    """The directory of `runs/`, `mlflow.db` and `reports/`: $RLVR_HOME, else the checkout, else the current directory.

    It need not exist yet. Raises ValueError if $RLVR_HOME is a file or no path, and if the directory's path has a "?",
    at which the address of a SQLite database ends, or a "%41", which it takes for an "A".
    """
    if chosen := os.environ.get("RLVR_HOME"):
        directory = typed_path(chosen, "RLVR_HOME=")
        if directory.exists() and not directory.is_dir():
            raise ValueError(f"RLVR_HOME={chosen} is a file. Set it to a directory, which may be a new one.")
    else:
        in_checkout = (_ROOT / "pyproject.toml").is_file() and (_ROOT / "conf").is_dir()
        directory = _ROOT if in_checkout else Path.cwd()
    if found := re.search(r"\?|%[0-9A-Fa-f]{2}", str(directory)):
        raise ValueError(
            f'{directory}: "{found[0]}" cannot be in the path of mlflow.db. Set RLVR_HOME to another directory.'
        )
    return directory


def typed_path(typed: str | Path, option: str) -> Path:
    """A typed path, absolute and without links. Raises ValueError that names `option` for ~NAME where there is no such
    user, and for links that lead in a circle.
    """
    try:
        path = Path(typed).expanduser()
    except RuntimeError as error:
        raise ValueError(f"{option}{typed} leads nowhere: {str(error).rstrip('.')}.") from error
    try:
        path.stat()
    except OSError as error:  # it need not exist; since Python 3.13 `resolve` accepts links in a circle
        if error.errno == errno.ELOOP:
            raise ValueError(f"{option}{typed} leads nowhere: its links lead in a circle.") from error
    return path.resolve()


# --- under the home


def runs(home: Path) -> Path:
    return home / "runs"


def run(home: Path, run_id: str) -> Path:
    return runs(home) / run_id


def run_ids(home: Path) -> list[str]:
    """Names of the directories that contain a run.json or a config.yaml, sorted."""
    ids = {path.parent.name for name in ("run.json", "config.yaml") for path in runs(home).glob(f"*/{name}")}
    return sorted(run_id for run_id in ids if not run_id.startswith("."))


def sweeps(home: Path) -> Path:
    return runs(home) / "sweeps"


def sweep(home: Path, sweep_id: str) -> Path:
    return sweeps(home) / sweep_id


def stages(home: Path) -> Path:
    """The directory of the stages, which all runs share."""
    return runs(home) / "stages"


def stages_beside(run_dir: Path) -> Path:
    """The directory of the stages (`stages`), from the directory of a run."""
    return run_dir.parent / "stages"


def sample_set(run_dir: Path, set_id: str) -> Path:
    """Samples of one policy under one setting, which the runs in the same directory read."""
    return run_dir.parent / "evaluations" / set_id


def sample_set_info(sample_set: Path) -> Path:
    return sample_set / "set.json"


def submissions(home: Path) -> Path:
    return runs(home) / "submissions"


def replay_stages(home: Path) -> Path:
    """The stages of diagnostics, which train nothing."""
    return runs(home) / "replay"


def reports(home: Path) -> Path:
    return home / "reports"


def report_page(report: Path) -> Path:
    return report / "index.html"


def report_summary(report: Path) -> Path:
    """The sweeps that a report is about, and its verdicts, for programs to read."""
    return report / "summary.json"


def report_summaries(home: Path) -> list[Path]:
    return sorted(reports(home).glob("*/summary.json"))


def analysis_cache(home: Path) -> Path:
    """Files that analysis has parsed, so that it need not parse them again."""
    return reports(home) / ".cache"


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
    """The home that a sweep or a submission belongs to, also if its `runs` is a link to a directory elsewhere."""
    return directory.absolute().parents[2]


# --- of a run


def run_of(path: Path) -> Path:
    """The run whose checkpoint or file of rollouts this is."""
    return path.resolve().parent.parent  # not parents[1], which a path right below / does not have


def home_of_run(run_dir: Path) -> Path:
    return run_dir.parents[1]


def info(run_dir: Path) -> Path:
    return run_dir / "run.json"


def config(run_dir: Path) -> Path:
    return run_dir / "config.yaml"


def lock(directory: Path) -> Path:
    """The lock of a run, of a sweep, or of all submissions."""
    return directory / "lock"


def journal(run_dir: Path) -> Path:
    return run_dir / "metrics.jsonl"


def cursor(directory: Path) -> Path:
    """Which part of a run or a sweep is in MLflow."""
    return directory / "mlflow.json"


def stages_used(run_dir: Path) -> Path:
    return run_dir / "stages.json"


def inputs(run_dir: Path) -> Path:
    return run_dir / "inputs.json"


def own_code(run_dir: Path) -> Path:
    """Digests of the user's own Python files that a run was made with."""
    return run_dir / "own_code.json"


def checkpoints(run_dir: Path) -> Path:
    return run_dir / "checkpoints"


def checkpoint(checkpoints: Path, step: int) -> Path:
    return checkpoints / f"step-{step:08d}"


def trainer_state(checkpoint: Path) -> Path:
    """The state in a checkpoint that is not a tensor; a directory without this file is no checkpoint of ours."""
    return checkpoint / "trainer.json"


def evaluation(run_dir: Path, step: int) -> Path:
    """The samples of the evaluation at a step."""
    return run_dir / "samples" / f"test-{step:08d}.parquet"


def evaluations(run_dir: Path) -> list[Path]:
    """The existing files of `evaluation`, by step."""
    return sorted((run_dir / "samples").glob("test-*.parquet"))


def policy(run_dir: Path, step: int) -> Path:
    """A bandit's whole policy at the evaluation of a step."""
    return run_dir / "samples" / f"policy-{step:08d}.parquet"


def policies(run_dir: Path) -> list[Path]:
    """The existing files of `policy`, by step."""
    return sorted((run_dir / "samples").glob("policy-*.parquet"))


def diversity(run_dir: Path) -> Path:
    """The diversity of the responses of an evaluation, one row per problem and measure."""
    return run_dir / "diversity" / "problems.parquet"


def embeddings(run_dir: Path, embedder: str) -> Path:
    """Embeddings of the right answers of an evaluation."""
    name = re.sub(r"[^A-Za-z0-9.-]+", "-", embedder).strip("-")
    return run_dir / "diversity" / f"embeddings-{name}.parquet"


def all_embeddings(run_dir: Path) -> list[Path]:
    """The existing files of `embeddings`."""
    return sorted((run_dir / "diversity").glob("embeddings-*.parquet"))


def judgements(home: Path) -> Path:
    """The answers of judges, so that no judge gets a question twice."""
    return runs(home) / "judgements.jsonl"


def rollouts(run_dir: Path, step: int) -> Path:
    """The rollouts of a training step."""
    return run_dir / "rollouts" / f"step-{step:08d}.parquet"


def step_of(path: Path) -> int | None:
    """The step in the name of a checkpoint, or of a file of samples or rollouts; None for any other name."""
    match = re.fullmatch(r"(?:step|test|policy)-(\d+)(?:\.parquet)?", path.name)
    return int(match[1]) if match else None


# --- of an attempt


def attempts(run_dir: Path) -> Path:
    return run_dir / "attempts"


def attempt(run_dir: Path, number: int) -> Path:
    return attempts(run_dir) / str(number)


def job(directory: Path) -> Path:
    """Of an attempt: its process. Of a submission: the job id that SLURM assigned."""
    return directory / "job.json"


def heartbeat(attempt: Path) -> Path:
    return attempt / "heartbeat.json"


def end(attempt: Path) -> Path:
    """How the attempt ended."""
    return attempt / "exit.json"


def rank_end(attempt: Path, rank: int) -> Path:
    """How a rank other than 0 ended, if it could record that."""
    return attempt / f"rank-{rank}.json"


def rank_ends(attempt: Path) -> list[Path]:
    """The existing files of `rank_end`, by rank."""
    return sorted(attempt.glob("rank-*.json"), key=lambda path: int(path.stem.removeprefix("rank-")))


def prune_request(attempt: Path) -> Path:
    return attempt / "prune.json"


def log(attempt: Path) -> Path:
    return attempt / "log.txt"


# --- of a sweep


def sweep_info(sweep_dir: Path) -> Path:
    return sweep_dir / "sweep.json"


def launch_lock(sweep_dir: Path, place: int) -> Path:
    """Held by a launch that runs the sweep on this machine. place: 0 for the first launch, 1 for one beside it."""
    return sweep_dir / f"lock-{place}" if place else lock(sweep_dir)


def launch_locks(sweep_dir: Path) -> list[Path]:
    """The existing files of `launch_lock`."""
    return sorted([*sweep_dir.glob("lock"), *sweep_dir.glob("lock-*")])


def manifest(sweep_dir: Path) -> Path:
    return sweep_dir / "manifest.jsonl"


def waves(sweep_dir: Path) -> Path:
    """Runs that its jobs submit once the queue has room."""
    return sweep_dir / "waves.json"


def cancelled(sweep_dir: Path) -> Path:
    """Exists from `python -m sweeps cancel` on SLURM until the next launch: jobs must not continue the sweep."""
    return sweep_dir / "cancelled.json"


def planned(sweep_dir: Path) -> Path:
    """Every run that a growing sweep may add."""
    return sweep_dir / "planned.jsonl"


def deciding_lock(sweep_dir: Path) -> Path:
    """Held by the process that decides on the next runs of a growing sweep."""
    return sweep_dir / "deciding.lock"


def worker_log(sweep_dir: Path, number: int) -> Path:
    return sweep_dir / f"worker-{number}.log"


def shipper_log(sweep_dir: Path) -> Path:
    return sweep_dir / "shipper.log"


def search_study(sweep_dir: Path) -> Path:
    """Optuna's journal of a search."""
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
    """The script passed to sbatch for an array, a stage or a report."""
    return directory / f"{kind}.sbatch"


def job_log(directory: Path, kind: str) -> Path:
    """The output of the job of a stage or a report."""
    return directory / f"{kind}.out"


def task_log(submission: Path, index: int | str) -> Path:
    """The output of a task of an array. SLURM replaces "%a" by its index."""
    return submission / f"task_{index}.out"


def task_nodes(submission: Path, index: int, restarts: int) -> Path:
    """The file through which the nodes of a task find each other."""
    return submission / f"task_{index}.nodes-{restarts}"


def stage_end(submission: Path) -> Path:
    """Why the stage of a submission was not built."""
    return submission / "end.json"


def run_end(submission: Path, run_id: str) -> Path:
    """How a run that shares its job with others ended, if the job must not start it again."""
    return submission / f"end_{run_id}.json"
