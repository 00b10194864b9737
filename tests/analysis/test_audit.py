"""Answers to be labelled, and scores that carry the verifier's errors: by hand, by simulation, through the command."""

import json
import math

import numpy as np
import pytest

from analysis import audit, command
from analysis.scores.cell import Cell
from analysis.scores.contrast import Scores
from tests.analysis.ledger_factory import counts, write_planned


def test_a_corrected_mean_by_hand() -> None:
    """0.5·(1 − 2/20) + 0.5·1/20 = 0.475. Half of it: 0.85 of the mean's own, and 1.96 times the root of
    0.25·(2.5/21·18.5/21 + 1.5/21·19.5/21)/20."""
    spread = 0.25 * (2.5 * 18.5 + 1.5 * 19.5) / 21**2 / 20
    half = math.sqrt((0.85 * 0.04) ** 2 + 1.959964**2 * spread)
    assert audit.corrected(0.5, 0.04, (2, 20), (1, 20)) == pytest.approx((0.475, 0.475 - half, 0.475 + half))


@pytest.mark.slow
@pytest.mark.parametrize(("false_right", "false_wrong"), [(0.0, 0.0), (0.02, 0.1), (0.2, 0.05)])
@pytest.mark.parametrize("labels", [25, 100])
def test_the_truth_lies_in_the_interval(false_right: float, false_wrong: float, labels: int) -> None:
    """In 95 %, which 600 audits know to ± 1.8 (two errors); the verifier's own interval misses errors of 20 % nearly
    always. Three seeds, 2 points apart; P(called right) is q where the truth is a mean of q(1 − a) + (1 − q)b."""
    rng, inside, missed = np.random.default_rng([labels, round(100 * false_right)]), 0, 0
    truth = 0.4 * (1 - false_right) + 0.6 * false_wrong
    for _ in range(600):
        rate = rng.beta(2, 3, 200) + rng.normal(0, 0.02, (3, 1))
        called = rng.binomial(8, np.clip(rate, 0, 1)) / 8
        cell = Cell.of(Scores((0, 1, 2), tuple(range(200)), called, np.zeros(200, np.int64)), 3)
        half = cell.interval()[1] - cell.mean
        errors = [(int(rng.binomial(labels, p)), labels) for p in (false_right, false_wrong)]
        _, low, high = audit.corrected(cell.mean, half, errors[0], errors[1])
        inside += low <= truth <= high
        missed += abs(cell.mean - truth) > half
    assert inside / 600 >= 0.95 - 0.018
    assert false_right < 0.2 or missed > 0.5 * 600


def test_a_person_labels_a_file_and_the_score_is_corrected(tmp_path, capsys) -> None:
    """Half of the answers were called right; a person finds each third of these wrong, and no other right."""
    typed = {f"loss=grpo seed={seed}": {40: {"maze7": counts(*[4] * 30)}} for seed in (0, 1)}
    write_planned(tmp_path, typed)
    file, home = tmp_path / "labels.jsonl", ["--home", str(tmp_path)]
    assert command.main(["audit", *home, "--n", "24", "--out", str(file)]) == 0
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(rows) == 24
    assert {*rows[0]} == {*audit.KEY, *audit.SHOWN, "label"}  # not how it was judged
    rights = [row for row in rows if row["sample"] < 4]  # those that the factory calls correct
    assert len(rights) == 12
    for row in rows:
        row["label"] = row in rights and rights.index(row) % 3 != 0
    rows[0]["response"] = "one\u2028line"  # of JSON, though str.splitlines takes it for two
    file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    capsys.readouterr()
    assert command.main(["audit", *home, "--labels", str(file)]) == 0
    said = capsys.readouterr().out
    assert "maze7: 33.3 [" in said
    assert "of its rights 4 of 12 are false, of the others 0 of 12" in said


@pytest.mark.parametrize("label", ['"yes"', "[1]"])
def test_a_label_that_is_none_is_one_line(tmp_path, capsys, label: str) -> None:
    write_planned(tmp_path, {"loss=grpo seed=0": {40: {"maze7": counts(*[4] * 9)}}})
    file, home = tmp_path / "labels.jsonl", ["--home", str(tmp_path)]
    assert command.main(["audit", *home, "--n", "4", "--out", str(file)]) == 0
    file.write_text(file.read_text().replace('"label": null', f'"label": {label}', 1))
    assert command.main(["audit", *home, "--labels", str(file)]) == command.BAD_INPUT
    assert "line 1" in capsys.readouterr().err
    first = file.read_text().splitlines()[0].replace(f'"label": {label}', '"label": true')
    file.write_text(f"{first}\n{first.replace('true', 'false')}\n")
    assert command.main(["audit", *home, "--labels", str(file)]) == command.BAD_INPUT
    assert "line 2: a line above has another label" in capsys.readouterr().err
    assert command.main(["audit", *home, "--n", "3"]) == command.BAD_INPUT
    assert command.main(["audit", *home, "--out", str(file)]) == command.BAD_INPUT
