"""`python -m analysis audit`: a stratified sample of judged answers to be labelled by a person, and scores that carry
the verifier's errors.

Of each arm and benchmark as many answers are drawn of those that the verifier called right as of the others. With a
verifier's mean m, false rights a and false wrongs b, each a share of labelled answers, the corrected mean is
m·(1 − a) + (1 − m)·b: prediction-powered inference (Angelopoulos et al. 2023), stratified by the prediction.
"""

import json
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from analysis.exchange import chosen, home
from analysis.frames.frames import Frames
from analysis.scores import student
from analysis.scores.arm import Arm, arms
from analysis.scores.cell import cell, last_points
from analysis.scores.crossed import LEVEL
from analysis.scores.metric import Kind, benchmarks
from rlvr.ledger import terminal
from rlvr.ledger.files import write_atomically

KEY = ("run_id", "step", "source", "problem_id", "sample")
SHOWN = ("prompt", "right_answer", "response")
Place = tuple[Arm, str, bool]  # arm, benchmark, whether the verifier called the answer right
Row = Mapping[str, Any]
Rate = tuple[int, int]  # errors, labels
EXAMPLES = """\
examples:
  python -m analysis audit first-try --n 100 --out labels.jsonl     # set each "label" to true or false: is it right?
  python -m analysis audit first-try --labels labels.jsonl          # what the scores are, with the verifier's errors
"""


def main(arguments: Sequence[str]) -> None:
    """Raises LookupError for unknown runs, runs whose answers are not at hand, and labels that do not fit."""
    parser = terminal.Parser("python -m analysis audit", description=(__doc__ or "").strip(), epilog=EXAMPLES)
    parser.add_argument("what", nargs="*", help="a study, a sweep, or runs (default: newest study)")
    parser.add_argument("--home", type=Path, help=terminal.HOME_HELP)
    parser.add_argument("--n", type=int, default=100, help="answers in all (default: 100)")
    parser.add_argument("--seed", type=int, default=0, help="of the draw (default: 0)")
    parser.add_argument("--out", type=Path, default=Path("labels.jsonl"), help="the file (default: labels.jsonl)")
    parser.add_argument("--labels", type=Path, help="a labelled file, to be read back")
    options = parser.parse_args(arguments)
    frames, _ = chosen(home(options.home), options.what, mixed_code=False)
    strata = _strata(frames)
    if options.labels is not None:
        print("\n".join(_report(frames, strata, _labels(options.labels))))
        return
    if options.out.exists():
        raise LookupError(f"{options.out} exists already. Pass another name with --out, or remove it.")
    rows = drawn(strata, options.n, options.seed)
    with write_atomically(options.out) as aside:
        aside.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    print(f"{options.out}: {len(rows)} answers. Set each label to true or false, then --labels {options.out}.")


def _strata(frames: Frames) -> dict[Place, list[Row]]:
    """The answers of the last evaluations. Raises LookupError if no run has all of its answers at hand."""
    strata: dict[Place, list[Row]] = {}
    for arm in arms(frames) if frames.stored.complete else ():
        for run_id, point in last_points(frames, arm).items():
            table = frames.stored.read(run_id, point.after, (*KEY[2:], *SHOWN, "outcome"))
            rows: list[dict[str, Any]] = [] if table is None else table.to_pylist()
            for row in (row for row in rows if row["outcome"] != "error"):
                place = (arm, row["source"], row["outcome"] == "correct")
                strata.setdefault(place, []).append({"run_id": run_id, "step": point.after, **row})
    if not strata:
        raise LookupError("no finished run of these has the answers of its last evaluation at hand.")
    return strata


def drawn(strata: Mapping[Place, Sequence[Row]], number: int, seed: int) -> list[dict[str, Any]]:
    """Answers in equal numbers from each stratum, in an order and without a word that says how they were judged."""
    each, rng = number // len(strata), np.random.default_rng(seed)
    if each < 2:
        raise LookupError(f"--n {number}: {len(strata)} strata (arm, benchmark, verdict) need 2 answers each or more.")
    picked = [rows[i] for rows in strata.values() for i in rng.permutation(len(rows))[:each]]
    rows = [picked[i] for i in rng.permutation(len(picked))]
    return [{name: row.get(name) for name in (*KEY, *SHOWN)} | {"label": None} for row in rows]


def _labels(file: Path) -> dict[Hashable, bool]:
    labels: dict[Hashable, bool] = {}
    for number, line in enumerate(file.open(encoding="utf-8"), start=1):
        try:
            row = json.loads(line)
            known = {True: {_key(row): True}, False: {_key(row): False}, None: {}}[row["label"]]
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise LookupError(
                f"{file}, line {number}: {type(error).__name__}: {error}. A line is one that was written, with a label "
                "that is true, false, or null to leave it out."
            ) from None
        if any(labels.get(key, label) != label for key, label in known.items()):
            raise LookupError(
                f"{file}, line {number}: a line above has another label for this answer. Keep one of them."
            )
        labels |= known
    return labels


def _key(row: Row) -> Hashable:
    return tuple(row[name] for name in KEY)


def corrected(mean: float, half: float, false_right: Rate, false_wrong: Rate) -> tuple[float, float, float]:
    """A mean whose verifier erred, and its 95 % interval. half: of the mean's own interval; false_right, false_wrong:
    (errors, labels). An error rate has its variance under (errors + ½)/(labels + 1), so that none seen is not none."""
    (a, n), (b, m) = false_right, false_wrong
    centre = mean * (1 - a / n) + (1 - mean) * b / m
    spread = [p * (1 - p) / k for p, k in (((a + 0.5) / (n + 1), n), ((b + 0.5) / (m + 1), m))]
    error = math.sqrt(mean**2 * spread[0] + (1 - mean) ** 2 * spread[1])
    audit = float(student.critical(LEVEL, math.inf)) * error
    whole = math.hypot((1 - a / n - b / m) * half, audit)
    return centre, max(0.0, centre - whole), min(1.0, centre + whole)


def _report(frames: Frames, strata: Mapping[Place, Sequence[Row]], labels: Mapping[Hashable, bool]) -> Iterable[str]:
    """A line per arm and benchmark. Raises LookupError for labels of other answers, and where a stratum has none."""
    rates: dict[tuple[Arm, str], dict[bool, Rate]] = {}
    for (arm, source, right), rows in strata.items():
        known = [labels[key] for key in map(_key, rows) if key in labels]
        if not known:
            raise LookupError(
                f"{arm.label or arm.loss}, {source}: no answer called {'right' if right else 'wrong'} has a label."
            )
        rates.setdefault((arm, source), {})[right] = (sum(label != right for label in known), len(known))
    if (number := sum(n for of_both in rates.values() for _, n in of_both.values())) < len(labels):
        raise LookupError(f"{len(labels) - number} labels are of answers that these runs lack.")
    _, metrics = benchmarks(frames, [run.run_id for run in frames.rows])
    average = next(metric for metric in metrics if metric.kind == Kind.AVG)
    for (arm, source), of_both in rates.items():
        (a, n), (b, m) = of_both.get(True, (0, 1)), of_both.get(False, (0, 1))  # no such answers: a rate without weight
        scored = cell(frames, arm, average, (source,))
        mean, ends = scored.mean, scored.interval()
        values = (*corrected(mean, max(mean - ends[0], ends[1] - mean), (a, n), (b, m)), mean, *ends)
        found, low, high, of_verifier, least, most = (f"{100 * value:.1f}" for value in values)
        yield (
            f"{arm.label or arm.loss}, {source}: {found} [{low}, {high}] %. The verifier says "
            f"{of_verifier} [{least}, {most}] %; of its rights {a} of {n} are false, of the others {b} of {m}."
        )
