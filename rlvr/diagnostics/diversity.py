"""How different the responses of an evaluation are: by their words, their embeddings, a rule, a judge; and their cost.

python -m rlvr.diagnostics.diversity EVALUATION... [options]

EVALUATION is a run of `python -m rlvr.evaluate` (id, name or directory), or a study or sweep of them. Measured of the
first --set samples of each problem, 16 by default, so that evaluations of other sizes can be compared:

  distinct-3, distinct-4            different n-grams of words over all of them (LAD, Table 4)
  rule, 1 to 5                      LAD's scale by the share of the most common right answer, where tasks name answers
  S_div                             --embedder NAME: 1 - mean cosine of all pairs (PACS, Table 3); sentence-transformers
  judge, 1 to 5                     --judge URL --judge-model NAME: LAD's scale by a model (docs/evaluate.md)
  tokens per right answer           of all samples: what a right answer costs
  rating, percentile                --ratings FILE [--contestants FILE]: on CodeForces' scale

`python -m analysis --study evaluation` shows them. Nothing is measured twice; other measures are added.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from rlvr.diagnostics.judge import Judge
from rlvr.ledger import journal, layout, terminal
from rlvr.ledger.files import whole
from rlvr.ledger.runs import read_config, read_info
from rlvr.ledger.sweeps import Ledger
from rlvr.metrics import approach_score, distinct_n, elo_rating, embedding_diversity, percentile

COLUMNS = ["source", "problem_id", "measure", "value"]
COUNTED = re.compile(r"evaluation/(.+)/distinct_correct_at_\d+")
WHOLE = ""  # in the place of a problem: a number of the whole benchmark
ARTICLES = ("sample", "prompt", "response", "answer", "outcome", "num_tokens")


@dataclass(frozen=True)
class AnsweredProblem:
    """The samples of one problem of an evaluation, in order: a row each, with the columns ARTICLES."""

    source: str
    id: str
    samples: pd.DataFrame

    @property
    def right(self) -> pd.DataFrame:
        return self.samples[self.samples["outcome"] == "correct"]

    @property
    def judged(self) -> int:
        """Samples that the verifier could judge: no other counts as right or as wrong."""
        return int((self.samples["outcome"] != "error").sum())


@dataclass(frozen=True)
class Ratings:
    """of_problem: rating by problem, from `file`; contestants: their ratings [N], None where they were not given."""

    file: Path
    of_problem: Mapping[str, float]
    contestants: np.ndarray | None


Measured = Iterator[tuple[str, str, str, float]]  # COLUMNS
Embed = Callable[[list[str]], np.ndarray]


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit codes: 0 done, 1 the judge does not answer, 2 bad input."""
    terminal.write_ascii_where_needed()
    options = _parser().parse_args(arguments)
    try:
        ratings = read_ratings(options.ratings, options.contestants)
        for run_dir in evaluations(options.sources, Ledger(layout.home())):
            measure(run_dir, options, ratings)
            print(f"{read_info(run_dir).name}: {layout.diversity(run_dir)}")
    except (ValueError, OSError) as error:
        print(f"rlvr.diagnostics.diversity: {terminal.one_line(error)}", file=sys.stderr)
        return 2
    except RuntimeError as error:
        print(f"rlvr.diagnostics.diversity: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = terminal.Parser("python -m rlvr.diagnostics.diversity", description=__doc__)
    parser.add_argument("sources", nargs="+", metavar="EVALUATION", help="a run, a study or a sweep of evaluations")
    parser.add_argument("--set", type=int, default=16, metavar="K", help="responses of a problem that are compared")
    parser.add_argument("--embedder", metavar="NAME", help="a model of sentence-transformers: a name or a directory")
    parser.add_argument(
        "--judge", metavar="URL", help="a server of OpenAI's protocol, such as http://127.0.0.1:8000/v1"
    )
    parser.add_argument("--judge-model", metavar="NAME", help="the model that it is asked for")
    parser.add_argument("--ratings", type=Path, metavar="FILE", help="CSV of problem_id and rating")
    parser.add_argument("--contestants", type=Path, metavar="FILE", help="ratings of contestants, a number a line")
    return parser


def evaluations(sources: Iterable[str], ledger: Ledger) -> list[Path]:
    """Directories of finished evaluations. Raises ValueError for a source that has none."""
    found: dict[Path, None] = {}
    for source in sources:
        sweeps = ledger.resolve_sweeps(source)
        if layout.info(Path(source)).is_file():
            ids = [Path(source).resolve()]
        else:
            names = [run for sweep in sweeps for run in sweep.run_ids] if sweeps else [ledger.resolve_run(source)]
            ids = [ledger.run_dir(name) for name in names]
        own = [run_dir for run_dir in ids if read_config(run_dir).get("policy") and layout.evaluations(run_dir)]
        if not own:
            raise ValueError(f"{source} has no finished evaluation. `python -m rlvr.evaluate {source}` makes one.")
        found |= dict.fromkeys(own)
    return list(found)


def measure(run_dir: Path, options: argparse.Namespace, ratings: Ratings | None) -> None:
    """Measure what was asked for, beside what was measured before."""
    if options.set < 2:
        raise ValueError(f"--set {options.set}: at least two responses are compared.")
    if bool(options.judge) != bool(options.judge_model):
        raise ValueError("--judge URL and --judge-model NAME are given together.")
    everything = list(problems(layout.evaluations(run_dir)[-1]))
    most = int(min(len(problem.samples) for problem in everything))
    if options.set > most and (options.embedder or options.judge):
        name = read_info(run_dir).name
        raise ValueError(f"--set {options.set}: {name} has {most} samples of a problem. Pass --set {most}.")
    sets = [problem for problem in everything if len(problem.samples) >= options.set]
    if not sets:
        few = f"{read_info(run_dir).name} has {most} samples of a problem"
        print(f"{few}: distinct-n and the rule are left out. Pass --set {most} for sets of that size.", file=sys.stderr)
    named = with_several_answers(run_dir)
    by_name = [problem for problem in sets if problem.source in named]
    measures = [lexical(sets, options.set), cost(everything), by_rule(by_name, options.set)]
    if ratings is not None:
        measures.append(rated(everything, ratings))
    if options.embedder:
        file = layout.embeddings(run_dir, options.embedder)
        measures.append(embedded(sets, options.set, options.embedder, _embedder(options.embedder), file))
    if options.judge:
        judge = Judge(options.judge, options.judge_model, layout.judgements(layout.home_of_run(run_dir)))
        measures.append(judged(sets, options.set, judge))
    for each in measures:  # one that fails loses none of those before it
        if rows := list(each):
            _add(layout.diversity(run_dir), pd.DataFrame(rows, columns=COLUMNS))


def with_several_answers(run_dir: Path) -> set[str]:
    """The benchmarks of an evaluation whose tasks count different right answers. Where a problem has one, ways to write
    it are not approaches."""
    records = journal.read(layout.journal(run_dir)).records
    found = {COUNTED.fullmatch(name) for record in records for name in record.metrics}
    return {match[1] for match in found if match}


def problems(file: Path) -> Iterator[AnsweredProblem]:
    """Of an evaluation, in order."""
    frame = pq.read_table(file, columns=["source", "problem_id", *ARTICLES]).to_pandas()
    for (source, problem), samples in frame.groupby(["source", "problem_id"], sort=False):
        yield AnsweredProblem(str(source), str(problem), samples.sort_values("sample"))


# --- the measures


def lexical(sets: Sequence[AnsweredProblem], size: int) -> Measured:
    """distinct-n of the words of the first `size` responses: the size of a set decides it, so all have the same."""
    for problem in sets:
        words = [str(text).split() for text in problem.samples["response"].head(size)]
        for n in (3, 4):
            yield problem.source, problem.id, f"distinct-{n} of {size}", distinct_n(words, n)


def by_rule(sets: Sequence[AnsweredProblem], size: int) -> Measured:
    """LAD's scale where right answers name the approach: of problems with at least two of them."""
    for problem in sets:
        first = problem.samples.head(size)
        named = first.loc[first["outcome"] == "correct", "answer"].dropna()
        if len(named) > 1:
            yield problem.source, problem.id, f"rule of {size}", float(approach_score(list(named)))


def cost(everything: Sequence[AnsweredProblem]) -> Measured:
    """Tokens per right answer of each benchmark; NaN where nothing is right."""
    for source in dict.fromkeys(problem.source for problem in everything):
        own = [problem for problem in everything if problem.source == source]
        tokens = sum(int(problem.samples["num_tokens"].sum()) for problem in own)
        right = sum(len(problem.right) for problem in own)
        yield source, WHOLE, "tokens per right answer", tokens / right if right else math.nan


def embedded(sets: Sequence[AnsweredProblem], size: int, embedder: str, embed: Embed, file: Path) -> Measured:
    """S_div of PACS, of all responses of a set and of the right ones; the embeddings of these are kept for figures."""
    kept: list[dict[str, Any]] = []
    for problem in sets:
        first = problem.samples.head(size)
        vectors = embed([str(text) for text in first["response"]])
        right = np.flatnonzero((first["outcome"] == "correct").to_numpy())
        yield problem.source, problem.id, f"S_div of {size}, {embedder}", embedding_diversity(vectors)
        if len(right) > 1:
            yield problem.source, problem.id, f"S_div, right of {size}, {embedder}", embedding_diversity(vectors[right])
        numbers = first["sample"].to_numpy()
        kept += [
            {"source": problem.source, "problem_id": problem.id, "sample": int(numbers[i]), "embedding": vectors[i]}
            for i in right
        ]
    _write(file, pd.DataFrame(kept, columns=["source", "problem_id", "sample", "embedding"]))


def _embedder(name: str) -> Embed:
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise ValueError("--embedder needs sentence-transformers: pip install 'rlvr[embed]'.") from error
    try:
        model = SentenceTransformer(name)
    except (OSError, ValueError) as error:
        raise ValueError(f"--embedder {name} cannot be loaded: {' '.join(str(error).split())[:300]}") from error
    return lambda texts: np.asarray(model.encode(texts, show_progress_bar=False), dtype=np.float32)


def judged(sets: Sequence[AnsweredProblem], size: int, judge: Judge) -> Measured:
    """LAD's scale by a model."""
    asked = [
        (str(problem.samples["prompt"].iloc[0]), [str(text) for text in problem.samples["response"].head(size)])
        for problem in sets
    ]
    values = judge.scores(asked)
    if without := sum(map(math.isnan, values)):
        print(f"the judge gave no number for {without} of {len(values)} problems: they are left out.", file=sys.stderr)
    for problem, value in zip(sets, values, strict=True):
        yield problem.source, problem.id, f"judge of {size}, {judge.model}", value


def read_ratings(file: Path | None, contestants: Path | None) -> Ratings | None:
    """Of --ratings and --contestants. Raises ValueError, or OSError, for files that cannot be read."""
    if file is None:
        if contestants is not None:
            raise ValueError("--contestants is for the percentile of a rating: pass --ratings FILE too.")
        return None
    known = pd.read_csv(file, dtype={"problem_id": str})
    if not {"problem_id", "rating"} <= set(known.columns):
        raise ValueError(f"--ratings {file} has no columns problem_id and rating.")
    known = known.dropna(subset=["rating"])
    of_problem = dict(zip(known["problem_id"], known["rating"].astype(float), strict=True))
    return Ratings(file, of_problem, None if contestants is None else np.loadtxt(contestants, ndmin=1))


def rated(everything: Sequence[AnsweredProblem], ratings: Ratings) -> Measured:
    """A rating of each benchmark whose problems have one, and the share of contestants below it."""
    rows = [p for p in everything if p.id in ratings.of_problem]
    if not rows:
        raise ValueError(f"--ratings {ratings.file} has a rating of none of the problems, such as {everything[0].id}.")
    for source in dict.fromkeys(problem.source for problem in rows):
        own = [problem for problem in rows if problem.source == source and problem.judged]
        if not own:
            continue
        solved = [len(problem.right) / problem.judged for problem in own]
        rating = elo_rating(solved, [ratings.of_problem[problem.id] for problem in own])
        yield source, WHOLE, "rating", rating
        if ratings.contestants is not None and not math.isnan(rating):
            yield source, WHOLE, "percentile", percentile(rating, ratings.contestants)


# --- the record


def _add(file: Path, rows: pd.DataFrame) -> None:
    """Measures that were made before stay, unless they were made again."""
    if file.exists():
        before = pd.read_parquet(file)
        rows = pd.concat([before[~before["measure"].isin(set(rows["measure"]))], rows], ignore_index=True)
    _write(file, rows)


def _write(file: Path, rows: pd.DataFrame) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with whole(file) as aside:
        rows.to_parquet(aside, index=False)


if __name__ == "__main__":
    sys.exit(main())
