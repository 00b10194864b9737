"""Evaluation samples that other trainers wrote, imported as one run: a JSONL or Parquet file, or a folder of them.

The fields that are read from each row, by format (docs/analysis.md, "Runs of other trainers"):

| format | files | prompt | response | judged by | problem | step |
|---|---|---|---|---|---|---|
| rlvr | any name | prompt | response | outcome, else reward | source, problem_id | step |
| verl | `trainer.validation_data_dir`: <step>.jsonl | input | output | acc, else score | input, gts | step |
| trl | completions/*.parquet | prompt | completion | the reward column | prompt | step |
| prime-rl | step_<step>/eval/*/traces.jsonl | nodes | nodes | rewards, weighted | env, task | run, else folder |
| | step_<step>/eval_rollouts.jsonl, results.jsonl | prompt | completion | reward | task, example_id | of the folder |

Samples without a step get the step UNNUMBERED, which is not 0: they come from a trained policy, not the base policy.
"""

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, cast, get_args

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from analysis.frames.counts import counted
from analysis.frames.digest import What
from analysis.frames.frames import CHOICES, IMPORTED, Frames
from analysis.frames.runs import RunRecord, runs_frame
from analysis.frames.samples import of_table
from analysis.frames.tables import Tables, joined, schema
from rlvr.ledger.cause import State
from rlvr.ledger.sweeps import Sweep
from rlvr.metrics import pass_at_k
from rlvr.records import Outcome

OUTCOMES = get_args(Outcome)
MOST_SAMPLES = 5_000_000
UNNUMBERED = 1
_TRL_KNOWN = frozenset(("step", "prompt", "completion", "advantage", "mode", "image", "images"))


@dataclass(frozen=True)
class Sample:
    step: int
    source: str
    problem_id: str
    prompt: str
    response: str
    outcome: str
    num_tokens: int = 0


@dataclass(frozen=True)
class Dump:
    """The options of an import.

    arm: `NAME`, or knobs as in `loss=grpo lr=1e-6`; source: the benchmark of rows that do not name theirs; reward: the
    column that judges, "" for the format's own; correct_from: the smallest reward of a right answer, None: rewards must
    be 0 or 1, or −1 or 1.
    """

    path: Path
    format: str
    arm: str
    seed: int = 0
    source: str = ""
    reward: str = ""
    correct_from: float | None = None


class RowPosition(NamedTuple):
    """Where a row stands, for messages. unit: what the file has, `line` or `row`; number: counted from 1."""

    file: Path
    unit: str
    number: int

    def __str__(self) -> str:
        return f"{self.file}, {self.unit} {self.number}"


def frames(dump: Dump) -> Frames:
    """The frames of one finished run. Raises LookupError, with the reason, for a dump that cannot be read."""
    reader = _READERS.get(dump.format)
    if reader is None:
        raise LookupError(f"--format {dump.format}: there is no such format. Formats: {', '.join(_READERS)}.")
    samples = list(islice(reader(dump), MOST_SAMPLES + 1))
    if len(samples) > MOST_SAMPLES:
        raise LookupError(f"{dump.path} holds more than {MOST_SAMPLES:,} samples. Import it in parts.")
    if not samples:
        raise LookupError(f"{dump.path} holds no sample.")
    if all(sample.outcome == "error" for sample in samples):
        raise LookupError(f"{dump.path}: none of its {len(samples)} samples was judged. Pass --reward NAME?")
    knobs = tuple(dump.arm.split()) if "=" in dump.arm else (f"arm={dump.arm.replace(' ', '_')}",)
    name = f"{'-'.join(k.partition('=')[2] for k in knobs)}-s{dump.seed}"
    run_id = hashlib.sha256(repr((knobs, dump.seed, samples)).encode()).hexdigest()[:12]
    config = dict(knob.split("=", 1) for knob in knobs if "=" in knob)
    record = RunRecord(
        run_id=run_id,
        group_id=hashlib.sha256(repr(knobs).encode()).hexdigest()[:12],
        name=name,
        arm=name.rpartition("-s")[0],
        study=IMPORTED,
        state=State.FINISHED.value,
        created=0.0,
        overrides=knobs,
        config={"seed": dump.seed, **{f"choices.{k}" if k in CHOICES else k: v for k, v in config.items()}},
    )
    line = {"run_id": run_id, "name": name, "overrides": list(knobs), "seed": dump.seed}
    swept = {key: [value] for key, value in config.items()}
    sweep = Sweep(f"import-{run_id}", {"study": IMPORTED, "swept": swept}, (line,))
    responses = _responses(run_id, samples)
    of_step = {step: responses.filter(pc.field("step") == step) for step in sorted({s.step for s in samples})}
    counts = joined("counts", ((run_id, counted(table, step)) for step, table in of_step.items()))
    digest = pa.Table.from_pylist([{"run_id": run_id, **row} for row in _logged(counts)], schema("digest"))
    tables = {"counts": counts, "digest": digest, "responses": responses}
    return Frames(
        runs=runs_frame([record], {run_id: sweep.sweep_id}),
        tables=Tables({name: (lambda table=table: table) for name, table in tables.items()}),
        stored=of_table(responses, complete=True),
        study=IMPORTED,
        title=IMPORTED,
        notes=(f"{name}: {len(samples)} samples in the format of {dump.format}, read from {dump.path.name}.",),
        sweeps=(sweep,),
    )


# --- tables


def _responses(run_id: str, samples: list[Sample]) -> pa.Table:
    num_before: Counter[tuple[int, str, str]] = Counter()  # samples of the same problem in earlier rows
    rows: list[dict[str, Any]] = []
    for sample in samples:
        key = (sample.step, sample.source, sample.problem_id)
        rows.append({"run_id": run_id, "sample": num_before[key], **sample.__dict__})
        num_before[key] += 1
    return pa.Table.from_pylist(rows, schema("responses"))


def _logged(counts: pa.Table) -> Iterator[dict[str, Any]]:
    """avg@n and pass@n, as an evaluation of this project logs them; n: the fewest judged samples of a problem."""
    judged = counts.filter(pc.field("n") > 0).to_pandas()
    n = int(judged["n"].min()) if len(judged) else 0
    for (step, source), problems in judged.groupby(["step", "source"], observed=True):
        row = {"what": What.LOGGED.value, "step": step}
        average = math.fsum(problems["correct"] / problems["n"]) / len(problems)
        yield {**row, "name": f"evaluation/{source}/avg_at_{n}", "value": average}
        passed = pass_at_k(problems["n"].to_list(), problems["correct"].to_list(), n)
        yield {**row, "name": f"evaluation/{source}/pass_at_{n}", "value": float(passed.mean())}


# --- formats


def _ours(dump: Dump) -> Iterator[Sample]:
    for place, row in _rows(dump.path):
        problem, outcome = _need(row, "problem_id", place), row.get("outcome")
        if outcome is not None and outcome not in OUTCOMES:
            raise LookupError(f"{place}: outcome {outcome!r} is not one of {', '.join(OUTCOMES)}.")
        yield Sample(
            _whole_number(row, "step", place, UNNUMBERED),
            str(row.get("source") or dump.source or "dump"),
            str(problem),
            _text(row.get("prompt")),
            _text(row.get("response")),
            str(outcome) if outcome is not None else _judged(row, dump.reward or "reward", dump, place),
            _whole_number(row, "num_tokens", place),
        )


def _verl(dump: Dump) -> Iterator[Sample]:
    for place, row in _rows(dump.path):
        prompt = _text(_need(row, "input", place))
        reward = dump.reward or ("acc" if row.get("acc") is not None else "score")
        yield Sample(
            _whole_number(row, "step", place, _step_in(place.file, dump)),
            str(row.get("data_source") or dump.source or "verl"),
            _problem_id(prompt, row.get("gts")),
            prompt,
            _text(_need(row, "output", place)),
            _judged(row, reward, dump, place),
        )


def _trl(dump: Dump) -> Iterator[Sample]:
    for place, row in _rows(dump.path):
        if row.get("mode") not in (None, "eval"):
            continue  # a sample of training
        prompt = _text(_need(row, "prompt", place))
        rewards = [k for k, v in row.items() if k not in _TRL_KNOWN and (v is None or isinstance(v, int | float))]
        if not dump.reward and len(rewards) != 1:
            known = ", ".join(rewards) or "none"
            raise LookupError(f"{place} has no single reward column. Pass --reward NAME, one of: {known}.")
        yield Sample(
            _whole_number(row, "step", place, UNNUMBERED),
            dump.source or "trl",
            _problem_id(prompt),
            prompt,
            _text(_need(row, "completion", place)),
            _judged(row, dump.reward or rewards[0], dump, place),
        )


def _prime_rl(dump: Dump) -> Iterator[Sample]:
    for place, row in _rows(dump.path):
        if isinstance(row.get("traces"), list):
            yield from _of_episode(row, dump, place)
            continue
        source = str(row.get("env_name") or row.get("task") or dump.source or "prime-rl")
        error = row.get("error") not in (None, "", False)
        yield Sample(
            _whole_number(row, "step", place, _step_in(place.file, dump)),
            source,
            str(_need(row, "example_id", place)),
            _text(row.get("prompt")),
            _text(_need(row, "completion", place)),
            "error" if error else _judged(row, dump.reward or "reward", dump, place),
        )


def _of_episode(row: Mapping[str, Any], dump: Dump, place: RowPosition) -> Iterator[Sample]:
    """One sample for each agent's trace in an episode of an evaluation.

    The folder `all` has every episode, failed ones included; `effective`, beside it, repeats some of them.
    """
    work = _object(_object(row.get("run")).get("work"))
    file = place.file
    is_repeat = file.parent.name == "effective" and (file.parents[1] / "all" / file.name).exists()
    if is_repeat or work.get("type") == "train" or "train" in (file.parent.name, file.parents[1].name):
        return
    env, task = _object(row.get("env")), _object(row.get("task"))
    traces = [trace for trace in map(_object, row["traces"]) if trace.get("dropped") is None]
    agents = {str(_object(trace.get("agent")).get("name")) for trace in traces}
    data = _object(task.get("data"))
    ids = (task.get("key"), task.get("hash"), data.get("id"), data.get("idx"))
    problem = next((str(task_id) for task_id in ids if task_id is not None), "")
    for trace in traces or [{}]:  # an episode that failed before any answer counts as not judged
        nodes = map(_object, trace.get("nodes") or [])
        messages = [(bool(node.get("sampled")), _object(node.get("message"))) for node in nodes]
        name = str(env.get("name") or env.get("id") or dump.source or "prime-rl")
        prompt = _text([message for sampled, message in messages if not sampled])
        yield Sample(
            _whole_number(work, "step", place, _step_in(place.file, dump)),
            f"{name}/{_object(trace.get('agent')).get('name')}" if len(agents) > 1 else name,
            problem or _problem_id(prompt),
            prompt,
            _text(trace.get("root_reply")) or _text([message for sampled, message in messages if sampled]),
            _judged({"reward": _reward(trace, dump.reward, place)}, "reward", dump, place)
            if trace.get("ok")
            else "error",
            _whole_number(trace, "num_output_tokens", place),
        )


def _object(content: Any) -> Mapping[str, Any]:
    """The JSON object; an empty one in place of anything else."""
    return cast(Mapping[str, Any], content) if isinstance(content, dict) else {}


def _reward(trace: Mapping[str, Any], name: str, place: RowPosition) -> float:
    """The weighted sum of a trace's rewards, or the score of the named one; NaN if the trace was not judged."""
    rewards = _object(trace.get("rewards"))
    if name and name not in rewards:
        raise LookupError(f"--reward {name}: there is no such reward. Here: {', '.join(rewards) or 'none'}.")
    chosen = [rewards[name]] if name else list(rewards.values())
    if not chosen or any(reward is None for reward in chosen):
        return math.nan
    total: int | float = 0
    for value in chosen:
        weight, score = _object(value).get("weight", 1.0), _object(value).get("score")
        if not isinstance(score, int | float) or not isinstance(weight, int | float):
            raise LookupError(f"{place}: reward {value!r} has no score, or no weight, that is a number.")
        total += score * (1.0 if name else weight)
    return total


_READERS: dict[str, Callable[[Dump], Iterator[Sample]]]
_READERS = {"rlvr": _ours, "verl": _verl, "trl": _trl, "prime-rl": _prime_rl}
FORMATS = tuple(_READERS)


# --- rows


def _rows(path: Path) -> Iterator[tuple[RowPosition, Mapping[str, Any]]]:
    """(place, row) of every row of the JSONL and Parquet files, in the order of their names."""
    files = [path] if path.is_file() else sorted([*path.rglob("*.jsonl"), *path.rglob("*.parquet")])
    if not files:
        raise LookupError(f"{path}: there is no such file, or no .jsonl or .parquet file in it.")
    for file in files:
        yield from _parquet(file) if file.suffix == ".parquet" else _jsonl(file)


def _parquet(file: Path) -> Iterator[tuple[RowPosition, Mapping[str, Any]]]:
    number = 0
    try:
        for batch in pq.ParquetFile(file).iter_batches():
            for row in batch.to_pylist():
                number += 1
                yield RowPosition(file, "row", number), row
    except (OSError, pa.ArrowException) as error:
        raise LookupError(f"{file} cannot be read: {error}") from None


def _jsonl(file: Path) -> Iterator[tuple[RowPosition, Mapping[str, Any]]]:
    with file.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            place = RowPosition(file, "line", number)
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise LookupError(f"{place}: {error}") from None
            if not isinstance(row, dict):
                raise LookupError(f"{place} is no JSON object.")
            yield place, cast(dict[str, Any], row)


def _need(row: Mapping[str, Any], name: str, place: RowPosition) -> Any:
    """A value that the format requires. Raises LookupError if the row lacks it."""
    if row.get(name) is None:
        raise LookupError(f"{place} is a row without {name}. Its columns: {', '.join(row)}. Another --format?")
    return row[name]


def _judged(row: Mapping[str, Any], name: str, dump: Dump, place: RowPosition) -> str:
    """The outcome for a reward; null and NaN: not judged. A reward other than −1, 0 and 1 needs --correct-from."""
    if name not in row:
        _need(row, name, place)
    value = row[name]
    if value is not None and not isinstance(value, int | float):
        raise LookupError(f"{place}: {name} is {value!r:.80}, which is no number, true or false.")
    if value is None or math.isnan(value):
        return "error"  # not judged; True and False count as 1 and 0
    if dump.correct_from is not None:
        return "correct" if value >= dump.correct_from else "wrong"
    if value not in (-1, 0, 1):
        raise LookupError(
            f"{place}: {name} is {value:g}, and only −1, 0 and 1 can be read as right or wrong. Pass the smallest "
            "reward of a right answer, as in --correct-from 0.5"
        )
    return "correct" if value == 1 else "wrong"


def _text(content: Any) -> str:
    """The content as text; of a conversation, its turns."""
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, list):
        turns = [cast(Mapping[str, Any], turn) for turn in cast(list[Any], content) if isinstance(turn, dict)]
        alone = len(turns) == 1
        return "\n".join(
            _text(turn.get("content")) if alone else f"[{turn.get('role', '?')}] {_text(turn.get('content'))}"
            for turn in turns
        )
    return json.dumps(content, ensure_ascii=False, default=str)


def _problem_id(*parts: Any) -> str:
    """An id for a problem that has none: the same for the same prompt and answer."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]


def _whole_number(row: Mapping[str, Any], name: str, place: RowPosition, default: int = 0) -> int:
    """A whole number from 0 to 2³¹ − 1; the default for a missing value, as in a Parquet column with gaps."""
    value = row.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**31 or value != int(value):
        raise LookupError(f"{place}: {name} is {value!r}, and must be a whole number from 0 to {2**31 - 1}.")
    return int(value)


def _step_in(file: Path, dump: Dump) -> int:
    """`120.jsonl` → 120; `step_120/eval_rollouts.jsonl` → 120; UNNUMBERED if no name in the path is a step.

    The dump's own directory, and those above it, may have a number for another reason: they need the word `step`.
    """
    num_inside = len(file.relative_to(dump.path).parents) - 1 if dump.path.is_dir() else 0
    folders = [folder.name for folder in file.parents]
    above = [name for name in folders[num_inside:] if "step" in name]
    for name in (file.stem, *folders[:num_inside], *above):
        if match := re.fullmatch(r"(?:(?:global_)?step[_-]?)?(\d+)", name):
            return int(match[1])
    return UNNUMBERED
