import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode

from analysis import command, findings
from analysis.frames import bundle
from analysis.frames.frames import grouped
from analysis.frames.load import load
from analysis.report import report
from analysis.report.grid import text_of
from analysis.report.table import Format
from analysis.scores.claim import Outcome, Verdict, read
from analysis.tables import comparison
from rlvr.config.compose import Points
from sweeps.growing import tuning
from sweeps.launcher import GridSweep
from sweeps.plan import plan
from sweeps.session import Session
from tests.analysis.ledger_factory import counts, write_planned
from tests.support.composed import REGISTRY

DOCS = Path(__file__).parents[2] / "docs"
PAGE, EVIDENCE = DOCS / "studies.md", sorted((DOCS / "evidence").glob("*.rlvr"))
PRETRAINED = sorted((DOCS / "evidence" / "pretrained").glob("*.rlvr"))
CLAIMS = [
    {
        **{"says": "PACS ends more accurate", "metric": "avg", "arm": "loss=pacs", "relation": ">"},
        **{"printed": "28.9 | 25.8", "source": "PACS, Table 2"},
    },
    {"says": "PACS ends less accurate", "metric": "avg", "arm": "loss=pacs", "relation": "<"},
    {"says": "PACS beats PPO", "metric": "avg", "arm": "loss=pacs", "relation": ">", "against": "loss=ppo"},
]


def write_bundle(
    home: Path,
    file: Path,
    study: str,
    *,
    seeds: Sequence[int] = (0, 2, 4),
    grpo: int = 3,
    claims: Sequence[Mapping[str, Any]] = CLAIMS,
    frozen: Mapping[str, Any] = {},
    words: str = "",
) -> None:
    """PACS has 5 of 8 right on every problem, under odd seeds 6."""
    ends_of = {}
    for seed in seeds:
        for loss, right in (("grpo", grpo), ("pacs", 6 if seed % 2 else 5)):
            ends_of[f"loss={loss} {words}seed={seed}"] = {step: {"maze7": counts(*[right] * 30)} for step in (0, 40)}
    write_planned(home, ends_of, claims=claims, study=study, frozen=frozen)
    frames = load(home, study=study)
    report.page(frames, report.build(frames, with_figures=False), {})
    bundle.write(frames, file)


def test_verdicts_are_counted_and_stand_beside_what_was_printed(tmp_path):
    write_bundle(tmp_path, tmp_path / "one.rlvr", "one")
    text = findings.findings([tmp_path / "one.rlvr"], tmp_path / "no studies")
    assert text.startswith("- Claims of papers: 1 of 1 decided (100 %): holds 1.\n")
    assert "\n- Controls, which test the study: none.\n" in text
    assert "\n- Claims of our own: 1 of 2 decided (50 %): contradicted 1, not tested 1.\n" in text
    (row,) = [line for line in text.splitlines() if line.startswith("| PACS ends more accurate")]
    cells = [cell.strip() for cell in row.replace("\\|", "/").strip("|").split("|")]
    assert cells[1] == "28.9 / 25.8 (PACS, Table 2)"
    assert cells[2].startswith("**holds**: +25 [")
    assert "**not tested**: there is no arm loss=ppo to compare to" in text
    assert "6 runs (6 finished), seeds 0, 2, 4, commit " in text
    assert " Bundles: `one.rlvr`.\n" in text


def test_controls_and_claims_of_a_study_without_a_bundle_are_counted_apart(tmp_path):
    write_bundle(tmp_path, tmp_path / "one.rlvr", "one")
    folder = tmp_path / "sweeps"
    folder.mkdir()
    control = {**CLAIMS[1], "says": "Control: PACS ends less accurate"}
    for name, claims in (("one", [CLAIMS[0], control]), ("two", CLAIMS)):
        (folder / f"{name}.yaml").write_text(json.dumps({"claims": claims}), encoding="utf-8")
    text = findings.findings([tmp_path / "one.rlvr"], folder)
    assert "- Claims of our own: 0 of 2 decided (0 %): not tested 2.\n" in text  # those of two
    assert "- Claims of papers: 1 of 2 decided (50 %): holds 1, not tested 1.\n" in text
    assert "- Controls, which test the study: 1 of 1 decided (100 %): contradicted 1.\n" in text
    assert "- Not tested, for their studies have no bundle: those of two.\n" in text


def test_claims_are_those_of_the_file_today_and_one_that_is_new_says_so(tmp_path):
    write_bundle(tmp_path, tmp_path / "one.rlvr", "one")
    today = tmp_path / "sweeps" / "one.yaml"
    today.parent.mkdir()
    reworded, other = {**CLAIMS[0], "says": "It is better"}, {**CLAIMS[0], "relation": "~ 1"}
    today.write_text(json.dumps({"claims": [reworded, other]}), encoding="utf-8")
    lines = findings.findings([tmp_path / "one.rlvr"], today.parent).splitlines()
    (kept,) = [line for line in lines if line.startswith("| It is better |")]
    (new,) = [line for line in lines if line.startswith("| PACS ends more accurate (stated after the runs) |")]
    assert "| **holds**: +25 [" in kept
    assert "| **contradicted**: +25 [" in new


def test_seeds_that_were_added_count_with_the_first_and_both_looks_share_the_error(tmp_path):
    """Differences of 25, 37.5, 25, 37.5, 25 and 37.5 points: 31.25 ± t·6.847/√6, where t of 5 degrees of freedom is
    3.163 at 97.5 %."""
    for name, seeds in (("first", (0, 1)), ("more", (2, 3, 4, 5))):
        write_bundle(tmp_path / name, tmp_path / f"{name}.rlvr", "one", seeds=seeds)
    text = findings.findings([tmp_path / "more.rlvr", tmp_path / "first.rlvr"], tmp_path / "no studies")
    (row,) = [line for line in text.splitlines() if line.startswith("| PACS ends more accurate |")]
    assert "+31.2 [22.4, 40.1] points" in row
    assert "6 seeds, 30 problems, 97.5 %" in row
    assert "the 2 looks share the 5 %" in text
    assert text.count("### one") == 1
    assert "12 runs (12 finished), seeds 0, 1, 2, 3, 4, 5, commit " in text


def test_base_policies_that_were_added_are_a_look_and_settings_of_two_instruments_are_paired_by_name(tmp_path):
    """Two settings on the one instrument, of the second alone on the other."""
    folder = tmp_path / "no studies"
    for base in range(3):
        words = f"model.seed={base} "
        write_bundle(tmp_path / f"b{base}", tmp_path / f"{base}.rlvr", "one", seeds=(0, 1, 2), words=words)
    assert "looks share" not in findings.findings([tmp_path / "0.rlvr"], folder)
    text = findings.findings([tmp_path / f"{base}.rlvr" for base in range(3)], folder)
    assert "More was run after a look at the first: the 3 looks share the 5 %" in text
    assert "; avg@8, last evaluations, 3 base policies of 3 seeds, τ = 0 points, I² = 0 %, 30 problems, 98.33 %" in text

    verdict = Verdict(read(CLAIMS[0]), Outcome.HOLDS)
    here, there = (replace(verdict, setting=f"task.size={size}") for size in (7, 9))
    study = findings._Study("one", "", {"a": "", "b": ""}, {"a": [here, there], "b": [there]})
    assert study.rows() == [[here, None], [there, there]]
    alone = findings._Study("one", "", {"a": "", "b": ""}, {"a": [here], "b": [there]})
    assert alone.rows() == [[here, there]]
    of_another = replace(verdict, claim=replace(verdict.claim, source="another paper"))
    assert findings._Study("one", "", {"a": ""}, {"a": [verdict, of_another]}).rows() == [[verdict], [of_another]]


def test_each_instrument_has_a_column_and_where_they_disagree_is_listed(tmp_path):
    """A pretrained model, on which PACS has 1 of 8 less than GRPO's 6, in a file of any name."""
    wide = {**CLAIMS[0], "says": "PACS solves more", "metric": "pass@16"}
    phrases = {**CLAIMS[1], "says": "PACS has other words", "metric": "evaluation/maze7/words"}
    claims = [*CLAIMS[:2], wide, phrases]
    big = {"model": {"path": "lab/Big-1B@0123abc"}, "choices": {"task": "sums", "model": "hf"}}
    for name, grpo, frozen in (("a", 6, big), ("b", 3, {})):
        write_bundle(tmp_path / name, tmp_path / f"{name}.rlvr", "one", grpo=grpo, claims=claims, frozen=frozen)
    text = findings.findings([tmp_path / "a.rlvr", tmp_path / "b.rlvr"], tmp_path / "no studies")
    rows = [[cell.strip() for cell in line.replace("\\|", "/").strip("|").split("|")] for line in text.splitlines()]
    (head,) = [row for row in rows if row[0] == "claim"]
    more, less, solves, words = [[cell.partition(" [")[0] for cell in row[2:]] for row in rows if row[0][:4] == "PACS"]
    assert head[2:] == ["maze", "lab/Big-1B, sums"]
    assert (more, less) == (
        ["**holds**: +25", "**contradicted**: −12.5"],
        ["**contradicted**: +25", "**holds**: −12.5"],
    )
    assert [cell.split(": ")[0] for cell in solves] == ["**not tested**"] * 2
    assert text.count("**not tested**: saturated: ") == 2  # pass@8 in place of pass@16, which no run has
    assert words == ["**not tested**: no run measured evaluation/maze7/words"] * 2
    assert "- On lab/Big-1B, sums 2 of 4 claims are decided, 2 not tested; in the first column 2 of them. " in text
    assert (
        "Both decide 2, and agree on 0; they disagree on `one: PACS ends more accurate` (holds, contradicted); " in text
    )


def test_adapters_and_full_weights_of_one_model_are_two_instruments(tmp_path):
    """Each has its own file, whose name of the model is that of the file without its folder and ending. Seeds of one
    task alone belong to both."""
    model = {"model": {"path": "/models/Small-135M.Q4_1.gguf"}, "choices": {"task": "sums"}}
    for rank, expected in ((16, "Small-135M.Q4_1 (LoRA), sums"), (None, "Small-135M.Q4_1, sums")):
        home = tmp_path / str(rank)
        write_bundle(home, home.with_suffix(".rlvr"), "one", frozen={**model, "trainer": {"lora_rank": rank}})
        assert findings.instrument(bundle.read(home.with_suffix(".rlvr"))) == expected
    tasks = {"a": ((0, 1), "maze"), "b": ((0, 1), "arithmetic"), "later": ((2, 3), "maze")}
    for name, (seeds, task) in tasks.items():
        about = {"frozen": {"choices": {"task": task}}, "words": f"task.size={len(task)} "}
        write_bundle(tmp_path / name, tmp_path / f"{name}.rlvr", "one", seeds=seeds, **about)
    a, b, later = (bundle.read(tmp_path / f"{name}.rlvr") for name in tasks)
    assert findings.instruments([later, bundle.merged([a, b])]) == ["arithmetic, maze"] * 2
    assert findings.instruments([b, a]) == ["arithmetic", "maze"]


def test_claims_that_say_the_same_of_another_metric_or_relation_have_a_row_each(tmp_path):
    """On each of two instruments, though none has pass@16."""
    claims = [{**CLAIMS[0], **change} for change in ({}, {"relation": "<"}, {"metric": "pass@16"})]
    for name, frozen in (("a", {}), ("b", {"model": {"path": "lab/Big-1B@0123abc"}})):
        write_bundle(tmp_path / name, tmp_path / f"{name}.rlvr", "one", claims=claims, frozen=frozen)
    text = findings.findings([tmp_path / "a.rlvr", tmp_path / "b.rlvr"], tmp_path / "no studies")
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| PACS ends more accurate")]
    outcomes = ["**holds**", "**contradicted**", "**not tested**"]
    assert [[cell.partition(":")[0] for cell in row[-2:]] for row in rows] == [[outcome] * 2 for outcome in outcomes]


def test_runs_that_repeat_an_arm_may_become_its_seeds(tmp_path):
    """Seeds 2 and 3 of GRPO are a control (`controls=seeds`) until PACS has them, too: a second look."""
    grpo, pacs = ([f"loss={loss} seed={seed}" for seed in range(4)] for loss in ("grpo", "pacs"))
    control = {words.replace("=", "").replace(" ", "-"): "seeds" for words in grpo[2:]}
    parts = {"first": ([*grpo, *pacs[:2]], control, 1000.0), "more": ([*grpo[2:], *pacs[2:]], {}, 2000.0)}
    for name, (planned, repeated, created) in parts.items():
        ends = {words: {40: {"maze7": counts(*[3 + 2 * (words in pacs)] * 30)}} for words in planned}
        about = {"claims": CLAIMS, "study": "one", "control": repeated, "fate": {"created": created}}
        write_planned(tmp_path / name, ends, name, **about)
        bundle.write(load(tmp_path / name, study="one"), tmp_path / f"{name}.rlvr")
    text = findings.findings([tmp_path / "first.rlvr", tmp_path / "more.rlvr"], tmp_path / "no studies")
    assert "8 runs (8 finished), seeds 0, 1, 2, 3" in text
    assert "the 2 looks share the 5 %" in text


def test_the_part_of_a_page_is_replaced_and_the_rest_is_left(tmp_path):
    page = f"# Studies\n\n{findings.BEGIN}\nold\n{findings.END}\n\nBelow.\n"
    once = findings.inserted(page, "new\n")
    assert once == f"# Studies\n\n{findings.BEGIN}\nnew\n{findings.END}\n\nBelow.\n"
    assert findings.inserted(once, "new\n") == once
    with pytest.raises(LookupError, match="one line <!-- findings -->"):
        findings.inserted("# Studies\n", "new\n")


def test_the_command_writes_the_page_or_says_in_a_line_why_not(tmp_path, capsys):
    write_bundle(tmp_path, tmp_path / "one.rlvr", "one")
    page = tmp_path / "page.md"
    page.write_text(f"{findings.BEGIN}\n{findings.END}\n", encoding="utf-8")
    assert command.main(["findings", str(tmp_path / "one.rlvr"), "--into", str(page)]) == 0
    assert findings.findings([tmp_path / "one.rlvr"]) in page.read_text(encoding="utf-8")
    capsys.readouterr()
    assert command.main(["findings", str(tmp_path / "two.rlvr"), "--into", str(page)]) == 2
    message = capsys.readouterr().err
    assert len(message.splitlines()) == 1
    assert "two.rlvr" in message


@pytest.mark.slow
def test_the_page_of_studies_is_what_its_evidence_gives():
    text = PAGE.read_text(encoding="utf-8")
    assert findings.inserted(text, findings.findings([*EVIDENCE, *PRETRAINED])) == text
    assert len(text.splitlines()) <= 250


def test_the_verdicts_of_the_readme_are_those_of_the_page_of_studies():
    studies = PAGE.read_text(encoding="utf-8").splitlines()
    lines = (DOCS.parent / "README.md").read_text(encoding="utf-8").splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.count("|") == 4]
    verdicts = [row for row in rows if row[-1].startswith("**")]
    assert len(verdicts) >= 3
    for says, measured, verdict in verdicts:
        assert any(line.startswith(f"| {says}") and measured in line and verdict in line for line in studies), says


@pytest.mark.slow
@pytest.mark.usefixtures("composing")
def test_the_runs_of_every_bundle_are_those_of_its_study_today_or_the_page_says_that_they_are_not():
    """A changed default or setting cannot pass for the one that was run."""
    page = PAGE.read_text(encoding="utf-8")
    for file in EVIDENCE:
        frames = bundle.read(file)
        strangers = set(frames.runs["group_id"]) - planned_today(frames.study)  # whatever their seeds: some were added
        assert not strangers or f"`{frames.study}` ran in another setting" in page, file.name


def planned_today(study: str) -> set[str]:
    """The groups of the runs that a study's file plans."""
    words = [f"study={study}"]
    loader = GlobalHydra.instance().config_loader()
    assert isinstance(loader, ConfigLoaderImpl)
    master = loader.load_configuration("run", words, RunMode.MULTIRUN)
    tried = tuning.read(master.tune, []).values if master.tune else [()]  # of which each arm has its best
    grid = GridSweep(master, master.hydra.sweeper.params)
    with Session(registry=REGISTRY).entered():
        points = [grid.points([*words, *value]) for value in tried]
    return {run.group_id for of_value in points for run in plan(Points(loader, master, of_value), command="").runs}


@pytest.mark.slow
def test_the_scores_of_a_pretrained_model_are_those_of_its_bundles():
    """All of them, and no others. Runs that two studies share stand in both bundles; a study's later seeds are in a
    bundle of their own, and runs of all weights are no row of the adapters'."""
    of_study = grouped(map(bundle.read, PRETRAINED), lambda frames: (frames.study, findings.instrument(frames)))
    expected = set[tuple[bool, str]]()
    for (_, instrument), parts in of_study.items():
        table = comparison.table(bundle.merged(parts))
        assert table is not None
        texts = {(c["row"], c["metric"]): text_of(c, Format(decimals=1), marked=False) for c in table.records}
        of_arms = (f"{row} | {texts[row, 'avg@4']} | {texts[row, 'pass@4']}" for row, _ in texts)
        expected |= {("(LoRA)" in instrument, row) for row in of_arms}
    lines = (DOCS / "pretrained.md").read_text(encoding="utf-8").splitlines()
    cells = [line.strip("| ").split(" | ", 1) for line in lines if line.startswith("| `")]
    assert {("all weights" not in study, row) for study, row in cells} == expected
