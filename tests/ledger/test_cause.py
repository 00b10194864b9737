import re

from rlvr.ledger import cause, tags
from rlvr.ledger.cause import Cause, State, cause_of


def documented() -> dict[str, tuple[str, str, str]]:
    """{cause: (code, state, goes on by itself?)} in the table of the module's docstring."""
    assert cause.__doc__ is not None
    rows = re.findall(r"^\| `(\w+)` +\| (\d+) +\| (\w+) +\| (yes|no)", cause.__doc__, re.MULTILINE)
    return {name: tuple(columns) for name, *columns in rows}


def test_the_table_is_the_documented_one() -> None:
    shown = {c.value: (str(c.code), c.state.value, "yes" if c.goes_on else "no") for c in Cause}
    assert shown == documented()


def test_every_state_is_queued_or_running_or_a_good_end_or_a_failure_and_a_cause_leads_to_an_end() -> None:
    assert all(cause.state.ended for cause in Cause)
    good = {State.FINISHED, State.PREEMPTED, State.PRUNED, State.PLANNED}
    assert {(not state.ended) + (state in good) + state.failure for state in State} == {1}


def test_an_exit_code_stands_for_a_cause_and_an_exception_carries_its_own_or_is_an_error() -> None:
    class Diverged(ArithmeticError):
        cause = Cause.DIVERGED

    class Wrapped(RuntimeError):  # a library's exception with another attribute of this name
        cause = ValueError("theirs")

    causes = [cause_of(error).value for error in (Diverged(), Wrapped(), ValueError(), KeyboardInterrupt())]
    assert causes == ["diverged", "error", "error", "error"]
    expected = {0: "ok", 5: "gpu_oom", 75: "preempted", -9: "error", 3: "pruned"}
    assert {code: Cause.of_code(code).value for code in expected} == expected


def test_the_mlflow_status_of_every_state() -> None:
    statuses = {state.value: tags.status(state) for state in State}
    assert statuses == {
        **{"finished": "FINISHED", "pruned": "KILLED"},
        **dict.fromkeys(("running", "queued", "planned", "preempted"), "RUNNING"),
        **dict.fromkeys(("diverged", "failed", "lost", "missing", "unreadable"), "FAILED"),
    }
    assert tags.status_of_sweep([State.FINISHED, State.PRUNED]) == "FINISHED"
    assert tags.status_of_sweep([State.FINISHED, State.LOST]) == "FAILED"
    assert tags.status_of_sweep([State.FAILED, State.QUEUED]) == "RUNNING"
