from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from analysis.figures import diversity as figure_room
from analysis.frames.load import load
from analysis.tables import diversity as table_room
from rlvr.diagnostics.diversity import AnsweredProblem, Ratings, main, rated
from rlvr.ledger import layout
from tests.analysis.ledger_factory import config, counts, write_run, write_sweep

# Problem 0: four right answers of five, three approaches; problem 1: none right.
TEXTS = [["a b c", "a b c", "a b d", "c c c", "d d d"], ["a a a"] * 5]
ANSWERS = [["x", "x", "y", "z", None], [None] * 5]
WORDS = "abcd"
VECTORS = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [-1.0, 0.5]], dtype=np.float32)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RLVR_HOME", str(tmp_path))
    planned = []
    for name in ("base", "lad@40"):
        frozen = {**config("grpo"), "policy": {"name": name, "digest": name, "path": "/x"}, "steps": 1}
        frozen = {**frozen, "loss": None, "choices": {"task": "maze"}}
        evaluation = {1: {"maze7": counts(4, 0, n=5)}}
        counted = {1: {"evaluation/maze7/distinct_correct_at_5": 1.5}}
        run_id = write_run(
            tmp_path,
            frozen,
            evaluation,
            name=f"{name}-s0",
            study="evaluation",
            logged_at=counted if name == "base" else {},
        )
        file = layout.evaluation(layout.run(tmp_path, run_id), 1)
        rows = pd.read_parquet(file)
        rows["response"], rows["answer"] = [*TEXTS[0], *TEXTS[1]], [*ANSWERS[0], *ANSWERS[1]]
        rows["prompt"], rows["num_tokens"] = "how?", 6
        rows.to_parquet(file)
        planned.append((run_id, f"{name}-s0", [f"policy={name}", "seed=0"]))
    write_sweep(tmp_path, "abcd1234", planned, study="evaluation")
    return tmp_path


def make_embedder(path: Path) -> Path:
    """A model that embeds a text as the mean of its words' vectors, saved in sentence-transformers' format."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding

    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_weights=VECTORS)], device="cpu").save(str(path))
    return path


def measured(home: Path, name: str = "base") -> dict[tuple[str, str], float]:
    """Values by problem and measure."""
    rows = pd.read_parquet(layout.diversity(layout.run(home, f"id-{name}-s0")))
    return {(p, m): v for p, m, v in rows[["problem_id", "measure", "value"]].itertuples(index=False)}


def mean_distance(texts: list[str]) -> float:
    rows = [np.mean([VECTORS[WORDS.index(word)] for word in text.split()], axis=0) for text in texts]
    unit = [row / np.sqrt(np.sum(row**2)) for row in rows]
    pairs = [1 - float(unit[m] @ unit[n]) for m in range(len(unit)) for n in range(m + 1, len(unit))]
    return sum(pairs) / len(pairs)


def test_words_rules_cost_and_rating_are_counted(home: Path, tmp_path: Path) -> None:
    (tmp_path / "ratings.csv").write_text("problem_id,rating\nmaze7-0,1500\nmaze7-1,1500\nother,9\n")
    (tmp_path / "contestants").write_text("1000\n1300\n1400\n2000\n")
    words = ["evaluation", "--set", "4", "--ratings", str(tmp_path / "ratings.csv")]
    assert main([*words, "--contestants", str(tmp_path / "contestants")]) == 0
    measures = measured(home)
    assert measures["maze7-0", "distinct-3 of 4"] == 3 / 4  # abc twice, abd, ccc
    assert measures["maze7-1", "distinct-3 of 4"] == 1 / 4
    assert np.isnan(measures["maze7-0", "distinct-4 of 4"])  # no response has four words
    assert measures["maze7-0", "rule of 4"] == 3  # x is half of the right ones, 8 of 16
    assert "rule of 4" not in {measure for _, measure in measured(home, "lad@40")}  # whose task has one right answer
    assert ("maze7-1", "rule of 4") not in measures
    assert measures["", "tokens per right answer"] == 10 * 6 / 4
    # 0.4 of problems of 1500: 400 log10(2/3) = -70.44 below
    assert measures["", "rating"] == pytest.approx(1500 - 70.4365, abs=1e-3)
    assert measures["", "percentile"] == 0.75


def test_a_rating_is_of_what_the_verifier_could_judge() -> None:
    """Right 4 of 4, 4 not judged; wrong 8 of 8; none judged: half of problems rated 1000 and 1500, so 1250."""
    outcomes = {"a": ["correct"] * 4 + ["error"] * 4, "b": ["wrong"] * 8, "c": ["error"] * 8}
    problems = [AnsweredProblem("bench", name, pd.DataFrame({"outcome": values})) for name, values in outcomes.items()]
    ratings = Ratings(Path("ratings.csv"), {"a": 1000, "b": 1500, "c": 3000}, None)
    assert [value for *_, value in rated(problems, ratings)] == [pytest.approx(1250)]


def test_measures_of_sets_larger_than_the_evaluation_are_left_out_with_a_message(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluation", "--set", "6"]) == 0
    assert "5 samples of a problem: distinct-n and the rule are left out. Pass --set 5" in capsys.readouterr().err
    assert not {measure for _, measure in measured(home)} & {"distinct-3 of 6", "rule of 6"}


@pytest.mark.slow
def test_embeddings_by_any_model_measures_stay_and_the_table_and_figure_show_them(home: Path, tmp_path: Path) -> None:
    assert main(["evaluation", "--set", "4"]) == 0
    embedder = make_embedder(tmp_path / "embedder")
    assert main(["evaluation", "--set", "5", "--embedder", str(embedder)]) == 0
    measures = measured(home)
    assert measures["maze7-0", "distinct-3 of 4"] == 3 / 4  # of the first command
    assert measures["maze7-0", f"S_div of 5, {embedder}"] == pytest.approx(mean_distance(TEXTS[0]), abs=1e-6)
    assert measures["maze7-0", f"S_div, right of 5, {embedder}"] == pytest.approx(mean_distance(TEXTS[0][:4]), abs=1e-6)
    assert measures["maze7-1", f"S_div of 5, {embedder}"] == pytest.approx(0, abs=1e-6)
    frames = load(home, study="evaluation")
    table = table_room.table(frames)
    assert table is not None
    cells = {
        (row, column): mean for row, column, mean in table.cells[["row", "column", "mean"]].itertuples(index=False)
    }
    assert cells["lad@40", f"S_div of 5, {embedder}"] == pytest.approx(mean_distance(TEXTS[0]) / 2, abs=1e-6)
    assert cells["lad@40", "tokens per right answer"] == 15
    figure = figure_room.figure(frames)
    assert figure is not None
    assert [axes.get_title(loc="left") for axes in figure.axes if axes.get_visible()] == ["maze7-0"]


def test_the_plane_is_that_in_which_all_centred_answers_vary_most() -> None:
    along = np.outer([-2.0, 0.0, 2.0], [0.0, 0.0, 1.0, 0.0])
    across = np.outer([-1.0, 1.0], [0.0, 1.0, 0.0, 0.0])
    plane = figure_room.projected({"wide": along + 7, "narrow": across - 3})
    assert np.abs(plane["wide"]) == pytest.approx(np.array([[2, 0], [0, 0], [2, 0]]))
    assert np.abs(plane["narrow"]) == pytest.approx(np.array([[0, 1], [0, 1]]))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--set", "1"], "at least two responses"),
        (["--judge", "http://127.0.0.1:1/v1"], "--judge-model NAME are given together"),
        (["--set", "9", "--judge", "http://127.0.0.1:1/v1", "--judge-model", "m"], "Pass --set 5"),
        (["--set", "4", "--judge", "here", "--judge-model", "m"], "is no address"),
        (["--set", "4", "--embedder", "/no/such"], "--embedder /no/such"),
        # Before anything is embedded or judged:
        (["--set", "4", "--embedder", "/no/such", "--ratings", "nosuch.csv"], "nosuch.csv: No such file"),
        (["--set", "4", "--contestants", "nosuch.txt"], "pass --ratings FILE too"),
    ],
)
def test_bad_input_is_one_line(home: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str) -> None:
    assert main(["id-base-s0", *words]) == 2
    assert message in capsys.readouterr().err
    assert not layout.diversity(layout.run(home, "id-base-s0")).exists()
