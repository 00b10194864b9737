"""A worker without a trainer: the protocol and the attempts are real, what a run does is told by its config.

    python -m tests.sweeps.obeying_worker --serve       a warm worker
    python -m tests.sweeps.obeying_worker RUN_DIR       one run, as a rank

Each run takes `steps` steps of `pause` seconds, keeps the last in RUN_DIR/step.txt and goes on from there,
and lists all it took in RUN_DIR/steps.txt. `act` then:
"" fine; any cause: an end by it; "kill": SIGKILL at step 1 of the first `kills` attempts; "child": leaves a process
in a session of its own; "noise": prints what is no answer; "leave": ends the process before there is an attempt;
"hang": does nothing for ever, before there is an attempt, until one has been made;
"vanish": finds that somebody deletes its directory.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rlvr.ledger.attempt import Attempt, Busy, StopFlag, newest_attempt
from rlvr.ledger.cause import Cause
from rlvr.ledger.files import write_text


def run(run_dir: Path) -> tuple[Cause, str]:
    told: dict[str, Any] = json.loads((run_dir / "config.yaml").read_text())
    if told["act"] == "leave":
        os._exit(3)
    if told["act"] == "hang" and newest_attempt(run_dir) < 2:
        time.sleep(3600)
    if told["act"] == "vanish":
        shutil.rmtree(run_dir)
        return Cause.ERROR, "no such directory"
    if told["act"] == "noise":
        print("not an answer", flush=True)
    try:
        attempt = Attempt.open(run_dir)
    except Busy as busy:
        return Cause.BUSY, str(busy)
    with attempt, StopFlag() as stop:
        cause, message = work(run_dir, told, attempt, stop)
        attempt.close(cause, message)
        return cause, message


def work(run_dir: Path, told: dict[str, Any], attempt: Attempt, stop: StopFlag) -> tuple[Cause, str]:
    (attempt.path / "environment.json").write_text(json.dumps(dict(os.environ)))
    if told["act"] == "child":
        child = subprocess.Popen(["sleep", "600"], start_new_session=True)
        (run_dir / "child.txt").write_text(str(child.pid))
    saved = run_dir / "step.txt"
    first = int(saved.read_text()) + 1 if saved.exists() else 1
    for step in range(first, told["steps"] + 1):
        if told["act"] == "kill" and attempt.number <= told["kills"]:
            os.kill(os.getpid(), signal.SIGKILL)
        if stop:
            return stop.cause, f"stopped before step {step}"
        time.sleep(told["pause"])
        with (run_dir / "steps.txt").open("a") as steps:
            steps.write(f"{step}\n")
        write_text(saved, str(step))
        attempt.heartbeat(step, told["steps"], "train", accuracy=step / told["steps"])
    if told["act"] in set(Cause):
        return Cause(told["act"]), "as told"
    return Cause.OK, ""


def main() -> None:
    if sys.argv[1:] != ["--serve"]:
        sys.exit(0 if int(os.environ.get("RANK", "0")) else run(Path(sys.argv[1]))[0].code)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        run_dir = Path(json.loads(line)["run_dir"])
        cause, message = run(run_dir)
        print(json.dumps({"run_dir": str(run_dir), "cause": cause, "code": cause.code, "message": message}), flush=True)


if __name__ == "__main__":
    main()
