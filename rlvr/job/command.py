"""A program in any language as a run (`program=command`, docs/programs.md).

The command finds in $RLVR_RUN a JSON file with all that it needs to know. It appends lines of JSON to the file that is
named there, which outlasts both processes: what a killed attempt wrote, the next one reads first. Questions among the
lines are answered on its standard input, a line each.
"""

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, get_args

from rlvr.config.schema import Section
from rlvr.job.program import Run, SampledAnswer
from rlvr.ledger import layout
from rlvr.ledger.files import write_json
from rlvr.records import Outcome, Problem, Reward

FILE = "RLVR_RUN"  # environment variable of the command
POLL_S = 0.02
PR_SET_PDEATHSIG = 1
OUTCOMES: tuple[str, ...] = get_args(Outcome)


def train(config: Section, run: Run) -> None:
    """Run the command to its end. Raises RuntimeError if it fails, ValueError for a line that cannot be understood."""
    argv: Any = config.program.argv
    if not isinstance(argv, list) or not argv:
        raise ValueError(f"program.argv={argv}: a list of words is expected, such as [python,train.py].")
    for number in range(1, int(run.attempt_dir.name)):
        _take_over(run, layout.program_lines(layout.attempt(run.directory, number)))
    lines = layout.program_lines(run.attempt_dir)
    lines.touch()
    about: dict[str, Any] = {"config": config, "seed": run.seed, "steps": run.steps, "logged": run.logged}
    about |= {"checkpoint_dir": str(run.checkpoint_dir), "lines": str(lines)}
    write_json(layout.program_input(run.attempt_dir), {**about, "held_out": [asdict(p) for p in run.held_out]})
    run.checkpoint_dir.mkdir(parents=True, exist_ok=True)
    with layout.log(run.attempt_dir).open("ab") as log:
        process = subprocess.Popen(
            [word if isinstance(word, str) else json.dumps(word) for word in argv],
            env={**os.environ, FILE: str(layout.program_input(run.attempt_dir))},
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=lambda: ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL),  # it ends with this process
        )
    try:
        _follow(run, process, lines)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # and what it has started
        process.wait()


def _follow(run: Run, process: subprocess.Popen[bytes], path: Path) -> None:
    """Take the lines of the command until it ends; pass a request to stop on to it, as SIGTERM."""
    assert process.stdin is not None
    lines, ended, stopped = Lines(path), False, False
    while not ended:
        ended = process.poll() is not None  # before its lines are read: none comes later
        for line in lines.read():
            _take(run, line, process.stdin)
        if not ended and not stopped and run.should_stop():
            stopped = True
            os.killpg(process.pid, signal.SIGTERM)
        time.sleep(0 if ended else POLL_S)
    if process.returncode and not stopped:
        command = run.config.program.argv[0]
        raise RuntimeError(f"{command} ended with exit code {process.returncode}, see the log of the attempt")


def _take_over(run: Run, path: Path) -> None:
    """Record the steps that a command wrote for an earlier attempt, which was killed before it read them."""
    with contextlib.suppress(ValueError, FileNotFoundError):  # the line at which that attempt failed, and what follows
        for line in Lines(path).read():
            if isinstance(step := line.get("step"), int) and not run.has_logged(step):
                _take(run, line, None)


def _take(run: Run, line: Mapping[str, Any], answers: IO[bytes] | None) -> None:
    """Do what a line says. answers: where questions are answered; None: nowhere."""
    match len(line), line:  # a pattern lets other keys pass, and what they say would be lost
        case 2, {"step": int(step), "metrics": dict(metrics)}:
            run.log(step, metrics)
        case 2, {"step": int(step), "samples": list(samples)}:
            known = {problem.id: problem for problem in run.held_out}
            run.samples(step, [_sample(known, fields) for fields in samples])
        case 1, {"problems": int(step)}:
            _answer(answers, [asdict(problem) for problem in run.problems(step)])
        case 2, {"judge": int(step), "answers": list(pairs)}:
            known = {problem.id: problem for problem in run.problems(step)}
            judged = run.judge(step, [(_of_id(known, name), texts) for name, texts in pairs])
            _answer(answers, [[asdict(reward) for reward in rewards] for rewards in judged])
        case 1, {"alive": _}:
            run.alive()
        case _:
            raise ValueError(
                f"{str(dict(line))[:200]} is none of the lines that a program may write (docs/programs.md)"
            )


def _sample(known: Mapping[str, Problem], fields: Mapping[str, Any]) -> SampledAnswer:
    outcome, others = fields.get("outcome"), {"problem", "outcome", "reward"}
    if outcome not in (None, *OUTCOMES):
        raise ValueError(f"outcome {outcome!r} is none of {', '.join(OUTCOMES)}")
    reward = None if outcome is None else Reward(float(fields.get("reward", outcome == "correct")), outcome)
    texts = {name: value for name, value in fields.items() if name not in others}
    return SampledAnswer(_of_id(known, fields.get("problem")), reward=reward, **texts)


def _of_id(known: Mapping[str, Problem], name: object) -> Problem:
    if name not in known:
        raise ValueError(f"problem {name!r} is none of those that the run gave")
    return known[str(name)]


def _answer(answers: IO[bytes] | None, content: object) -> None:
    if answers is not None:
        with contextlib.suppress(BrokenPipeError):  # the command has ended
            answers.write(json.dumps(content).encode() + b"\n")
            answers.flush()


class Lines:
    """The lines of a file to which another process appends, each once it is complete."""

    def __init__(self, path: Path) -> None:
        self.path, self._offset = path, 0

    def read(self) -> list[dict[str, Any]]:
        """Those since the last call. Raises ValueError for one that is no JSON object."""
        with self.path.open("rb") as file:
            file.seek(self._offset)
            complete, newline, _ = file.read().rpartition(b"\n")
        self._offset += len(complete + newline)
        read = list[dict[str, Any]]()
        for text in complete.splitlines():
            try:
                line = json.loads(text)
            except ValueError:
                line = None
            if not isinstance(line, dict):
                raise ValueError(f"{self.path}: {text[:200].decode(errors='replace')} is no JSON object")
            read.append(line)
        return read
