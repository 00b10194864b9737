"""An environment of the library verifiers (`pip install rlvr[verifiers]`): its problems, judged by its own rewards."""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pydantic import PositiveInt

from rlvr.records import Problem, Reward
from rlvr.task.sources import Column, Sources, check_template, share
from rlvr.task.verified import Verified

log = logging.getLogger("rlvr")

HELD_OUT = 1 / 8  # share of the problems that are test data, if no knobs say which are
READ_TIMEOUT_S = 600.0  # of all problems, which may come from the hub
ROUNDING = 1e-9  # of a sum of weighted rewards


@dataclass(kw_only=True, eq=False)
class Verifiers(Verified):
    """The problems of an installed environment, each of one question. Other knobs: `rlvr.task.verified`.

    environment: its name, or {name: {knob: value}} with its own knobs.
    most: number of problems that are read; None: all.
    test_knobs: what differs in these knobs for the test data; None: an eighth of the problems, by a hash of the prompt.
    full: a response is correct if its reward reaches this. binary: rewards are 0 and 1, 1 for a correct response; else
        the environment's own, the weighted sum of all that it defines.
    """

    environment: str | Mapping[str, Mapping[str, Any]]
    test_knobs: Mapping[str, Any] | None
    most: PositiveInt | None
    full: float
    binary: bool
    train: Sources | None = field(default=None, init=False)
    test: Sources = field(default="", init=False)

    name = "verifiers"

    def __post_init__(self) -> None:
        check_template(self.template)
        if find_spec("verifiers") is None:
            raise ValueError("task=verifiers needs the library verifiers: pip install 'rlvr[verifiers]'.")
        by_name = {self.environment: {}} if isinstance(self.environment, str) else dict(self.environment)
        if len(by_name) != 1:
            raise ValueError(f"task.environment={self.environment}: a name is expected, or {{name: {{knob: value}}}}.")
        ((self._name, knobs),) = by_name.items()
        self._settings = json.dumps({**knobs, "id": self._name}, sort_keys=True)
        self._reported = False
        self.start_pool("environment")
        columns = [Column("template", "prompt", ()), Column("environment", "data", ())]
        with TemporaryDirectory() as folder:
            self.train, self.test = (str(path) for path in self._files(Path(folder)))
            self.load(columns, lambda prompt, data: (self.template.replace("{problem}", prompt.prompt()), data.value))

    def _files(self, folder: Path) -> tuple[Path, Path]:
        """The problems for training and for tests, as lines of two files."""
        train, test = folder / "train.jsonl", folder / "test.jsonl"
        self._read(self._settings, train)
        if self.test_knobs is not None:
            self._read(json.dumps({**json.loads(self._settings), **self.test_knobs}, sort_keys=True), test)
            return train, test
        lines = train.read_text().splitlines(keepends=True)
        held_out = [share("test", " ".join(json.loads(line)["prompt"].split())) < HELD_OUT for line in lines]
        for path, side in ((train, False), (test, True)):
            path.write_text("".join(line for line, held in zip(lines, held_out, strict=True) if held == side))
        return train, test

    def _read(self, settings: str, file: Path) -> None:
        request = {"do": "read", "settings": settings, "file": str(file), "most": self.most}
        (reply,) = self._pool.ask([request], timeout_s=READ_TIMEOUT_S)
        if reply.get("outcome") or reply["problem"]:
            self.close()
            ended = f"{reply.get('outcome')} while its problems were read, within task.memory_gb={self.memory_gb:g}"
            raise ValueError(f"task.environment={self._name}: {reply.get('problem') or ended}")

    @property
    def graded(self) -> bool:
        """Whether there are rewards other than 0 and 1."""
        return not self.binary

    def reward(self, answers: Sequence[tuple[Problem, str]]) -> list[Reward]:
        """The environment's rewards of the text of each response."""
        asked = {"do": "judge", "settings": self._settings}
        replies = self.replies([{**asked, "data": problem.answer, "response": text} for problem, text in answers])
        if not self._reported and (fault := next((r["problem"] for r in replies if "problem" in r), None)):
            self._reported = True
            log.warning("task.environment=%s failed to judge a response: %s", self._name, fault)
        return [self._reward(reply) for reply in replies]

    def _reward(self, reply: Mapping[str, Any]) -> Reward:
        if "score" not in reply:
            return Reward(0.0, reply["outcome"])
        is_correct = reply["score"] >= self.full - ROUNDING
        return Reward(float(is_correct) if self.binary else reply["score"], "correct" if is_correct else "wrong")
