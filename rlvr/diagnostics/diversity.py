"""How different the responses of an evaluation are: by their words, their embeddings, a rule, a judge; and their cost.

python -m rlvr.diagnostics.diversity EVALUATION... [options]

EVALUATION is a run of `python -m rlvr.evaluate` (id, name or directory), or a study or sweep of them. Measured on the
first --set samples of each problem, 16 by default, so that evaluations of different sizes can be compared:

  distinct-3, distinct-4            share of different n-grams of words (LAD, Table 4)
  rule, 1 to 5                      LAD's scale by the share of the most common right answer, where tasks name answers
  S_div                             --embedder NAME: 1 - mean cosine of all pairs (PACS, Table 3); sentence-transformers
  judge, 1 to 5                     --judge URL --judge-model NAME: LAD's scale by a model (docs/evaluate.md)
  tokens per right answer           of all samples: what a right answer costs
  rating, percentile                --ratings FILE [--contestants FILE]: on CodeForces' scale

`python -m analysis --study evaluation` shows the results. Measures that a later command does not repeat are kept.
"""

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
from rlvr.ledger.files import write_atomically
from rlvr.ledger.runs import read_config, read_info
from rlvr.ledger.sweeps import Ledger
from rlvr.metrics import approach_score, distinct_n, elo_rating, embedding_diversity, percentile
from rlvr.records import name_part

COLUMNS = ["source", "problem_id", "measure", "value"]
DISTINCT_CORRECT = re.compile(r"evaluation/(.+)/distinct_correct_at_\d+")
ALL_PROBLEMS = ""  # problem id of a measure of a whole benchmark
SAMPLE_COLUMNS = ("sample", "prompt", "response", "answer", "outcome", "num_tokens")


@dataclass(frozen=True)
class AnsweredProblem:
    """The samples of one problem of an evaluation, in order: one row each, with the columns SAMPLE_COLUMNS."""

    source: str
    id: str
    samples: pd.DataFrame

    @property
    def right(self) -> pd.DataFrame:
        return self.samples[self.samples["outcome"] == "correct"]

    @property
    def num_judged(self) -> int:
        """Number of samples that the verifier could judge; the others count neither as right nor as wrong."""
        return int((self.samples["outcome"] != "error").sum())


@dataclass(frozen=True)
class Ratings:
    """of_problem: problem id to rating, read from `file`. contestants: their ratings [N]; None: no --contestants."""

    file: Path
    of_problem: Mapping[str, float]
    contestants: np.ndarray | None


Measures = Iterator[tuple[str, str, str, float]]  # rows with the columns COLUMNS
Embed = Callable[[list[str]], np.ndarray]


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit codes: 0 done, 1 the judge cannot be reached or refuses, 2 bad input."""
    terminal.set_up()
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
    parser.add_argument("--set", type=int, default=16, metavar="K", help="responses of each problem that are compared")
    parser.add_argument("--embedder", metavar="NAME", help="a model of sentence-transformers: a name or a directory")
    parser.add_argument(
        "--judge", metavar="URL", help="a server with OpenAI's protocol, such as http://127.0.0.1:8000/v1"
    )
    parser.add_argument("--judge-model", metavar="NAME", help="name of the judge's model on that server")
    parser.add_argument("--ratings", type=Path, metavar="FILE", help="CSV with columns problem_id and rating")
    parser.add_argument("--contestants", type=Path, metavar="FILE", help="ratings of contestants, one number per line")
    return parser


def evaluations(sources: Iterable[str], ledger: Ledger) -> list[Path]:
    """Directories of finished evaluations, each once. Raises ValueError for a source that has none."""
    evaluation_dirs: dict[Path, None] = {}
    for source in sources:
        sweeps = ledger.resolve_sweeps(source)
        if layout.info(Path(source)).is_file():
            run_dirs = [Path(source).resolve()]
        else:
            run_ids = [run for sweep in sweeps for run in sweep.run_ids] if sweeps else [ledger.resolve_run(source)]
            run_dirs = [ledger.run_dir(run_id) for run_id in run_ids]
        of_source = [path for path in run_dirs if read_config(path).get("policy") and layout.evaluations(path)]
        if not of_source:
            raise ValueError(f"{source} has no finished evaluation. `python -m rlvr.evaluate {source}` makes one.")
        evaluation_dirs |= dict.fromkeys(of_source)
    return list(evaluation_dirs)


def measure(run_dir: Path, options: argparse.Namespace, ratings: Ratings | None) -> None:
    """Take the measures that `options` select, and add them to those of earlier commands."""
    if options.set < 2:
        raise ValueError(f"--set {options.set}: at least two responses are compared.")
    if bool(options.judge) != bool(options.judge_model):
        raise ValueError("--judge URL and --judge-model NAME are given together.")
    all_problems = list(problems(layout.evaluations(run_dir)[-1]))
    num_samples = int(min(len(problem.samples) for problem in all_problems))
    too_few = f"{read_info(run_dir).name} has {num_samples} samples of a problem"
    if options.set > num_samples and (options.embedder or options.judge):
        raise ValueError(f"--set {options.set}: {too_few}. Pass --set {num_samples}.")
    sets = [problem for problem in all_problems if len(problem.samples) >= options.set]
    if not sets:
        advice = f"Pass --set {num_samples} for sets of that size."
        print(f"{too_few}: distinct-n and the rule are left out. {advice}", file=sys.stderr)
    benchmarks = with_several_answers(run_dir)
    with_approaches = [problem for problem in sets if problem.source in benchmarks]
    measures = [lexical(sets, options.set), cost(all_problems), by_rule(with_approaches, options.set)]
    if ratings is not None:
        measures.append(rated(all_problems, ratings))
    if options.embedder:
        file = layout.embeddings(run_dir, name_part(options.embedder))
        measures.append(embedded(sets, options.set, options.embedder, _embedder(options.embedder), file))
    if options.judge:
        judge = Judge(options.judge, options.judge_model, layout.judgements(layout.home_of_run(run_dir)))
        measures.append(judged(sets, options.set, judge))
    for rows in map(list, measures):  # each is written at once, so that a failure loses none of those before it
        if rows:
            _add(layout.diversity(run_dir), pd.DataFrame(rows, columns=COLUMNS))


def with_several_answers(run_dir: Path) -> set[str]:
    """The benchmarks of an evaluation whose tasks count different right answers. If a problem has one right answer,
    different ways to write it are not different approaches.
    """
    records = journal.read(layout.journal(run_dir)).records
    matches = (DISTINCT_CORRECT.fullmatch(name) for record in records for name in record.metrics)
    return {match[1] for match in matches if match}


def problems(file: Path) -> Iterator[AnsweredProblem]:
    """The problems of an evaluation's file of samples, in order."""
    columns = ["source", "problem_id", *SAMPLE_COLUMNS]
    frame = pq.read_table(file, columns=columns, page_checksum_verification=True).to_pandas()
    for (source, problem), samples in frame.groupby(["source", "problem_id"], sort=False):
        yield AnsweredProblem(str(source), str(problem), samples.sort_values("sample"))


# --- the measures


def lexical(sets: Sequence[AnsweredProblem], size: int) -> Measures:
    """distinct-n of the words of the first `size` responses; it depends on `size`, hence one size for all sets."""
    for problem in sets:
        words = [str(text).split() for text in problem.samples["response"].head(size)]
        for n in (3, 4):
            yield problem.source, problem.id, f"distinct-{n} of {size}", distinct_n(words, n)


def by_rule(sets: Sequence[AnsweredProblem], size: int) -> Measures:
    """LAD's scale, with the answer as the name of the approach, for problems with at least two right answers."""
    for problem in sets:
        first = problem.samples.head(size)
        approaches = first.loc[first["outcome"] == "correct", "answer"].dropna()
        if len(approaches) > 1:
            yield problem.source, problem.id, f"rule of {size}", float(approach_score(list(approaches)))


def cost(all_problems: Sequence[AnsweredProblem]) -> Measures:
    """Tokens per right answer of each benchmark; NaN if no answer is right."""
    for source in dict.fromkeys(problem.source for problem in all_problems):
        of_source = [problem for problem in all_problems if problem.source == source]
        num_tokens = sum(int(problem.samples["num_tokens"].sum()) for problem in of_source)
        num_right = sum(len(problem.right) for problem in of_source)
        yield source, ALL_PROBLEMS, "tokens per right answer", num_tokens / num_right if num_right else math.nan


def embedded(sets: Sequence[AnsweredProblem], size: int, embedder: str, embed: Embed, file: Path) -> Measures:
    """S_div of PACS, over all responses of a set and over the right ones; the embeddings of the right ones are written
    to `file`, for figures.
    """
    rows: list[dict[str, Any]] = []
    for problem in sets:
        first = problem.samples.head(size)
        vectors = embed([str(text) for text in first["response"]])
        right = np.flatnonzero((first["outcome"] == "correct").to_numpy())
        yield problem.source, problem.id, f"S_div of {size}, {embedder}", embedding_diversity(vectors)
        if len(right) > 1:
            yield problem.source, problem.id, f"S_div, right of {size}, {embedder}", embedding_diversity(vectors[right])
        numbers = first["sample"].to_numpy()
        rows += [
            {"source": problem.source, "problem_id": problem.id, "sample": int(numbers[i]), "embedding": vectors[i]}
            for i in right
        ]
    _write(file, pd.DataFrame(rows, columns=["source", "problem_id", "sample", "embedding"]))


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


def judged(sets: Sequence[AnsweredProblem], size: int, judge: Judge) -> Measures:
    """LAD's scale, judged by a model."""
    questions = [
        (str(problem.samples["prompt"].iloc[0]), [str(text) for text in problem.samples["response"].head(size)])
        for problem in sets
    ]
    values = judge.scores(questions)
    num_missing = sum(map(math.isnan, values))
    if num_missing:
        counted = f"{num_missing} of {len(values)} problems"
        print(f"the judge returned no number for {counted}: they are left out.", file=sys.stderr)
    for problem, value in zip(sets, values, strict=True):
        yield problem.source, problem.id, f"judge of {size}, {judge.model}", value


def read_ratings(file: Path | None, contestants: Path | None) -> Ratings | None:
    """The files of --ratings and --contestants; None without them. Raises ValueError or OSError for a file that cannot
    be read.
    """
    if file is None:
        if contestants is not None:
            raise ValueError("--contestants is for the percentile of a rating: pass --ratings FILE too.")
        return None
    frame = pd.read_csv(file, dtype={"problem_id": str})
    if not {"problem_id", "rating"} <= set(frame.columns):
        raise ValueError(f"--ratings {file} has no columns problem_id and rating.")
    frame = frame.dropna(subset=["rating"])
    of_problem = dict(zip(frame["problem_id"], frame["rating"].astype(float), strict=True))
    return Ratings(file, of_problem, None if contestants is None else np.loadtxt(contestants, ndmin=1))


def rated(all_problems: Sequence[AnsweredProblem], ratings: Ratings) -> Measures:
    """The rating for each benchmark with rated problems, and the share of contestants below it."""
    with_rating = [problem for problem in all_problems if problem.id in ratings.of_problem]
    if not with_rating:
        example = all_problems[0].id
        raise ValueError(f"--ratings {ratings.file} has no rating for any of the problems, such as {example}.")
    for source in dict.fromkeys(problem.source for problem in with_rating):
        judged_problems = [problem for problem in with_rating if problem.source == source and problem.num_judged]
        if not judged_problems:
            continue
        solved = [len(problem.right) / problem.num_judged for problem in judged_problems]
        rating = elo_rating(solved, [ratings.of_problem[problem.id] for problem in judged_problems])
        yield source, ALL_PROBLEMS, "rating", rating
        if ratings.contestants is not None and not math.isnan(rating):
            yield source, ALL_PROBLEMS, "percentile", percentile(rating, ratings.contestants)


# --- the record


def _add(file: Path, rows: pd.DataFrame) -> None:
    """Add measures to those in the file; a measure that was taken again replaces the earlier one."""
    if file.exists():
        earlier = pd.read_parquet(file)
        kept = earlier[~earlier["measure"].isin(set(rows["measure"]))]
        rows = pd.concat([kept, rows], ignore_index=True)
    _write(file, rows)


def _write(file: Path, rows: pd.DataFrame) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with write_atomically(file) as aside:
        rows.to_parquet(aside, index=False)


if __name__ == "__main__":
    sys.exit(main())
