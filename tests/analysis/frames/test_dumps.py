"""Samples that other trainers wrote: each format read as documented, judged, and compared like runs of ours."""

import json
import math
from pathlib import Path

import pandas as pd
import pytest

from analysis import command
from analysis.frames import bundle
from analysis.frames.dumps import Dump, frames
from analysis.report.grid import difference_text
from analysis.report.table import Format
from analysis.scores.arm import arms
from analysis.scores.cell import base_cell, cell
from analysis.scores.metric import benchmarks, parse
from analysis.scores.selection import default_reference


def jsonl(path: Path, rows: list[dict]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def counted(dump: Dump) -> list[tuple]:
    """(step, source, n, correct, errors) of each problem, and avg@n as it would have been logged."""
    imported = frames(dump)
    return [tuple(r) for r in imported.counts[["step", "source", "n", "correct", "errors"]].itertuples(index=False)]


def test_verl_names_problems_by_prompt_and_answer_and_steps_by_file(tmp_path):
    row = {"input": "2+2", "output": "4", "gts": "4"}
    jsonl(tmp_path / "0.jsonl", [{**row, "score": 0.0}, {**row, "score": 1.0}])
    jsonl(
        tmp_path / "10.jsonl", [{**row, "score": 0.3, "acc": True}, {**row, "input": "1+1", "score": 0.0, "acc": False}]
    )
    assert sorted(counted(Dump(tmp_path, "verl", "ppo"))) == [
        (0, "verl", 2, 1, 0),
        (10, "verl", 1, 0, 0),
        (10, "verl", 1, 1, 0),
    ]


def test_a_number_above_the_dump_is_no_step(tmp_path):
    row = {"input": "2+2", "output": "4", "gts": "4", "score": 1.0}
    of_user = tmp_path / "0" / "dump"
    jsonl(of_user / "rollouts.jsonl", [row])
    assert frames(Dump(of_user, "verl", "ppo")).counts["step"].tolist() == [1]  # as samples without a step
    jsonl(of_user / "7" / "rollouts.jsonl", [row])
    assert sorted(frames(Dump(of_user, "verl", "ppo")).counts["step"]) == [1, 7]
    jsonl(tmp_path / "0" / "step_5" / "rollouts.jsonl", [row])
    for path in (tmp_path / "0" / "step_5", tmp_path / "0" / "step_5" / "rollouts.jsonl"):
        assert frames(Dump(path, "verl", "ppo")).counts["step"].tolist() == [5]


def test_trl_reads_the_one_reward_and_leaves_training_out(tmp_path):
    turns = [{"role": "user", "content": "2+2"}]
    rows = [
        {"step": 5, "mode": mode, "prompt": turns, "completion": "4", "accuracy": reward, "advantage": 0.1}
        for mode, reward in (("train", 0.0), ("eval", 1.0), ("eval", 0.0), ("eval", None))
    ]
    folder = tmp_path / "completions"
    folder.mkdir()
    pd.DataFrame(rows).to_parquet(folder / "completions_00005.parquet")
    assert counted(Dump(folder, "trl", "grpo", source="math")) == [(5, "math", 2, 1, 1)]  # one was not judged
    pd.DataFrame(rows).assign(format_reward=1.0).to_parquet(folder / "completions_00005.parquet")
    with pytest.raises(LookupError, match=r"--reward NAME, one of: accuracy, format_reward"):
        frames(Dump(folder, "trl", "grpo"))
    assert counted(Dump(folder, "trl", "grpo", reward="format_reward")) == [(5, "trl", 3, 3, 0)]


def test_prime_rl_takes_the_step_of_the_folder_and_counts_errors_apart(tmp_path):
    turns = [{"role": "assistant", "content": "one"}, {"role": "user", "content": "two"}]
    row = {"example_id": 7, "task": "gsm8k", "prompt": turns, "completion": turns[:1], "reward": 1.0}
    jsonl(tmp_path / "step_20" / "eval_rollouts.jsonl", [row, {**row, "reward": 0.0}, {**row, "error": "sandbox"}])
    dump = Dump(tmp_path, "prime-rl", "grpo")
    assert counted(dump) == [(20, "gsm8k", 2, 1, 1)]
    (first, *_) = frames(dump).stored.responses(frames(dump).rows[0].run_id, 20, [("gsm8k", "7")])
    assert (first.prompt, first.response, first.outcome) == ("[assistant] one\n[user] two", "one", "correct")


def episode(score: float | None, **fields: object) -> dict[str, object]:
    """As `Episode.to_record` of verifiers 0.4 writes it, cut to what is read."""
    turns = [("system", "Be brief."), ("user", "2+3?"), ("assistant", "5")]
    nodes = [{"message": {"role": r, "content": c}, "sampled": r == "assistant"} for r, c in turns]
    rewards = {"correct": None if score is None else {"score": score, "weight": 1.0}}
    trace = {"agent": {"name": "agent"}, "nodes": nodes, "rewards": rewards, "ok": True, "num_output_tokens": 2}
    return {
        "env": {"id": "gsm8k-v1", "name": "gsm8k"},
        "task": {"type": "Task", "data": {"idx": 7}, "key": "a1b2"},
        "run": {"type": "train", "id": "r", "work": {"type": "eval", "step": 20}},
        "ok": True,
        "traces": [trace],
        **fields,
    }


def test_episodes_of_prime_rl_are_read_once_and_those_that_failed_are_counted_apart(tmp_path):
    kept = [episode(1.0), episode(0.0)]
    failed = [episode(None), episode(1.0, ok=False, traces=[]), episode(0.5, traces=[{"dropped": "filter"}])]
    jsonl(tmp_path / "step_20" / "eval" / "effective" / "traces.jsonl", kept)
    dump = Dump(tmp_path, "prime-rl", "grpo")
    assert counted(dump) == [(20, "gsm8k", 2, 1, 0)]
    jsonl(tmp_path / "step_20" / "eval" / "all" / "traces.jsonl", [*kept, *failed])
    jsonl(tmp_path / "step_20" / "train" / "all" / "traces.jsonl", kept)
    assert counted(dump) == [(20, "gsm8k", 2, 1, 3)]
    (first, *_) = frames(dump).stored.responses(frames(dump).rows[0].run_id, 20, [("gsm8k", "a1b2")])
    assert (first.prompt, first.response) == ("[system] Be brief.\n[user] 2+3?", "5")
    assert (first.outcome, first.num_tokens) == ("correct", 2)


def test_rewards_between_right_and_wrong_need_a_threshold(tmp_path):
    file = jsonl(tmp_path / "d.jsonl", [{"problem_id": "a", "reward": r} for r in (0.2, 0.7, 1.0)])
    with pytest.raises(LookupError, match=r"reward is 0\.2.*--correct-from"):
        frames(Dump(file, "rlvr", "a"))
    assert counted(Dump(file, "rlvr", "a", correct_from=0.5)) == [(1, "dump", 3, 2, 0)]


def test_every_outcome_of_our_own_samples_is_read(tmp_path):
    outcomes = ("correct", "wrong", "unparsable", "unevaluated", "timeout", "error")
    file = jsonl(tmp_path / "d.jsonl", [{"problem_id": "1", "outcome": outcome} for outcome in outcomes])
    assert counted(Dump(file, "rlvr", "a")) == [(1, "dump", 5, 1, 1)]
    with pytest.raises(LookupError, match="outcome 'right' is not one of correct, wrong, unparsable"):
        frames(Dump(jsonl(tmp_path / "e.jsonl", [{"problem_id": "1", "outcome": "right"}]), "rlvr", "a"))


def test_what_cannot_be_read_is_named_with_its_place_and_value(tmp_path):
    for form, line, message in (
        ("rlvr", "{", "line 1"),
        ("rlvr", "[" * 99_999, "line 1"),
        ("rlvr", "[1]", "no JSON object"),
        ("rlvr", '{"a": 1}', "without problem_id"),
        ("rlvr", "", "no sample"),
        ("rlvr", {"problem_id": "1", "reward": 1, "num_tokens": "abc"}, r"d\.jsonl, line 1: num_tokens is 'abc'"),
        ("rlvr", {"problem_id": "1", "reward": 1, "num_tokens": math.nan}, "num_tokens is nan"),
        ("rlvr", {"problem_id": "1", "reward": 1, "step": math.nan}, "step is nan, and must be a whole number"),
        ("rlvr", {"problem_id": "1", "reward": 1, "step": True}, "step is True, and must be a whole number"),
        ("rlvr", {"problem_id": "1", "reward": 1, "step": 1e300}, "step is 1e"),
        ("verl", {"input": "p", "output": "x", "score": 1, "step": -1}, "step is -1"),
        ("prime-rl", {"traces": [{"ok": True, "rewards": {"r": 1.0}}]}, r"reward 1\.0 has no score"),
        ("rlvr", {"problem_id": "1", "reward": "1.0"}, r"d\.jsonl, line 1: reward is '1\.0', which is no number"),
        ("verl", {"input": "p", "output": "x", "acc": "true"}, r"d\.jsonl, line 1: acc is 'true', which is no number"),
        ("verl", {"input": "p", "output": "x", "score": [1]}, r"score is \[1\], which is no number"),
    ):
        file = tmp_path / "d.jsonl"
        file.write_text(f"{line if isinstance(line, str) else json.dumps(line)}\n")
        with pytest.raises(LookupError, match=message):
            frames(Dump(file, form, "a"))


def test_a_wrong_row_is_named_by_its_number(tmp_path):
    """Empty lines of JSONL count; the rows of a Parquet file are counted from 1."""
    row = {"problem_id": "1", "reward": 1}
    (tmp_path / "d.jsonl").write_text(f"{json.dumps(row)}\n\n{json.dumps({**row, 'step': -1})}\n")
    with pytest.raises(LookupError, match=r"d\.jsonl, line 3: step is -1"):
        frames(Dump(tmp_path / "d.jsonl", "rlvr", "a"))
    pd.DataFrame([row, {**row, "step": -1}]).to_parquet(tmp_path / "e.parquet")
    with pytest.raises(LookupError, match=r"e\.parquet, row 2: step is -1"):
        frames(Dump(tmp_path / "e.parquet", "rlvr", "a"))


def test_a_dump_without_a_judged_sample_is_refused(tmp_path):
    rows = [{"problem_id": "1", "reward": reward} for reward in (None, float("nan"))]
    file = jsonl(tmp_path / "d.jsonl", [*rows, {"problem_id": "1", "outcome": "error"}])
    with pytest.raises(LookupError, match="none of its 3 samples was judged"):
        frames(Dump(file, "rlvr", "a"))
    jsonl(file, [*rows, {"problem_id": "1", "reward": 0}])
    assert counted(Dump(file, "rlvr", "a")) == [(1, "dump", 1, 0, 2)]


def test_options_that_mean_nothing_are_refused_in_one_line(tmp_path, capsys):
    dump = str(jsonl(tmp_path / "d.jsonl", [{"problem_id": "1", "reward": 1}]))
    for options, message in (
        (["--arm", "a", "--correct-from", "nan"], "--correct-from nan: "),
        (["--arm", "a", "--correct-from=-inf"], "--correct-from -inf: "),
        (["--arm", "a", "--seed=-1"], "--seed -1: a seed is a whole number from 0."),
        (["--arm", " "], "--arm is empty."),
        (["--arm", "loss=grpo seed=0"], "--arm 'loss=grpo seed=0': the seed goes in --seed."),
    ):
        assert command.main(["import", dump, "--format", "rlvr", *options, "--out", str(tmp_path / "x")]) == 2, message
        (line,) = capsys.readouterr().err.splitlines()
        assert message in line
    assert not (tmp_path / "x.rlvr").exists()


def test_gaps_in_parquet_columns_get_the_defaults(tmp_path):
    pd.DataFrame(
        {"problem_id": ["a", "a"], "reward": [1.0, None], "step": [20, None], "num_tokens": [None, 7]}
    ).to_parquet(tmp_path / "d.parquet")
    assert counted(Dump(tmp_path, "rlvr", "a")) == [(1, "dump", 0, 0, 1), (20, "dump", 1, 1, 0)]


def test_an_import_of_an_arm_named_like_a_path_writes_the_reported_file(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    dump = str(jsonl(tmp_path / "d.jsonl", [{"problem_id": "a", "reward": 1}]))
    ask = ["import", dump, "--format", "rlvr", "--arm", "model=Qwen/Qwen2.5-7B"]
    for more, file in ([], "Qwen-Qwen2.5-7B-s0-5a66b031.rlvr"), (["--out", "sub/x"], "sub/x.rlvr"):
        assert command.main([*ask, *more]) == 0
        assert f"python -m analysis {file}\n" in capsys.readouterr().out
        assert (tmp_path / file).is_file()


def test_two_imports_are_compared_paired_by_problem(tmp_path, capsys, monkeypatch):
    """Ten problems, four samples each: b solves 3 of 4 where a solves 1 of 4, on every problem but the last."""
    monkeypatch.chdir(tmp_path)
    for arm, right in (("a", 1), ("b", 3)):
        rows = [
            {"input": f"p{p}", "output": "x", "gts": "", "score": float(i < (right if p < 9 else 2)), "step": 40}
            for p in range(10)
            for i in range(4)
        ]
        dump = str(jsonl(tmp_path / arm / "40.jsonl", rows))
        assert command.main(["import", dump, "--format", "verl", "--arm", arm]) == 0
    assert command.main(["a-s0.rlvr", "b-s0.rlvr", "--no-figures", "--out", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "arm=b" in shown
    assert "base policy" not in shown  # neither dump has a step 0, and none was planned
    cells = pd.read_csv(tmp_path / "a-s0-b-s0-bundle-part" / "tables" / "comparison.csv")
    (cell,) = cells[(cells["row"] == "arm=b") & (cells["metric"] == "avg@4")].to_dict("records")
    assert (cell["mean"], cell["difference"]) == (pytest.approx((9 * 0.75 + 0.5) / 10), pytest.approx(0.45))
    assert (cell["paired_problems"], cell["paired_seeds"], cell["verdict"]) == (10, 1, "▲")


def test_imports_are_compared_to_the_one_that_was_given_first(tmp_path):
    """Whatever their ids, which are hashes, the alphabet, their numbers say, and wherever GRPO stands."""
    for names in (("zeta", "alpha"), ("loss=lad", "loss=grpo"), ("lr=1e-5", "lr=1e-6", "arm=other")):
        dump = jsonl(tmp_path / "d.jsonl", [{"problem_id": p, "reward": p % 2} for p in range(4)])
        imports = [frames(Dump(dump, "rlvr", name)) for name in names]
        for given in (imports, imports[::-1]):
            together = bundle.merged(given)
            of_first = given[0].rows[0].group_id
            reference = default_reference(arms(together), together.baseline)
            assert {arm.group_id for arm in reference.values()} == {of_first}, names
            assert default_reference(arms(given[0]), given[0].baseline) == {}, names
            assert [sweep.sweep_id for sweep in together.sweeps] == [part.sweeps[0].sweep_id for part in given]


def test_an_import_may_have_any_name(tmp_path):
    dump = jsonl(tmp_path / "d.jsonl", [{"problem_id": 1, "reward": 1}])
    for name in ("it's", 'a "b', "[x", "a,b", "{", "x y"):
        together = bundle.merged([frames(Dump(dump, "rlvr", arm)) for arm in (name, "other")])
        assert len(default_reference(arms(together), together.baseline)) == 1, name


def test_imports_keep_the_diversity_of_their_responses(tmp_path, capsys, monkeypatch):
    """The texts themselves are not in the bundle. Of "a b c d" twice, 2 of 4 trigrams differ: 50 %."""
    monkeypatch.chdir(tmp_path)
    for arm, responses in (("one", ["a b c d", "a b c d"]), ("two", ["a b c d", "e f g h"])):
        rows = [{"problem_id": i, "reward": 1, "response": text} for i in (1, 2) for text in responses]
        dump = jsonl(tmp_path / f"{arm}.jsonl", rows)
        assert command.main(["import", str(dump), "--format", "rlvr", "--arm", arm, "--out", arm]) == 0
    options = ["--metrics", "distinct-3,distinct-4", "--no-figures", "--out", str(tmp_path)]
    assert command.main(["one.rlvr", "two.rlvr", *options]) == 0
    (file,) = tmp_path.glob("*-part/tables/comparison.csv")
    means = pd.read_csv(file).pivot(index="row", columns="metric", values="mean").to_dict("index")
    assert means["arm=one"] == {"distinct-3": 0.5, "distinct-4": 0.5}
    assert means["arm=two"] == {"distinct-3": 1, "distinct-4": 1}


def test_what_is_decided_is_printed_without_a_zero_at_an_end():
    for difference, low, high, verdict, printed in (
        (-0.0298, -0.0594, -0.0002, "▼", "−2.98 [−5.94, −0.02] ▼"),
        (0.041, 0.000004, 0.082, "▲", "+4.1000 [0.0004, 8.2000] ▲"),
        (-0.0298, -0.0594, 0.0002, "▽", "−3.0 [−5.9, 0.0] ▽"),
    ):
        cell = {"difference": difference, "difference_low": low, "difference_high": high, "verdict": verdict}
        assert difference_text(cell, Format()) == printed


def test_samples_without_a_step_belong_to_the_arm_not_to_the_base_policy(tmp_path):
    for form, row in (
        ("rlvr", {"problem_id": "p", "reward": 1.0}),
        ("verl", {"input": "p", "output": "x", "gts": "", "score": 1.0}),
        ("prime-rl", {"example_id": "p", "prompt": "p", "completion": "x", "reward": 1.0}),
    ):
        imported = frames(Dump(jsonl(tmp_path / "results.jsonl", [row]), form, "a"))
        (arm,) = arms(imported)
        (metric,) = parse("avg", imported, arm.run_ids)
        sources, _ = benchmarks(imported, arm.run_ids)
        assert cell(imported, arm, metric, sources).mean == 1.0, form
        assert base_cell(imported, [arm], metric, sources).state == "missing", form


def test_two_imports_of_one_arm_and_seed_are_refused_by_name(tmp_path, capsys, monkeypatch):
    """A dump that grew is another run: one row would stand for both."""
    monkeypatch.chdir(tmp_path)
    rows = [{"problem_id": p, "reward": 1.0, "step": 40} for p in "abc"]
    for name, part in (("early", rows[:2]), ("late", rows)):
        dump = str(jsonl(tmp_path / name / "d.jsonl", part))
        assert command.main(["import", dump, "--format", "rlvr", "--arm", "a", "--out", f"{name}.rlvr"]) == 0
    capsys.readouterr()
    assert command.main(["early.rlvr", "late.rlvr", "--no-figures", "--out", str(tmp_path)]) == 2
    message = capsys.readouterr().err
    assert message.count("a-s0 (") == 2
    assert "seed 0 of one arm" in message
    assert "--seed" in message


def test_the_arm_of_an_import_is_read_as_it_is_typed_or_printed(tmp_path, capsys, monkeypatch):
    """`loss=grpo lr = 1e-6` is a label of a table. The rows of both arms are named by what differs."""
    monkeypatch.chdir(tmp_path)
    dump = str(jsonl(tmp_path / "d.jsonl", [{"problem_id": p, "reward": 1} for p in "ab"]))
    for arm, file in (("loss=grpo lr = 1e-6", "x"), ("loss=lad eta = 0.5 (1/η = 2)", "y"), ("loss=grpo lr=1e-6", "z")):
        assert command.main(["import", dump, "--format", "rlvr", "--arm", arm, "--out", file]) == 0
    assert (tmp_path / "x.rlvr").read_bytes() == (tmp_path / "z.rlvr").read_bytes()
    assert command.main(["x.rlvr", "y.rlvr", "--no-figures", "--out", str(tmp_path)]) == 0
    cells = pd.read_csv(tmp_path / "x-y-bundle-part" / "tables" / "comparison.csv")
    assert set(cells["row"]) == {"loss=grpo lr = 1e-6", "loss=lad eta = 0.5 (1/η = 2)"}
    capsys.readouterr()
    assert command.main(["import", dump, "--format", "rlvr", "--arm", "loss=grpo old", "--out", "w"]) == 2
    assert "--arm: 'loss=grpo old' names no arm: write knobs as in 'loss=grpo lr=1e-4'." in capsys.readouterr().err


def test_an_import_writes_over_no_bundle(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    dump = str(jsonl(tmp_path / "d.jsonl", [{"problem_id": "p", "reward": 1.0, "step": 40}]))
    ask = ["import", dump, "--format", "rlvr", "--arm", "a"]
    assert command.main([*ask, "--out", "kept"]) == 0
    before = (tmp_path / "kept.rlvr").read_bytes()
    capsys.readouterr()
    assert command.main(["import", dump, "--format", "rlvr", "--arm", "b", "--out", "kept"]) == 2
    assert "kept.rlvr exists already. Pass another name with --out, or remove it." in capsys.readouterr().err
    assert (tmp_path / "kept.rlvr").read_bytes() == before


def test_no_control_character_of_a_dump_reaches_the_terminal(tmp_path, capsys):
    dump = tmp_path / "1.jsonl"
    dump.write_text(json.dumps({"\x1b]0;owned\x07": 1}))
    assert command.main(["import", str(dump), "--format", "verl", "--arm", "x"]) == 2
    assert "Its columns: \ufffd]0;owned\ufffd." in capsys.readouterr().err
