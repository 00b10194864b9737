import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlvr.ledger import tags
from rlvr.ledger.cause import State
from rlvr.ledger.runs import RunInfo
from rlvr.ledger.state import RunState
from rlvr.ledger.sweeps import Sweep

FLOATS = st.floats(allow_nan=False, allow_infinity=False)


@given(st.booleans() | st.integers(-(10**9), 10**9) | FLOATS | st.none())
def test_a_value_comes_back_from_its_text(value: object) -> None:
    back = tags.as_value(tags.as_text(value))
    assert (back, type(back)) == (value, type(value))


def test_text_that_is_no_plain_value_stays_text() -> None:
    for text in ("maze_7x7", "rlvr.loss.lad.lad", "[1, 8]", '{"a": 1}', "a: b", "{", "2026-01-02", "- x"):
        assert tags.as_value(text) == text


def test_choices_come_back_from_the_tags_of_a_run_and_nothing_else_does() -> None:
    chosen = {"loss": "lad", "divergence@_global_.divergence": "js", "study": None}
    info = RunInfo("a", "n", "arm", "g", "eta", 5.0, "sha", True, "host", "command")
    state = RunState("a", "n", State.FAILED, attempt=2, cause="gpu_oom", host="n7", own_gpus=True, code="1a, then 2b")
    sweep = Sweep("s", {"study": "eta"}, ({"run_id": "a", "trial": 3}, {"run_id": "b"}))
    run_tags = {**tags.tags(info, state, [sweep]), **tags.choice_tags({"choices": chosen})}
    run_tags |= dict.fromkeys(("rlvr.params_cut", "rlvr.non_finite", "rlvr.damaged_lines", "rlvr.sweep_id"), "x")
    assert tags.choices_of(run_tags) == {"loss": "lad", "divergence": "js"}
    expected = {"state": "failed", "cause": "gpu_oom", "host": "n7", "own_gpus": "true", "attempts": "2"}
    expected |= {"sweeps": "s", "trial": "s/3", "code": "1a, then 2b"}
    assert {k: run_tags[f"rlvr.{k}"] for k in expected} == expected


def test_params_have_no_paths_and_long_values_are_cut_and_named() -> None:
    config = {"lr": 1e-06, "a b": {"c:d": [1, 2]}}
    config |= {"rollout": {"engine": {"python": "/p", "dtype": "float32"}, "samples": 8}, "cluster": {"ranks": 1}}
    config |= {"prompt": "p" * 7000}
    params, cut = tags.params(config)
    assert cut == ["prompt"]
    assert len(params.pop("prompt")) == 6000
    of_rollout = {"rollout.engine.dtype": "float32", "rollout.samples": "8"}
    assert params == {"lr": json.dumps(1e-06), "a b.c_d": "[1, 2]", **of_rollout}


SECRETS = [
    ("x tracker.uri=http://ann:s3cret@host/a y", "x tracker.uri=http://***@host/a y"),
    ("postgresql://u:p@ss@h/db http://h/?mail=a@b", "postgresql://***@h/db http://h/?mail=a@b"),
    ("postgresql://u:p@h/db?password=abc&x=1", "postgresql://***@h/db?password=***&x=1"),
    ("api_key=abc token=def", "api_key=*** token=***"),
    ("AWS_SECRET_ACCESS_KEY=abc PGPASSWORD=d", "AWS_SECRET_ACCESS_KEY=*** PGPASSWORD=***"),
    ("environment:\n  HF_TOKEN: abc\n  A: b", "environment:\n  HF_TOKEN: ***\n  A: b"),
    ("{MY_KEY: abc, secret: 'd, e', a: b}", "{MY_KEY: ***, secret: ***, a: b}"),
    ("token_budget: 8192\nmax_tokens=5", "token_budget: 8192\nmax_tokens=5"),
    ("A prompt has no token: it is empty.", "A prompt has no token: it is empty."),
    ("nothing@all", "nothing@all"),
    ("cluster.environment.DB_PASSWORD=abc def", "cluster.environment.DB_PASSWORD=***"),
    ("python 'a.DB_PASSWORD=abc def' 'b=c d' 'e=f'", "python 'a.DB_PASSWORD=***' 'b=c d' 'e=f'"),
    ("DB_PASSWORD=a&b;c x=1", "DB_PASSWORD=*** x=1"),
    ("'uri=http://h/db?password=abc&x=1' y", "'uri=http://h/db?password=***&x=1' y"),
    (
        "DB_PASS=a SSH_PASSPHRASE=b TOKEN2=c first_pass=2 BYPASS=1",
        "DB_PASS=*** SSH_PASSPHRASE=*** TOKEN2=*** first_pass=2 BYPASS=1",
    ),
    ("API_KEYS=a,b HF_TOKENS=c SECRETS=d", "API_KEYS=*** HF_TOKENS=*** SECRETS=***"),
    ("cluster={environment:{HF_TOKEN:zzz,A:b}}", "cluster={environment:{HF_TOKEN:***,A:b}}"),
    ("'cluster={environment:{HF_TOKEN:z z}}' x=1", "'cluster={environment:{HF_TOKEN:***}}' x=1"),
    ("a:\n  A_TOKEN: abc, def\n    ghi\n  B: c", "a:\n  A_TOKEN: ***\n  B: c"),
    ("a:\n  A_TOKEN: 'it''s\n    abc'\n  B: c", "a:\n  A_TOKEN: ***\n  B: c"),
    ("a:\n  A_KEY: |-\n    abc\n    def\nB: c", "a:\n  A_KEY: ***\nB: c"),
    ("max_tokens: 5\nnum_tokens=7 {max_tokens: 3}", "max_tokens: 5\nnum_tokens=7 {max_tokens: 3}"),
]


def test_secrets_are_not_shown(subtests: pytest.Subtests) -> None:
    for text, shown in SECRETS:
        with subtests.test(text):
            assert (tags.redact(text), tags.redact(shown)) == (shown, shown)


def test_no_word_of_our_configs_and_commands_is_hidden() -> None:
    root = Path(__file__).parents[2]
    files = [path for room in ("conf", "sweeps") for path in (root / room).rglob("*.yaml")]
    contents = [path.read_text(encoding="utf-8") for path in (*files, root / "README.md")]
    assert [text for text in contents if tags.redact(text) != text] == []
    lines = [line for text in contents for line in text.split("\n")]
    assert [line for line in lines if tags.redact(line) != line] == []


def test_directories_of_models_are_no_params_of_the_task() -> None:
    """If two models in different directories are compared on one task, the task does not differ."""
    engine = {"_target_": "e", "python": "/bin/python", "python_of_mine": 1}
    config = {"task": {"name": "math", "reader": {"path": "/a", "chat": True}}, "policy": {"path": "/a", "digest": "d"}}
    texts, _ = tags.params({**config, "rollout": {"engine": engine}})
    of_engine = {"rollout.engine._target_": "e", "rollout.engine.python_of_mine": "1"}
    assert texts == {"task.name": "math", "policy.digest": "d", **of_engine}
