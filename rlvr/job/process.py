"""How the process of a run starts and ends: one attempt on the ledger, and a name for every way it can end.

`python -m rlvr.job RUN_DIR` runs one run, or is one of its ranks (rlvr/job/ranks.py). `python -m rlvr.job --serve`
imports torch once and runs what standard input asks for, a JSON line each: the warm worker of the local launcher.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from hydra.errors import InstantiationException
from omegaconf import DictConfig, OmegaConf

from rlvr.config import own_code, schema, targets
from rlvr.config.checks import innermost
from rlvr.job.cause import cause_of
from rlvr.job.evaluation import Evaluation
from rlvr.job.log import logging_to
from rlvr.job.loop import Run
from rlvr.ledger.attempt import HALVINGS, Attempt, Busy, StopFlag, Stopped, asked_to_prune, gpu_ooms, record_rank
from rlvr.ledger.cause import Cause
from rlvr.ledger.journal import JournalWriter
from rlvr.ledger.runs import Unreadable, check_owner, read_info, read_proven_config
from rlvr.trainer import distributed

log = logging.getLogger("rlvr")


def run(run_dir: Path) -> tuple[Cause, str]:
    """Run what `run_dir`/config.yaml says, as one attempt on the ledger. Returns why it ended, and a message.

    Raises Busy if another process holds the run.
    """
    schema.register()
    check_owner(run_dir)
    config = OmegaConf.create(read_proven_config(run_dir))
    with StopFlag() as stop:
        rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        if rank:
            faulthandler.register(signal.SIGQUIT, all_threads=True)
            cause, message = _guarded(lambda: _train(config, run_dir, None, stop), stop)
            if message:
                record_rank(run_dir, rank, cause, message)
            return cause, message
        about: dict[str, int] = {}
        if config.trainer is not None:  # of an evaluation there is none
            config.trainer.token_budget = max(1, config.trainer.token_budget >> min(HALVINGS, gpu_ooms(run_dir)))
            about = {"token_budget": config.trainer.token_budget}
        with Attempt.open(run_dir, ranks=world, **about) as attempt:
            with logging_to(attempt.log_path):
                cause, message = _guarded(lambda: _train(config, run_dir, attempt, stop), stop)
            attempt.close(cause, message or (asked_to_prune(attempt.path) if cause is Cause.PRUNED else ""))
            return cause, message


def _train(config: DictConfig, run_dir: Path, attempt: Attempt | None, stop: StopFlag) -> Cause:
    plain, paths = OmegaConf.to_container(config), read_info(run_dir).import_paths
    targets.restore(paths, plain)
    with contextlib.ExitStack() as stack:
        journal = None
        if attempt is not None:
            journal = JournalWriter(run_dir, attempt.number, holds_lease=attempt.holds_lease)
            stack.enter_context(contextlib.closing(journal))
        with stop.interruptible():  # a base policy, its answers, a large model: minutes, and nothing to save
            if config.trainer is not None:  # the first rank alone has read how attempts ended
                distributed.join_group()
                config.trainer.token_budget = distributed.of_first_rank(config.trainer.token_budget)
            work = (Evaluation if config.policy else Run)(config, run_dir, attempt, journal)
        for file in own_code.record(run_dir, plain, paths) if attempt is not None else ():
            log.warning("%s: not the version that this run began with; it goes on with this one", file)
        stack.enter_context(contextlib.closing(work))
        return work.train(stop) if isinstance(work, Run) else work.run(stop)


def _guarded(work: Callable[[], Cause], stop: StopFlag) -> tuple[Cause, str]:
    """Every way a run can end gets a name: the one place that sees them all, so the one broad `except`."""
    try:
        return work(), ""
    except Stopped as stopped:
        log.info("%s: stopped at once, nothing of it was to be saved", stopped)
        return stop.cause, f"{stopped}: stopped before its next step"
    except Exception as error:
        log.exception("the run failed")
        cause = cause_of(error)
        if cause is Cause.ERROR and distributed.lost_a_rank(error):  # the word is that rank's, if it left one
            distributed.end_process(Cause.ERROR.code, alone=True)
        return cause, _told(error)


def _told(error: Exception) -> str:
    """An error in a line. Hydra has what a component raises in lines of its own: of these, what was called, and why."""
    if not isinstance(error, InstantiationException):
        return f"{type(error).__name__}: {error}"
    called, cause = str(error).partition("\n")[0].rstrip(":"), innermost(error)
    return f"{called}: {type(cause).__name__}: {cause}" if cause is not error else f"{type(error).__name__}: {error}"


def serve() -> None:
    """Run what standard input asks for until it ends; answer on the standard output that we were given.

    Protocol, a JSON object a line: {"ready": true}; then for each {"run_dir": …} one {"run_dir", "cause", "code",
    "message"}. Anything else that is printed goes to standard error, so that it cannot break the protocol.
    """
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    print(json.dumps({"ready": True}), file=answers)
    for line in sys.stdin:
        run_dir = Path(json.loads(line)["run_dir"])
        cause, code, message = attempt_once(run_dir)
        distributed.free_memory()  # if it raises, the launch finds how the run ended in its attempt
        print(json.dumps({"run_dir": str(run_dir), "cause": cause, "code": code, "message": message}), file=answers)


def attempt_once(run_dir: Path) -> tuple[str, int, str]:
    """(cause, exit code, message) of one attempt, or of a run that another process holds or that cannot be read."""
    try:
        cause, message = run(run_dir)
    except Busy as error:
        cause, message = Cause.BUSY, str(error)
    except Unreadable as error:
        cause, message = Cause.USER_ERROR, str(error)
    return cause, cause.code, message


def main() -> None:
    if sys.argv[1:] == ["--serve"]:
        serve()
        return
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        print(__doc__)
        sys.exit(0 if sys.argv[1:] in (["-h"], ["--help"]) else 2)
    cause, code, message = attempt_once(Path(sys.argv[1]))
    if message:
        print(f"{cause}: {message}", file=sys.stderr)
    distributed.end_process(code, alone=code != 0)  # an error, or a signal to stop, may have come to one rank alone
