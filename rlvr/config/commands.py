"""The commands that `rlvr` bundles, and the modules behind them."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Command:
    """A module that is run as the main program."""

    module: str
    about: str
    first: tuple[str, ...] = ()  # arguments before the user's


def _sweeps_command(name: str, about: str) -> Command:
    return Command("sweeps", about, (name,))


COMMANDS: Mapping[str, Command] = {
    "run": Command("rlvr.run", "train one run, or with -m a sweep of runs; --dry-run shows them first"),
    "status": _sweeps_command("status", "the state of a sweep's runs"),
    "watch": _sweeps_command("watch", "status, redrawn until all runs have ended"),
    "logs": _sweeps_command("logs", "the log of a run"),
    "cancel": _sweeps_command("cancel", "end a launch here, or the SLURM jobs of a sweep or run; they save first"),
    "retry": _sweeps_command("retry", "start what has not finished of a sweep or run again"),
    "gc": _sweeps_command("gc", "old checkpoints, unused stages, half-written files"),
    "sync": _sweeps_command("sync", "ship metrics to MLflow that are not there yet"),
    "sweeps": Command("sweeps", "these seven by their other name: rlvr sweeps status"),
    "report": Command("analysis", "tables and figures of a study"),
    "evaluate": Command("rlvr.evaluate", "sample and judge policies: runs, checkpoints, models, on any task"),
    "export": Command("rlvr.export", "a checkpoint as a model for transformers or vLLM"),
    "replay": Command("rlvr.diagnostics.replay", "objectives on the same stored rollouts, before a GPU is spent"),
    "diversity": Command("rlvr.diagnostics.diversity", "how different the responses of evaluations are"),
    "weights": Command("rlvr.diagnostics.weights", "how much objectives weigh problems of each pass rate"),
    "landscape": Command("rlvr.diagnostics.landscape", "where objectives lead on three arms"),
    "completion": Command("sweeps.completion", 'tab completion, of bash or zsh: eval "$(rlvr completion)"'),
    "docs": Command("rlvr.ledger.pages", "a page of the documentation: rlvr docs optuna; without a name, the list"),
    "tracking": Command("rlvr.tracker.server", "an MLflow server with PostgreSQL on this machine: up, down"),
}
