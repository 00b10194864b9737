"""`cluster.wait=true`: a live table of SLURM jobs until they have ended."""

import time
from collections.abc import Sequence

from rlvr.ledger import terminal
from rlvr.ledger.state import RunState
from rlvr.ledger.sweeps import Ledger, grows
from sweeps.progress import count, table, why
from sweeps.slurm.submissions import may_grow, read_queue, with_queue_states
from sweeps.verdict import LaunchOutcome
from sweeps.worker import ShipperProcess

LOOK_S = 3.0


def follow(
    ledger: Ledger, sweep_id: str, run_ids: Sequence[str], before: Sequence[str], command: Sequence[str] | None
) -> LaunchOutcome | None:
    """Show a live table until all of these runs have ended, and of a growing sweep those of its later waves, too. After
    Ctrl-C the jobs continue, and None is returned.

    before: runs that had finished before the launch. command: of the shipper.
    """
    from rich.live import Live

    shipper = ShipperProcess(command, ledger.sweep_dir(sweep_id))
    shipper.start()
    began = time.monotonic()
    try:
        with Live(console=terminal.console(), auto_refresh=False) as live:
            while True:
                queue = read_queue(ledger)  # before the sweep: a job that has left it adds no more runs
                sweep = ledger.sweep(sweep_id)
                run_ids = sweep.run_ids if grows(sweep.info) else run_ids
                states = with_queue_states(ledger, ledger.states(run_ids), queue)
                title = f"{sweep_id}: {count(states)}"
                live.update(table(states, title=title, width=live.console.width), refresh=True)
                if all(state.ended for state in states) and not may_grow(ledger, sweep, queue):
                    break
                time.sleep(LOOK_S)
    except KeyboardInterrupt:
        print("The jobs continue. `python -m sweeps watch` shows them again.", flush=True)
        return None
    outcome = _outcome(states, before)
    outcome.seconds = time.monotonic() - began
    shipper.finish(print)
    for state in states:
        if state.run_id in outcome.messages:
            print(
                f"{state.state.upper()} {state.name} ({state.run_id}): {why(state)}\n       {state.log or ''}",
                flush=True,
            )
    print(outcome.summary(), flush=True)
    return outcome


def _outcome(states: Sequence[RunState], before: Sequence[str]) -> LaunchOutcome:
    outcome = LaunchOutcome(skipped=list(before))
    for state in states:
        if state.run_id not in before:
            outcome.add(state.run_id, state.state, why(state))
    return outcome
