"""How the process of a run starts and ends: one attempt on the ledger, and a cause for each way it can end.

`python -m rlvr.job RUN_DIR` executes one run, or is one of its ranks (rlvr/job/ranks.py). `python -m rlvr.job --serve`
is a worker of the local launcher: it imports torch once, then executes the runs that are requested on standard input,
one JSON line each.
"""

import contextlib
import faulthandler
import json
import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from rlvr.config import own_code, schema, targets
from rlvr.config.checks import component_error
from rlvr.job.cause import cause_of
from rlvr.job.evaluation import Evaluation
from rlvr.job.log import logging_to
from rlvr.job.loop import TrainingRun
from rlvr.job.program import Program
from rlvr.ledger import inputs
from rlvr.ledger.attempt import HALVINGS, Attempt, Busy, StopFlag, Stopped, num_gpu_ooms, prune_reason, write_rank_end
from rlvr.ledger.cause import Cause
from rlvr.ledger.journal import JournalWriter
from rlvr.ledger.runs import Unreadable, check_owner, read_info, read_verified_config
from rlvr.trainer import distributed

log = logging.getLogger("rlvr")


def run(run_dir: Path) -> tuple[Cause, str]:
    """Execute the run of `run_dir`/config.yaml, as one attempt on the ledger. Returns (cause of its end, message).

    Raises Busy if another process holds the run.
    """
    schema.register()
    check_owner(run_dir)
    config = OmegaConf.create(schema.with_null_knobs(read_verified_config(run_dir)))
    with StopFlag() as stop:
        rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        if rank:
            faulthandler.register(signal.SIGQUIT, all_threads=True)
            cause, message = _with_cause(lambda: _execute(config, run_dir, None, stop), stop)
            if message:
                write_rank_end(run_dir, rank, cause, message)
            return cause, message
        details: dict[str, int] = {}
        if config.trainer is not None:  # an evaluation has none
            config.trainer.token_budget = max(1, config.trainer.token_budget >> min(HALVINGS, num_gpu_ooms(run_dir)))
            details = {"token_budget": config.trainer.token_budget}
        with Attempt.open(run_dir, ranks=world, **details) as attempt:
            with logging_to(attempt.log_path):
                cause, message = _with_cause(lambda: _execute(config, run_dir, attempt, stop), stop)
            attempt.close(cause, message or (prune_reason(attempt.path) if cause is Cause.PRUNED else ""))
            return cause, message


def _execute(config: DictConfig, run_dir: Path, attempt: Attempt | None, stop: StopFlag) -> Cause:
    plain, paths = OmegaConf.to_container(config), read_info(run_dir).import_paths
    targets.make_importable(paths, plain)
    code, not_imported = dict[str, str](), set[str]()
    with contextlib.ExitStack() as stack:
        journal = None
        if attempt is not None:
            journal = JournalWriter(run_dir, attempt.number, holds_lease=attempt.holds_lease)
            stack.enter_context(contextlib.closing(journal))
            code = own_code.versions(plain, paths)
            not_imported = code.keys() - sys.modules.keys()
            attempt.add_to_record(git_sha=own_code.git("rev-parse", "HEAD"))
        with stop.interruptible():  # building policy, answers and model may take minutes, and there is nothing to save
            if config.trainer is not None:  # only the first rank has read how attempts ended, for its token budget
                distributed.join_group()
                config.trainer.token_budget = distributed.of_first_rank(config.trainer.token_budget)
            kind = Evaluation if config.policy else Program if config.get("program") else TrainingRun
            work = kind(config, run_dir, attempt, journal)
        if attempt is not None:
            also = own_code.edited_meanwhile(code, not_imported)
            in_short = own_code.in_short({**code, **inputs.recorded(run_dir), **({"also": str(also)} if also else {})})
            attempt.add_to_record(code=in_short)
            for module in inputs.record_code(run_dir, code, also):
                log.warning("%s: not the version that this run began with; it goes on with this one", module)
        stack.enter_context(contextlib.closing(work))
        return work.train(stop) if isinstance(work, TrainingRun) else work.run(stop)


def _with_cause(work: Callable[[], Cause], stop: StopFlag) -> tuple[Cause, str]:
    """(cause, message) of the end of `work`. Every error of a run passes here: hence the one broad `except`."""
    try:
        return work(), ""
    except Stopped as stopped:
        log.info("%s: stopped at once, there was nothing to save", stopped)
        return stop.cause, f"{stopped}: stopped before its next step"
    except Exception as error:
        log.exception("the run failed")
        cause = cause_of(error)
        if cause is Cause.ERROR and distributed.lost_a_rank(error):  # the lost rank records the cause, if it can
            distributed.end_process(Cause.ERROR.code, alone=True)
        return cause, _message_of(error)


def _message_of(error: Exception) -> str:
    """Class and text of an error, and the line of the user's code that raised it, if one did. For an error that Hydra
    wrapped: the component that was called, and the original.
    """
    original = component_error(error)
    text = f"{type(original).__name__}: {original}{own_code.line_of(original)}"
    if original is error:
        return text
    component = str(error).partition("\n")[0].rstrip(":")
    return f"{component}: {text}"


def serve() -> None:
    """Execute the runs that are requested on standard input until it is closed; reply on the original standard output.

    Protocol, one JSON object per line: {"ready": true}; then for each {"run_dir": …} one {"run_dir", "cause", "code",
    "message"}. All else that is printed goes to standard error, so that it cannot break the protocol.
    """
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    print(json.dumps({"ready": True}), file=replies)
    for line in sys.stdin:
        run_dir = Path(json.loads(line)["run_dir"])
        cause, code, message = attempt_once(run_dir)
        distributed.free_memory()  # if this raises, the launcher reads from the attempt how the run ended
        print(json.dumps({"run_dir": str(run_dir), "cause": cause, "code": code, "message": message}), file=replies)


def attempt_once(run_dir: Path) -> tuple[str, int, str]:
    """(cause, exit code, message) of one attempt, also if another process holds the run or if it cannot be read."""
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
    distributed.end_process(code, alone=code != 0)  # an error or a stop signal may concern this rank alone
