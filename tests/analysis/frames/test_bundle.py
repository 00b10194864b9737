"""A study in one file: the same report without the runs, the same bytes from the same runs, safe from a stranger."""

import contextlib
import io
import json
import math
import shutil
import zipfile
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from analysis import command
from analysis.exchange import joined
from analysis.figures import tuning as tuning_figure
from analysis.frames import bundle
from analysis.frames.bundle import COLUMNS
from analysis.frames.load import load
from analysis.frames.tables import SCHEMAS
from analysis.tables import tuning
from tests.analysis.ledger_factory import (
    BASE,
    change_sweep,
    config,
    config_of,
    counts,
    write_planned,
    write_run,
    write_study,
    write_sweep,
)


def files(folder: Path) -> dict[str, bytes]:
    return {str(f.relative_to(folder)): f.read_bytes() for f in sorted(folder.rglob("*")) if f.is_file()}


@pytest.fixture(scope="module")
def packed(tmp_path_factory) -> tuple[Path, Path]:
    """(a ledger with failed and missing runs, its bundle)."""
    home = tmp_path_factory.mktemp("bundle")
    write_study(home, spoil=True)
    assert command.main(["bundle", "study=default", "--home", str(home), "--out", str(home / "a.rlvr")]) == 0
    return home, home / "a.rlvr"


@pytest.mark.slow
def test_tables_figures_and_page_are_rebuilt_byte_for_byte_without_the_runs(packed, tmp_path):
    home, file = packed
    assert command.main(["--home", str(home), "--out", str(tmp_path / "runs")]) == 0
    shutil.copy(file, tmp_path / "elsewhere.rlvr")
    (tmp_path / "nowhere").mkdir()
    nowhere = str(tmp_path / "nowhere")
    assert command.main([str(tmp_path / "elsewhere.rlvr"), "--home", nowhere, "--out", str(tmp_path / "bundle")]) == 0
    ours, theirs = files(tmp_path / "runs" / "default"), files(tmp_path / "bundle" / "elsewhere-bundle")
    assert len(ours) > 10
    assert ours == theirs
    assert str(home) not in ours["index.html"].decode()


@pytest.mark.slow
def test_the_same_runs_give_the_same_bytes_whatever_was_read_before(packed, tmp_path):
    home, file = packed
    assert command.main(["--sweep", "abc12345", "--home", str(home), "--out", str(tmp_path), "--no-figures"]) == 0
    assert command.main(["bundle", "--home", str(home), "--out", str(tmp_path / "again")]) == 0
    assert (tmp_path / "again.rlvr").read_bytes() == file.read_bytes()


def test_two_bundles_of_half_a_study_compare_like_the_whole(tmp_path, capsys):
    starts, ends_of = {"maze7": counts(*(2,) * 30)}, {}
    for loss, right in (("grpo", 4), ("pacs", 6)):
        for seed in (0, 1, 2):
            ends = {"maze7": counts(*(right + (0, 1, -1)[(i + seed) % 3] for i in range(30)))}
            ends_of[f"loss={loss} seed={seed}"] = {0: starts, 40: ends}
    of_texts = {"says": "PACS repeats itself", "metric": "distinct-3", "arm": "loss=pacs", "relation": "<"}
    ids = write_planned(tmp_path, ends_of, claims=[of_texts | {"against": "loss=grpo"}])
    home = ["--home", str(tmp_path), "--out"]
    assert command.main([*home, str(tmp_path / "whole"), "--no-figures"]) == 0
    capsys.readouterr()
    assert command.main(["--home", str(tmp_path), "--claims"]) == 0
    verdict = capsys.readouterr().out.partition("\n")[2]
    assert "saturated: 1.8 to 1.8 %" in verdict  # one of the 8 x 7 phrases of three words
    for loss in ("grpo", "pacs"):
        runs = [run_id for run_id in ids if loss in run_id]
        assert command.main(["bundle", *runs, *home, str(tmp_path / f"{loss}.rlvr")]) == 0
    both = [str(tmp_path / "grpo.rlvr"), str(tmp_path / "pacs.rlvr"), str(tmp_path / "pacs.rlvr")]
    assert command.main([*both, "--out", str(tmp_path), "--no-figures"]) == 0
    (parts,) = tmp_path.glob("*-bundle-part/tables/comparison.csv")
    assert parts.read_text() == (tmp_path / "whole/default-part/tables/comparison.csv").read_text()
    assert "▲" in parts.read_text()
    capsys.readouterr()
    assert command.main([*both, "--claims"]) == 0
    assert verdict.strip() in capsys.readouterr().out
    assert command.main(["bundle", "nobody", "--home", str(tmp_path)]) == 2
    assert "There is no run nobody" in capsys.readouterr().err


def test_bundles_of_two_sweeps_or_runs_of_a_study_are_two_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for seed, name in enumerate(("first", "second")):
        run_id = write_run(tmp_path, config("grpo", seed=seed), {40: {"maze7": counts(6)}}, name=f"{name}-s{seed}")
        write_sweep(tmp_path, f"{name}-id", [(run_id, f"{name}-s{seed}", ["loss=grpo"])])
    for words in (["sweep=first-id"], ["second-i"], ["first-s0"], ["runs/first-s0", "second-s1"], []):
        assert command.main(["bundle", *words, "--home", str(tmp_path)]) == 0
    names = ["default", "default@first-id", "default@second-id", "first-s0", "first-s0-second-s1"]
    assert sorted(path.stem for path in tmp_path.glob("*.rlvr")) == names


def test_a_report_of_many_bundles_has_a_short_name_of_its_own():
    several = [f"{i}{'x' * 60}" for i in range(6)]
    first, second = joined(several), joined([*several[:5], "a"])
    assert first.startswith(f"0{'x' * 60}-and-5-more-")
    assert second.startswith(f"0{'x' * 60}-and-5-more-")
    assert first != second


def test_a_bundle_holds_every_evaluation_of_every_run_whatever_a_report_read(packed):
    """All eight responses to a problem are the same nine words: of their 8 x 7 phrases of three words one differs."""
    home, file = packed
    frames = bundle.read(file)
    evaluations = sorted(home.glob("runs/*/samples/test-*.parquet"))
    assert len(evaluations) > 20
    for of_run, step in ((path.parents[1].name, int(path.stem[5:])) for path in evaluations):
        distinct = frames.text_summary("distinct-3", of_run, step, "maze7")
        assert distinct == pytest.approx({f"maze7-{problem}": 1 / 56 for problem in range(4)})
        judged = frames.problem_counts(of_run, step, "maze7")
        assert judged.n.tolist() == [8] * 4
        right = frames.text_summary("right answers", of_run, step, "maze7")
        assert list(right.values()) == [float(c > 0) for c in judged.c]
    drawn = frames.thinned_history()
    assert drawn.groupby(["run_id", "name"], observed=True).size().tolist() == [40] * (12 * 6)


def test_a_bundle_names_no_directory_of_the_machine_but_tells_models_apart(tmp_path):
    """Neither in knobs nor in what was typed; what only looks like a path (1/η, a hub name, an address) stays."""
    paths = ("/home/ada/models/a/base", "/scratch/ada/models/b/base", "/home/ada/my models/c/base", "Qwen/Qwen2.5-0.5B")
    for seed, path in enumerate(paths):
        words = f"loss=grpo seed={seed} task.train=[/data/ada/x/train.jsonl,1/2] link=http://host:50/a/b"
        command = f"python -m rlvr.run {words} 'model.path={path}'"
        run_id = write_run(tmp_path, config_of(f"loss=grpo seed={seed}", model={"path": path}), {40: BASE})
        file = tmp_path / f"runs/{run_id}/run.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "command": command, "overrides": words.split()}))
    bundle.write(load(tmp_path), tmp_path / "a.rlvr")
    runs = bundle.read(tmp_path / "a.rlvr").runs.sort_values("seed")
    assert runs["config.model.path"].tolist() == ["…/a/base", "…/b/base", "…/c/base", "Qwen/Qwen2.5-0.5B"]
    with zipfile.ZipFile(tmp_path / "a.rlvr") as archive:
        written = archive.read("runs.json").decode() + archive.read("about.json").decode()
    for path in ("…/a/base", "…/b/base", "…/c/base", "Qwen/Qwen2.5-0.5B"):
        assert f"task.train=[…/x/train.jsonl,1/2] link=http://host:50/a/b 'model.path={path}'" in written
    assert "ada" not in written


def test_merged_bundles_have_the_claims_of_the_newest_launch(tmp_path):
    files = []
    for created, seed, baseline in ((1000.0, 0, "loss=grpo"), (2000.0, 1, "loss=rloo")):
        ends = {0: {"maze7": counts(4)}, 40: {"maze7": counts(6)}}
        write_planned(tmp_path, {f"loss=grpo seed={seed}": ends}, f"s{seed}", created=created, baseline=baseline)
        files.append(tmp_path / f"{seed}.rlvr")
        arguments = ["bundle", f"sweep=s{seed}", "--home", str(tmp_path), "--out", str(files[-1])]
        assert command.main(arguments) == 0
    for order in (files, files[::-1], [*files, files[0]]):
        together = bundle.merged([bundle.read(file) for file in order])
        assert (together.baseline, [sweep.sweep_id for sweep in together.sweeps]) == ("loss=rloo", ["s0", "s1"])


def test_a_run_of_two_bundles_is_read_from_the_newer_one(packed):
    frames = bundle.read(packed[1])
    stale = replace(frames, runs=frames.runs.assign(state="queued"), cache={})
    for order in ([stale, frames], [frames, stale]):
        assert bundle.merged(order).runs["state"].tolist() == frames.runs["state"].tolist()


def test_bundles_of_several_studies_have_the_claims_of_each(tmp_path, capsys):
    """In each study its claim is true of its own baseline, and false of the other's."""
    files = []
    rates = {"one": (("grpo", 3), ("pacs", 5)), "two": (("rloo", 6), ("pacs", 5)), "silent": (("dapo", 4),)}
    for number, (study, arms) in enumerate(rates.items()):
        ends_of = {
            f"loss={loss} lr={1 + number}e-6 seed={seed}": {step: {"maze7": counts(*[right] * 30)} for step in (0, 40)}
            for loss, right in arms
            for seed in range(3)
        }
        relation = ">" if study == "one" else "<"
        claim = {"says": "PACS differs", "metric": "avg", "arm": "loss=pacs", "relation": relation}
        about = {"claims": [claim], "baseline": f"loss={arms[0][0]}"} if study != "silent" else {}
        write_planned(tmp_path, ends_of, study, study=study, created=1000.0 + number, **about)
        files.append(str(tmp_path / f"{study}.rlvr"))
        assert command.main(["bundle", study, "--home", str(tmp_path), "--out", files[-1]]) == 0
    for order in (files, files[::-1], [*files, files[0]]):
        capsys.readouterr()
        assert command.main([*order, "--claims", "--exit-code"]) == 0
        shown = capsys.readouterr().out
        assert "2 claims" in shown
        assert "holds: PACS differs (study one)" in shown
        assert "holds: PACS differs (study two)" in shown


def write_tuned(home: Path, points: list[tuple[int, float, int, float]]) -> None:
    """GRPO at (seed, learning rate, size of mazes, score on the validation split); runs of seed 1000 tuned the rate."""
    ends, plan = {0: {"maze7": counts(4)}, 40: {"maze7": counts(6)}}, []
    for seed, lr, size, validation in points:
        frozen, name = config("grpo", seed=seed, lr=lr, task={"size": size}), f"{size}-{lr}-s{seed}"
        run_id = write_run(home, frozen, ends, validation=validation, name=name)
        plan.append((run_id, name, [f"task.size={size}", f"lr={lr}", f"seed={seed}"]))
    write_sweep(home, "s", plan)
    manifest = home / "runs" / "sweeps" / "s" / "manifest.jsonl"
    lines = [json.loads(line) for line in manifest.read_text().splitlines()]
    lines = [{**line, **({"stage": "tuning"} if line["name"].endswith("s1000") else {})} for line in lines]
    manifest.write_text("".join(json.dumps(line) + "\n" for line in lines))
    picks = {"0": {"value": "lr=0.0001"}}
    change_sweep(home, tune={"keys": ["lr"], "values": ["lr=1e-05", "lr=0.0001"], "picks": picks})


def test_reported_runs_are_not_shown_as_the_tuning_that_a_bundle_lacks(tmp_path):
    write_tuned(tmp_path, [(seed, lr, 7, lr * 1e3) for seed, lr in ((1000, 1e-5), (1000, 1e-4), (0, 1e-4))])
    assert list(tuning.table(load(tmp_path)).cells["mean"]) == pytest.approx([0.01, 0.1])
    assert command.main(["bundle", "--home", str(tmp_path), "--out", str(tmp_path / "a.rlvr")]) == 0
    packed = bundle.read(tmp_path / "a.rlvr")
    assert tuning.table(packed) is None
    assert any("not in this bundle" in note for note in packed.notes)


def test_what_is_tuned_in_two_settings_is_picked_in_each(tmp_path):
    """In mazes of 7 the larger learning rate is the better one, in those of 9 the smaller."""
    better = {7: 1e-4, 9: 1e-5}
    points = [(1000, lr, size, 0.5 if lr == better[size] else 0.25) for size in better for lr in (1e-5, 1e-4)]
    write_tuned(tmp_path, [*points, *((0, lr, size, 0.5) for size, lr in better.items())])
    picked = {(c["block"], c["row"]) for c in tuning.table(load(tmp_path)).records if "picked" in c["row"]}
    assert len(picked) == 2
    assert {(block[-1], row.partition(" (")[0]) for block, row in picked} == {("7", "lr = 0.0001"), ("9", "lr = 1e-05")}
    change_sweep(tmp_path, tune={"keys": ["task.size"], "values": ["task.size=7", "task.size=9"], "picks": {}})
    assert tuning_figure.figure(load(tmp_path)) is None
    assert tuning.table(load(tmp_path)) is None


def rebuilt(file: Path, out: Path, **changed: bytes | None) -> Path:
    """A copy of a bundle with other members; None: without it."""
    with zipfile.ZipFile(file) as archive:
        members = {name: archive.read(name) for name in archive.namelist()} | changed
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            if data is not None:
                archive.writestr(name, data)
    return out


def parquet(table: pa.Table) -> bytes:
    out = io.BytesIO()
    pq.write_table(table, out)
    return out.getvalue()


def with_counts(table: pa.Table, column: str, count: int) -> pa.Table:
    place = table.schema.get_field_index(column)
    return table.set_column(place, table.schema.field(place), pa.array([count] * table.num_rows, pa.int32()))


def test_an_untrusted_bundle_writes_no_file_and_prints_no_control_characters(packed, tmp_path):
    _, file = packed
    with zipfile.ZipFile(file) as archive:
        runs = json.loads(archive.read("runs.json"))
        judged = pq.read_table(io.BytesIO(archive.read("counts.parquet")))
    runs["name"]["values"][0] = "\x1b]0;owned\x07name"
    place = judged.schema.get_field_index("source")
    judged = judged.set_column(place, judged.schema.field(place), pa.array(["\x1b[2Jmaze"] * judged.num_rows))
    hostile = {"../../evil.txt": b"x", "/tmp/evil.txt": b"x", "runs.json": json.dumps(runs).encode()}
    hostile["counts.parquet"] = parquet(judged)
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    frames = bundle.read(rebuilt(file, inner / "hostile.rlvr", **hostile))
    assert frames.rows[0].name == "\ufffd]0;owned\ufffdname"
    assert set(frames.judgements.table["source"].to_pylist()) == {"\ufffd[2Jmaze"}
    assert [p.name for p in tmp_path.rglob("*") if p.is_file()] == ["hostile.rlvr"]


def test_a_file_that_is_no_bundle_is_refused_in_one_line(packed, tmp_path, capsys):
    with zipfile.ZipFile(packed[1]) as archive:
        runs, about = (json.loads(archive.read(f"{name}.json")) for name in ("runs", "about"))
        judged = pq.read_table(io.BytesIO(archive.read("counts.parquet")))
    (sweep,) = about["sweeps"]
    num_runs = len(runs["run_id"]["values"])

    def with_column(name: str, dtype: str, values: list) -> dict[str, bytes]:
        return {"runs.json": json.dumps({**runs, name: {"dtype": dtype, "values": values}}).encode()}

    for changed, message in (
        ({"about.json": None}, "about.json"),
        ({"about.json": b"[]"}, "no JSON object"),
        ({"about.json": b'{"format": 99}'}, "its format is 99"),
        ({"about.json": b"[" * 100_000 + b"]" * 100_000}, "nested too deeply"),
        ({"runs.json": b"{}"}, f"its runs have no {COLUMNS[0]}"),
        ({"counts.parquet": parquet(pa.table({"evil": [1]}))}, "counts has other columns"),
        ({"counts.parquet": b"PAR1 garbage"}, "no bundle"),
        (with_column("seed", "str", ["0"] * num_runs), "its column seed is of type 'str'"),
        (with_column("reference", "object", [["no"]] * num_runs), "its column reference holds lists or objects"),
        (with_column("config.lr", "object", [{"a": 1}] * num_runs), "its column config.lr holds lists or objects"),
        (with_column("eta", "float64", [1.0]), "different numbers of values"),
        (with_column("seed", "float64", [math.inf] * num_runs), "cannot be reported: OverflowError"),
        (
            {"about.json": json.dumps({**about, "question": "\udfff", "commands": [1], "notes": 5}).encode()},
            "no bundle",
        ),
        (
            {"about.json": json.dumps({**about, "sweeps": [{**sweep, "info": {"swept": 5}}]}).encode()},
            "cannot be reported",
        ),
        ({"about.json": b" " * (bundle.MOST_JSON + 1)}, "its description holds more than 32 MiB"),
        ({"counts.parquet": parquet(with_counts(judged, "correct", 9))}, "more right samples than samples"),
        ({"counts.parquet": parquet(with_counts(judged, "n", 10**6))}, "more samples than an evaluation has"),
    ):
        bad = rebuilt(packed[1], tmp_path / "bad.rlvr", **changed)
        assert command.main([str(bad)]) == 2, message
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1, message


def test_a_bundle_that_unpacks_to_too_much_or_in_another_way_is_refused(packed, tmp_path, monkeypatch):
    bad = tmp_path / "lzma.rlvr"
    with zipfile.ZipFile(packed[1]) as archive, zipfile.ZipFile(bad, "w", zipfile.ZIP_LZMA) as copy:
        for name in archive.namelist():
            copy.writestr(name, archive.read(name))
    monkeypatch.setattr(bundle, "MOST_BYTES", 10_000_000)
    big = rebuilt(packed[1], tmp_path / "big.rlvr", **{"about.json": b" " * 20_000_000})
    # 3000 rows of one text of 10 kB are 30 MB, and the file holds the text once.
    values = ("r", 1, "s", "p", "", 0, "x" * 10_000, "wrong", 1, "", "", "")
    data = parquet(pa.table([pa.array([value] * 3000) for value in values], names=list(SCHEMAS["responses"])))
    assert len(data) < 10_000
    bomb = rebuilt(packed[1], tmp_path / "bomb.rlvr", **{"responses.parquet": data})
    for file, message in (
        (bad, "compressed in another way"),
        (big, "holds more than"),
        (bomb, "its table responses holds more than"),
        (tmp_path / "nothing.rlvr", r"nothing\.rlvr: No such file"),
    ):
        with pytest.raises(LookupError, match=message):
            bundle.read(file)


def test_a_damaged_bundle_is_refused_whatever_its_bytes_have_become(packed, tmp_path):
    content = bytearray(packed[1].read_bytes())
    bad = tmp_path / "damaged.rlvr"
    for place in range(0, len(content), max(1, len(content) // 400)):
        bad.write_bytes(content[:place] + bytes([content[place] ^ 0x3C]) + content[place + 1 :])
        with contextlib.suppress(LookupError):  # or the byte decides nothing
            bundle.read(bad)
