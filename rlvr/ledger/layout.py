"""The place of every file: the only module that contains paths and names of files.

They stand under the directory that they lie in: a home, a run, an attempt, ... (docs/architecture.md says who writes
them). An incomplete file is called `.<name>.<owner>.tmp`, in the same directory (rlvr/ledger/files.py).
"""

import errno
import os
import re
from collections.abc import Callable
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


def _in(*parts: str) -> Callable[[Path], Path]:
    """The function from a directory to this path in it."""
    return lambda directory: directory.joinpath(*parts)


def _named(pattern: str) -> Callable[[Path, object], Path]:
    """The function from a directory and a value to the path in it that has the value in place of {}."""
    return lambda directory, value: directory / pattern.format(value)


def _numbered(folder: str, kind: str, suffix: str = "") -> Callable[[Path, int], Path]:
    """The function from a directory and a step to the file of that step in `folder`; `step_of` is its inverse."""
    return lambda directory, step: directory / folder / f"{kind}-{step:08d}{suffix}"


def _existing(pattern: str) -> Callable[[Path], list[Path]]:
    """The function from a directory to the existing files of this pattern in it, sorted."""
    return lambda directory: sorted(directory.glob(pattern))


# --- in a home

runs = _in("runs")
run = _named("runs/{}")
sweeps = _in("runs", "sweeps")
sweep = _named("runs/sweeps/{}")
stages = _in("runs", "stages")  # which all runs share
submissions = _in("runs", "submissions")
replay_stages = _in("runs", "replay")  # stages of diagnostics, which train nothing
final_queries = _in("runs", "final.jsonl")  # who evaluated on the final split
judgements = _in("runs", "judgements.jsonl")  # so that no judge gets a question twice
mlflow_database = _in("mlflow.db")  # the store, if no server is set
mlflow_artifacts = _in("mlartifacts")
mlflow_lock = _in("runs", "mlflow.lock")  # held while metrics are shipped to MLflow
weak_locks = _in("runs", "weak-locks")  # there if locks were seen not to hold between hosts
sync_log = _in("runs", "sync.log")  # output of the last shipping in the background
tracking = _in("tracking")  # the server of `make tracking-up`
reports = _in("reports")  # a directory with tables, figures and page for each study
report_summaries = _existing("reports/*/summary.json")
OF_PARTS, OF_BUNDLES = "-part", "-bundle"  # ends of folders of reports beside the complete one on the runs


def run_ids(home: Path) -> list[str]:
    """Names of the directories that contain a run.json or a config.yaml, sorted."""
    ids = {path.parent.name for name in ("run.json", "config.yaml") for path in runs(home).glob(f"*/{name}")}
    return sorted(run_id for run_id in ids if not run_id.startswith("."))


def home_of(directory: Path) -> Path:
    """The home that a sweep or a submission belongs to, also if its `runs` is a link to a directory elsewhere."""
    return directory.absolute().parents[2]


# --- in the directory of a report

report_page = _in("index.html")
report_summary = _in("summary.json")  # its sweeps and verdicts, for programs to read

# --- in the directory of a run

info = _in("run.json")  # its origin
config = _in("config.yaml")  # the frozen config
lock = _in("lock")  # held by the running attempt; also of a sweep, and of all submissions
journal = _in("metrics.jsonl")
copy_lock = _named("{}.lock")  # held while the run is open in another tracker than MLflow
cursor = _in("mlflow.json")  # which part of a run or a sweep is in MLflow
stages_used = _in("stages.json")  # ids of the stages that it starts from
inputs = _in("inputs.json")  # hashes of the data that it reads
own_code = _in("own_code.json")  # which code it used
attempts = _in("attempts")
attempt = _named("attempts/{}")
checkpoints = _in("checkpoints")
evaluation = _numbered("samples", "test", ".parquet")  # the samples of the evaluation at a step
evaluations = _existing("samples/test-*.parquet")
policy = _numbered("samples", "policy", ".parquet")  # a bandit's whole policy at that evaluation
policies = _existing("samples/policy-*.parquet")
rollouts = _numbered("rollouts", "step", ".parquet")  # of a training step
diversity = _in("diversity", "problems.parquet")  # of the responses of an evaluation, by problem and measure
embeddings = _named("diversity/embeddings-{}.parquet")  # of right answers; by embedder, as `rlvr.records.name_part`
all_embeddings = _existing("diversity/embeddings-*.parquet")


def stages_beside(run_dir: Path) -> Path:
    """The directory of the stages (`stages`), from the directory of a run."""
    return run_dir.parent / "stages"


def sample_set(run_dir: Path, set_id: str) -> Path:
    """Samples of one policy under one setting, which the runs in the same directory read."""
    return run_dir.parent / "evaluations" / set_id


def home_of_run(run_dir: Path) -> Path:
    return run_dir.parents[1]


def run_of(path: Path) -> Path:
    """The run whose checkpoint or file of rollouts this is."""
    return path.resolve().parent.parent  # not parents[1], which a path right below / does not have


def step_of(path: Path) -> int | None:
    """The step in the name of a checkpoint, or of a file of samples or rollouts; None for any other name."""
    match = re.fullmatch(r"(?:step|test|policy)-(\d+)(?:\.parquet)?", path.name)
    return int(match[1]) if match else None


# --- in the directory of checkpoints, of a checkpoint, of a set of samples, of a stage

checkpoint = _numbered("", "step")
trainer_state = _in("trainer.json")  # what is not a tensor; a directory without this file is no checkpoint of ours
sample_set_info = _in("set.json")
stage_info = _in("stage.json")
stage_lock = _named("{}.lock")  # in the directory of all stages

# --- in the directory of an attempt

job = _in("job.json")  # its process; of a submission: the job id that SLURM assigned
heartbeat = _in("heartbeat.json")
end = _in("exit.json")  # how it ended
prune_request = _in("prune.json")
log = _in("log.txt")
program_input, program_lines = _in("program.json"), _in("lines.jsonl")  # of a run by a command: what it gets, writes
rank_end = _named("rank-{}.json")  # how a rank other than 0 ended, if it could record that


def rank_ends(attempt: Path) -> list[Path]:
    """The existing files of `rank_end`, by rank."""
    return sorted(attempt.glob("rank-*.json"), key=lambda path: int(path.stem.removeprefix("rank-")))


# --- in the directory of a sweep

sweep_info = _in("sweep.json")
manifest = _in("manifest.jsonl")
waves = _in("waves.json")  # runs that its jobs submit once the queue has room
cancelled = _in("cancelled.json")  # from `sweeps cancel` on SLURM until the next launch: jobs must not continue it
planned = _in("planned.jsonl")  # every run that a growing sweep may add
deciding_lock = _in("deciding.lock")  # held by the process that decides on the next runs of a growing sweep
shipper_log = _in("shipper.log")
worker_log = _named("worker-{}.log")
search_study = _in("optuna.journal")
search_best = _in("best.md")
search_trials = _in("trials.csv")


def launch_lock(sweep_dir: Path, place: int) -> Path:
    """Held by a launch that runs the sweep on this machine. place: 0 for the first launch, 1 for one beside it."""
    return sweep_dir / f"lock-{place}" if place else lock(sweep_dir)


def launch_locks(sweep_dir: Path) -> list[Path]:
    """The existing files of `launch_lock`."""
    return sorted([*sweep_dir.glob("lock"), *sweep_dir.glob("lock-*")])


# --- in the directory of a submission to SLURM

submission_info = _in("submission.json")
bad_nodes = _in("bad_nodes")  # on which its jobs could not begin, a line each
stage_end = _in("end.json")  # why its stage was not built
script = _named("{}.sbatch")  # passed to sbatch for an array, a stage or a report
job_log = _named("{}.out")  # of a stage or a report
task_log = _named("task_{}.out")  # of a task of an array; SLURM replaces "%a" by its index
run_end = _named("end_{}.json")  # how a run that shares its job with others ended, if it must not be started again


def task_nodes(submission: Path, index: int, restarts: int) -> Path:
    """The file through which the nodes of a task find each other."""
    return submission / f"task_{index}.nodes-{restarts}"
