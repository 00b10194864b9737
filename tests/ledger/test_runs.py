import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from rlvr.ledger import runs
from rlvr.ledger.runs import FORMAT, Unreadable, check_owner, parse_yaml, read_config, read_info, to_yaml, write_run

ROOT = Path(runs.__file__).parents[2]
SCALARS = """1e-06 1e6 1E+5 -2e-4 1.5e3 .5 -.5 .5e-3 1_000 1_0.5 0x1f 0o17 017 1. .inf -.INF .nan nan inf null ~ true
    Yes off 2026-01-02 12:30:45 1:2.5 1e 1.2.3 e5 1e-06x '1e-06' "true" maze_7x7 +.5 1__0 ._""".split()  # noqa: SIM905 - forty lines otherwise
SCALARS += ["[1, 2e-3]", "{a: 1e-3, b: [x]}"]


def as_omegaconf(text: str) -> object:
    return OmegaConf.to_container(OmegaConf.create(f"value: {text}\n"))["value"]  # type: ignore[index,call-overload]


def same(one: object, other: object) -> bool:
    return repr(one) == repr(other)  # also of not-a-number


def test_a_value_reads_as_omegaconf_reads_it() -> None:
    read = {text: parse_yaml(f"value: {text}\n")["value"] for text in SCALARS}
    assert [text for text in SCALARS if not same(read[text], as_omegaconf(text))] == []


@pytest.mark.slow
@given(st.from_regex(r"[-+]?[0-9_.]{1,6}([eE][-+]?[0-9]{1,3})?", fullmatch=True))
def test_a_number_reads_as_omegaconf_reads_it(text: str) -> None:
    try:
        expected = as_omegaconf(text)
    except ValueError:  # `1_._`: neither can make a number of it
        with pytest.raises(ValueError):
            parse_yaml(f"value: {text}\n")
        return
    assert same(parse_yaml(f"value: {text}\n")["value"], expected)


def test_a_config_that_omegaconf_writes_is_read_back_whole(tmp_path: Path) -> None:
    config = {"lr": 1e-06, "name": "1e-06", "on": True, "task": {"files": ["a", None], "empty": {}}, "eta": None}
    write_run(tmp_path, OmegaConf.to_yaml(OmegaConf.create(config)), {"name": "n"})
    assert read_config(tmp_path) == config


def test_a_config_reads_as_the_whole_document_however_its_keys_are_written(tmp_path: Path) -> None:
    """Its groups are parsed one by one, and what is cached of one is no object of a caller's."""
    texts = ["---\na: &x [1]\nb: *x\n", "a: 'x\n\n  y: z'\nb: |\n  c: 1\n\n  d\n", "? a\n: b\nc: {d: 1,\n e: 2}\n"]
    texts += ["a: 1\n# b: 2\na: 3\n'b': 4\n\xe9: 5\n", "{a: 1,\nb: 2}", "a:\n- b\n-\n  c: d\n", "a: x\n  y\n"]
    for text in texts:
        write_run(tmp_path, text, {"name": "n"})
        for _ in range(2):
            config = read_config(tmp_path)
            assert config == parse_yaml(text), text
            config["a"] = [config.get("a")]
            if isinstance(config.get("c"), dict):
                config["c"]["d"] = 7
    for text in ("a: 1\nb: [\n", "a: 1\nb\n", "a: 'x\nb: y\n"):
        write_run(tmp_path, text, {"name": "n"})
        with pytest.raises(ValueError) as whole:
            parse_yaml(text.encode())
        with pytest.raises(Unreadable, match="is no YAML") as error:
            read_config(tmp_path)
        assert " ".join(str(whole.value).split()) in str(error.value)


def test_run_json_contains_the_info_and_the_format(tmp_path: Path) -> None:
    fields = {"name": "lad-js-s0", "arm": "lad-js", "created": 5, "question": "why?", "import_paths": ["/a"]}
    write_run(tmp_path, "{}", fields)
    info = read_info(tmp_path)
    assert info.fields == {**fields, "format": FORMAT}
    read = (info.run_id, info.name, info.arm, info.created, info.study)
    assert read == (tmp_path.name, "lad-js-s0", "lad-js", 5.0, "")


OTHER_FORMAT = "made by another version of rlvr ({}; this one reads format 1)"
UNREADABLE = [
    ("run.json", None, "run.json is missing or damaged. Put it back, or repeat the launch."),
    ("run.json", b'{"name": "x"', "run.json is missing or damaged"),
    ("run.json", b'{"name": "x"}', OTHER_FORMAT.format("no number of a format")),
    ("run.json", b'{"name": "x", "format": 2}', OTHER_FORMAT.format("format 2")),
    ("run.json", b'{"name": "x", "format": "1"}', OTHER_FORMAT.format("format 1")),
    ("config.yaml", None, "config.yaml is missing"),
    ("config.yaml", b"loss: {", "config.yaml is no YAML"),
    ("config.yaml", b"\xff\xfe\x00", "config.yaml is no YAML"),
    ("config.yaml", b"- a\n- b\n", "config.yaml holds no settings"),
    ("config.yaml", b"", "config.yaml holds no settings"),
]


def test_the_error_for_an_unreadable_run_is_one_line_with_its_name(tmp_path: Path) -> None:
    for number, (name, content, message) in enumerate(UNREADABLE):
        (run_dir := tmp_path / f"r{number}").mkdir()
        write_run(run_dir, "{}", {})
        (run_dir / name).unlink() if content is None else (run_dir / name).write_bytes(content)
        for read in (read_info, read_config) if name == "run.json" else (read_config,):
            with pytest.raises(Unreadable) as error:
                read(run_dir)
            assert str(error.value).startswith(f"run {run_dir.name}: "), UNREADABLE[number]
            assert message in str(error.value)
            assert "\n" not in str(error.value)


def test_errors_with_the_same_reason_are_one_line() -> None:
    errors = [Unreadable(f"run {name}", "too old.") for name in "abcde"] + [Unreadable("run f", "torn.")]
    assert runs.lines_by_reason(errors) == ["run a, run b, run c and 2 more: too old.", "run f: torn."]
    assert runs.lines_by_reason([]) == []


def test_a_tree_is_flattened_to_dotted_keys_and_choices_lose_their_package() -> None:
    """Lists and empty mappings are values."""
    tree = {"a": {"b": 1, "c": {"d": [1, {"e": 2}]}}, "f": {}, "g": None}
    assert runs.flatten(tree) == {"a.b": 1, "a.c.d": [1, {"e": 2}], "f": {}, "g": None}
    assert runs.flatten({"x y": {"z": 1}}, key=lambda text: text.replace(" ", "_")) == {"x_y.z": 1}
    config = {"choices": {"loss": "lad", "divergence@_global_.divergence": "js", "study": None}}
    assert (runs.choices(config), runs.choices({})) == ({"loss": "lad", "divergence": "js"}, {})


def test_the_ledger_needs_no_hydra_no_omegaconf_and_no_torch() -> None:
    modules = sorted(f"rlvr.ledger.{path.stem}" for path in Path(runs.__file__).parent.glob("[!_]*.py"))
    code = f"import sys, {', '.join(modules)}; rlvr.ledger.runs.parse_yaml('a: 1'); print(*sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert not {"torch", "hydra", "omegaconf", "mlflow", "pandas"} & set(out.split())


ODD = ["1e-06", "1e6", "0x1f", "010", "2024-01-01", "1:30", "on", "null", "~", ".inf", "- a", "a: b", "#x", "1_0"]
TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"], exclude_characters="$"), max_size=12)
NUMBERS = st.booleans() | st.integers() | st.floats(allow_nan=False)
WORDS = st.none() | NUMBERS | TEXTS | st.sampled_from(ODD)
KEYS = st.text("abc_", min_size=1)
TREES = st.recursive(WORDS, lambda part: st.lists(part, max_size=3) | st.dictionaries(KEYS, part))


@pytest.mark.slow
@given(st.dictionaries(st.text("abcd_", min_size=1, max_size=4), TREES, min_size=1, max_size=4))
def test_a_config_reads_back_as_it_was_written_here_and_by_omegaconf(config: dict[str, Any]) -> None:
    text = to_yaml(config)
    assert (parse_yaml(text), OmegaConf.to_container(OmegaConf.create(text))) == (config, config)


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone gives directories away")
def test_a_run_of_another_user_is_rejected_unless_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RLVR_TRUST", raising=False)
    check_owner(tmp_path)
    check_owner(tmp_path / "nothing")
    os.chown(tmp_path, 12345, -1)
    for value, is_trusted in {"": False, "mine": False, "mine,1": True, "1": True}.items():
        monkeypatch.setenv("RLVR_TRUST", value)
        if is_trusted:
            check_owner(tmp_path)
        else:
            with pytest.raises(Unreadable, match=r"belongs to user 12345, .* If you trust that user: RLVR_TRUST=1"):
                check_owner(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone gives directories away")
def test_another_user_accepts_runs_of_root_and_of_nobody_else(tmp_path: Path) -> None:
    """As user 12345, who may enter the directories of this test."""
    code = (
        "import os, sys; from pathlib import Path; from rlvr.ledger.runs import Unreadable, check_owner\n"
        "os.setuid(12345)\n"
        "for path in sys.argv[1:]:\n"
        "    try: check_owner(Path(path)); print('accepted')\n"
        "    except Unreadable: print('rejected')\n"
    )
    owners = {"root": 0, "own": 12345, "other": 12346}
    with TemporaryDirectory() as parent:  # pytest's are closed to other users
        Path(parent).chmod(0o755)
        paths = [Path(parent, name) for name in owners]
        for path, owner in zip(paths, owners.values(), strict=True):
            path.mkdir()
            os.chown(path, owner, -1)
        run = subprocess.run([sys.executable, "-c", code, *map(str, paths)], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["accepted", "accepted", "rejected"]


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone gives files away")
def test_a_file_of_another_user_in_our_directory_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RLVR_TRUST", raising=False)
    for name in ("config.yaml", "run.json", "sweep.json", "manifest.jsonl"):
        (tmp_path / name).touch()
        check_owner(tmp_path)
        os.chown(tmp_path / name, 12345, -1)
        with pytest.raises(Unreadable, match=rf"{name}: it belongs to user 12345"):
            check_owner(tmp_path)
        (tmp_path / name).unlink()
