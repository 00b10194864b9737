"""How a run can stand, and what each way that an attempt can end makes of it: the one table. Standard library only.

| cause         | code | the run is | goes on by itself?       | what happened                                       |
|---------------|------|------------|--------------------------|-----------------------------------------------------|
| `ok`          | 0    | finished   | no                       | it took its last step                               |
| `error`       | 1    | failed     | no (killed: once)        | an exception, or its process died without a word    |
| `user_error`  | 2    | failed     | no                       | bad input (ValueError)                              |
| `pruned`      | 3    | pruned     | no (when asked)          | asked to stop early, others are better; state saved |
| `diverged`    | 4    | diverged   | no                       | not-a-number, entropy collapse, KL blow-up          |
| `gpu_oom`     | 5    | failed     | no (with half the tokens)| out of GPU memory                                   |
| `host_oom`    | 6    | failed     | no                       | out of main memory                                  |
| `node`        | 7    | preempted  | yes                      | the machine failed                                  |
| `preempted`   | 75   | preempted  | yes                      | asked to stop; state saved                          |
| `time_limit`  | 75   | preempted  | yes                      | its time was nearly up; state saved                 |
| `hung`        | 8    | preempted  | yes                      | no progress for long; its stacks are in its log     |
| `busy`        | 73   | preempted  | yes                      | no attempt at all: another process holds the run    |

`sweeps status`, the summary of a launch, the reports and the tag `rlvr.state` in MLflow show the word of the third
column; a launch that was told to stop (Ctrl-C) calls its preempted runs interrupted. What the brackets add is decided
by whoever started the process, within `cluster.retries` and `HALVINGS` (sweeps/verdict.py). 75 is EX_TEMPFAIL of
sysexits.h: a supervisor requeues on it.

An attempt whose process is gone and that left no end makes its run `lost`: whoever reads the ledger finds that out
(rlvr/ledger/state.py), nobody has to write it down.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """How a run stands, in the words and the order that people see."""

    FINISHED = "finished"
    RUNNING = "running"
    QUEUED = "queued"  # somebody is to start it: a job of SLURM, a launch at work
    PLANNED = "planned"  # no attempt yet, and nobody is to start it: the same command does
    DIVERGED = "diverged"
    FAILED = "failed"
    PREEMPTED = "preempted"  # stopped, state saved: it goes on by itself, or with the same command
    PRUNED = "pruned"  # stopped by a search: it goes on when asked
    LOST = "lost"  # its process is gone and left no word: it goes on with the same command
    MISSING = "missing"  # a sweep names it, and its directory is gone
    UNREADABLE = "unreadable"  # made by another version, or damaged: left alone

    @property
    def ended(self) -> bool:
        """No process is at work on it, and nobody is to start one."""
        return self not in (State.QUEUED, State.RUNNING)

    @property
    def failure(self) -> bool:
        """It ended, and neither as it should nor so that it goes on by itself or when asked."""
        return self in (State.DIVERGED, State.FAILED, State.LOST, State.MISSING, State.UNREADABLE)


class Cause(StrEnum):
    """Why an attempt ended; the table above."""

    OK = "ok"
    ERROR = "error"
    USER_ERROR = "user_error"
    PRUNED = "pruned"
    DIVERGED = "diverged"
    GPU_OOM = "gpu_oom"
    HOST_OOM = "host_oom"
    NODE = "node"
    PREEMPTED = "preempted"
    TIME_LIMIT = "time_limit"
    HUNG = "hung"
    BUSY = "busy"

    @property
    def code(self) -> int:
        """Exit code of the process."""
        return _MEANING[self].code

    @property
    def state(self) -> State:
        """How the run stands after it."""
        return _MEANING[self].state

    @property
    def goes_on(self) -> bool:
        """The run is not at fault and not at its end: it is to be tried again without being asked."""
        return self.state is State.PREEMPTED

    @classmethod
    def of_code(cls, code: int) -> Cause:
        """What an exit code stands for; ERROR for one that is not ours."""
        return next((cause for cause, meaning in _MEANING.items() if meaning.code == code), cls.ERROR)


@dataclass(frozen=True)
class _Meaning:
    code: int
    state: State


_MEANING: Mapping[Cause, _Meaning] = {
    Cause.OK: _Meaning(0, State.FINISHED),
    Cause.ERROR: _Meaning(1, State.FAILED),
    Cause.USER_ERROR: _Meaning(2, State.FAILED),
    Cause.PRUNED: _Meaning(3, State.PRUNED),
    Cause.DIVERGED: _Meaning(4, State.DIVERGED),
    Cause.GPU_OOM: _Meaning(5, State.FAILED),
    Cause.HOST_OOM: _Meaning(6, State.FAILED),
    Cause.NODE: _Meaning(7, State.PREEMPTED),
    Cause.PREEMPTED: _Meaning(75, State.PREEMPTED),
    Cause.TIME_LIMIT: _Meaning(75, State.PREEMPTED),
    Cause.HUNG: _Meaning(8, State.PREEMPTED),
    Cause.BUSY: _Meaning(73, State.PREEMPTED),
}


def cause_of(error: BaseException) -> Cause:
    """The cause that an exception carries as its attribute `cause`; ERROR for one that carries none."""
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, Cause) else Cause.ERROR
