"""A launch in a process of its own, for tests that send it signals: launch.py HOME SWEEP '{options of run_local}'."""

import json
import sys
from dataclasses import asdict

from rlvr.ledger import terminal
from rlvr.ledger.sweeps import Ledger
from sweeps.local import run_local

WORKER = ("-m", "tests.sweeps.obeying_worker")

if __name__ == "__main__":
    options = json.loads(sys.argv[3])
    command = [sys.executable, *WORKER, *(["--serve"] if options.get("ranks", 1) == 1 else [])]
    with terminal.unfailing_output():  # as every command does
        outcome = run_local(Ledger(sys.argv[1]), sys.argv[2], **{"command": command, **options})
        print(json.dumps(asdict(outcome)))
    sys.exit(outcome.exit_code)
