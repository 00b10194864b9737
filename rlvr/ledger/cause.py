"""The states of a run, the causes of an attempt's end, and the state that each cause leads to. Standard library only.

| cause         | code | the run is | goes on by itself?       | what happened                                       |
|---------------|------|------------|--------------------------|-----------------------------------------------------|
| `ok`          | 0    | finished   | no                       | it took its last step                               |
| `error`       | 1    | failed     | no (killed: once)        | an exception, or its process died without a report  |
| `user_error`  | 2    | failed     | no                       | bad input (ValueError)                              |
| `pruned`      | 3    | pruned     | no (on request)          | asked to stop early, others are better; state saved |
| `diverged`    | 4    | diverged   | no                       | not-a-number, entropy collapse, KL blow-up          |
| `gpu_oom`     | 5    | failed     | no (with half the tokens)| out of GPU memory                                   |
| `host_oom`    | 6    | failed     | no                       | out of main memory                                  |
| `node`        | 7    | preempted  | yes                      | the machine failed                                  |
| `preempted`   | 75   | preempted  | yes                      | asked to stop; state saved                          |
| `time_limit`  | 75   | preempted  | yes                      | its time was nearly up; state saved                 |
| `hung`        | 8    | preempted  | yes                      | no progress for long; its stacks are in its log     |
| `busy`        | 73   | preempted  | yes                      | another process holds the run                       |

`sweeps status`, the summary of a launch, the reports and the tag `rlvr.state` in MLflow show the state in the third
column; a launch that is stopped by Ctrl-C shows its preempted runs as interrupted. The exceptions in parentheses are
decided by the process that started the attempt, within `cluster.retries` and `HALVINGS` (sweeps/verdict.py). 75 is
EX_TEMPFAIL of sysexits.h: a supervisor requeues on it.

A run is `lost` if the process of its newest attempt is gone and has written no end. This state is derived on reading
(rlvr/ledger/state.py) and stored nowhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """The state of a run, by the name and in the order in which it is shown."""

    FINISHED = "finished"
    RUNNING = "running"
    QUEUED = "queued"  # a SLURM job or a running launch will start it
    PLANNED = "planned"  # no attempt yet, and nothing will start it: repeat its command
    DIVERGED = "diverged"
    FAILED = "failed"
    PREEMPTED = "preempted"  # stopped, state saved: continued automatically, or by the same command
    PRUNED = "pruned"  # stopped by a search, state saved: continued on request only
    LOST = "lost"  # its process is gone and recorded no end: the same command continues it
    MISSING = "missing"  # listed in a sweep, but its directory is gone
    UNREADABLE = "unreadable"  # made by another version, or damaged: not touched

    @property
    def ended(self) -> bool:
        """Whether no process works on the run, and none is going to be started."""
        return self not in (State.QUEUED, State.RUNNING)

    @property
    def failure(self) -> bool:
        """Whether the run ended without finishing, and will be continued neither automatically nor on request."""
        return self in (State.DIVERGED, State.FAILED, State.LOST, State.MISSING, State.UNREADABLE)


class Cause(StrEnum):
    """Why an attempt ended: the first column of the table above."""

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
        """The state of the run after this end."""
        return _MEANING[self].state

    @property
    def goes_on(self) -> bool:
        """Whether the run is to be started again automatically: it is unfinished through no fault of its own."""
        return self.state is State.PREEMPTED

    @classmethod
    def of_code(cls, code: int) -> Cause:
        """The cause that an exit code stands for (PREEMPTED for 75); ERROR for a code not in the table."""
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
    """The cause in the attribute `cause` of an exception; ERROR if it has none."""
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, Cause) else Cause.ERROR
