"""Mistakes in what people type, in their config files, components, data and models: a dry run answers each in one line
that says what came, what is allowed and what to type. The files of a case are written to its working directory."""

import shlex
import sys
from pathlib import Path

import pytest

from rlvr.run import main

GLOBAL = "# @package _global_\n"
LOSS = "_target_: rlvr.loss.grpo.grpo\n_partial_: true\nclip_low: 0.2\nclip_high: 0.2\ndual_clip: null\n"
ROW, TEST = '{"question": "1 mod 5", "answer": "1"}\n', '{"question": "7 mod 5", "answer": "2"}\n'
STUDY, OWN, TASK = (f"--config-dir=mine {group}" for group in ("study=mine", "loss=own", "task=own"))
DATA = "task=spelled model=spelled_tiny task.train=train.jsonl task.test=test.jsonl"
MODEL = "task=sums model=hf model.path=models/qwen"
OF_STUDY, OF_LOSS = "mine/study/mine.yaml", "mine/loss/own.yaml"

Files = dict[str, str | bytes]


def study(text: str) -> Files:
    return {OF_STUDY: GLOBAL + text}


def train(text: str) -> Files:
    return {"train.jsonl": text, "test.jsonl": TEST}


def sweep(text: str) -> Files:
    return study(f"hydra:\n  mode: MULTIRUN\n  sweeper:\n    params:\n{text}")


CASES: dict[str, tuple[Files, str, str]] = {
    # --- the YAML of a study: its file, and the words that must be in the answer
    "a tab": (study("trainer:\n\tkl: 0.1\n"), STUDY, f"{OF_STUDY}, line 3, column 1: no YAML, found character '\\t'"),
    "a key twice": (
        study("seed: 1\nlr: 1e-4\nseed: 2\n"),
        STUDY,
        "line 4, column 1: no YAML, found duplicate key seed.",
    ),
    "UTF-16": ({OF_STUDY: f"{GLOBAL}seed: 1\n".encode("utf-16")}, STUDY, f"{OF_STUDY}: no YAML, byte 1 is not valid"),
    "a NUL byte": ({OF_STUDY: f"{GLOBAL}seed: 1\0\n"}, STUDY, f"{OF_STUDY}: no YAML, character 28 is 0"),
    "only comments": (study("# later\n"), STUDY, f"{OF_STUDY} is empty. Fill it"),
    "typed words": (study("seed=1\n"), STUDY, "line 2: lines of `KNOB: VALUE` are expected."),
    "an open brace": (study("trainer: {kl: 0.1\n"), STUDY, "line 3, column 1: no YAML, expected ',' or '}'"),
    "two documents": (
        study("seed: 1\n---\nseed: 2\n"),
        STUDY,
        "line 3, column 1: no YAML, but found another document.",
    ),
    "an unknown anchor": (
        study("trainer: *base\n"),
        STUDY,
        "line 2, column 10: no YAML, found undefined alias 'base'.",
    ),
    "a tag of Python's": (
        study("seed: !!python/name:os.system\n"),
        STUDY,
        "line 2, column 7: no YAML, could not determine",
    ),
    "a decimal comma": (study("lr: 1,5e-4\n"), STUDY, f"{OF_STUDY}, line 2: lr='1,5e-4': a number is expected"),
    "a misspelt mode": (
        study("hydra:\n  mode: MULTIRN\n"),
        STUDY,
        "line 3: mode: MULTIRN is not known. Write `mode: MULT",
    ),
    "an axis without values": (
        sweep("      seed:\n"),
        STUDY,
        f"{OF_STUDY}, line 6: seed has no values. Write `seed: A,B`.",
    ),
    "a misspelt axis": (sweep("      sede: 0,1\n"), STUDY, "line 6: sede is not a knob. Did you mean seed?"),
    "an option as a knob": (
        study("loss: grpo\n"),
        STUDY,
        "line 2: a loss is chosen under `defaults:`. Write `- override /l",
    ),
    "defaults without dashes": (
        study("defaults:\n  override /loss: grpo\n"),
        STUDY,
        "line 2: a list is expected, each line",
    ),
    "a misspelt option": (study("defaults:\n  - override /loss: grpoo\n"), STUDY, "line 3: loss=grpoo does not exist."),
    "a misspelt group": (
        study("defaults:\n  - override /los: grpo\n"),
        STUDY,
        "line 3: there is no group los. Did you mean",
    ),
    "claims as a text": (
        study("claims: LAD is better\n"),
        STUDY,
        "claims is a list: under `claims:` each line as `- LINE`.",
    ),
    "half a claim": (
        study("claims:\n  - says: A is better\n    arm: loss=lad\n"),
        STUDY,
        "lacks metric, relation (docs/ana",
    ),
    # --- where files are
    "another suffix": ({"mine/study/mine.yml": GLOBAL}, STUDY, "mine.yml is no option of study. Move it to "),
    "another folder": (
        {"mine/studies/mine.yaml": GLOBAL},
        STUDY,
        "studies/mine.yaml is no option of study. Move it to ",
    ),
    "a directory": ({"mine/study/mine.yaml/x": ""}, STUDY, "study/mine.yaml is no option of study."),
    "no such option": ({"mine/readme.txt": ""}, OWN, "mine/loss/own.yaml is not there."),
    "a file for a directory": ({"mine": ""}, OWN, "--config-dir=mine: that is a file."),
    "the name of a built-in": ({"mine/loss/grpo.yaml": LOSS}, "--config-dir=mine loss=grpo", "Give it another name."),
    "one name in two directories": (
        {OF_LOSS: LOSS, "yours/loss/own.yaml": LOSS},
        f"--config-dir=yours {OWN}",
        "have one name, and one would hide the other. Rename one.",
    ),
    # --- components of their own
    "no target": ({OF_LOSS: "clip_low: 0.2\n"}, OWN, f"{OF_LOSS} has no _target_. Write `_target_: MODULE.FUNCTION`"),
    "a target without module": ({OF_LOSS: "_target_: grpo\n"}, OWN, "line 1: _target_: grpo: no module grpo. Write"),
    "a misspelt target": ({OF_LOSS: LOSS.replace("o.grpo", "o.gpro")}, OWN, "defines no gpro. Did you mean grpo?"),
    "a colon in a target": ({OF_LOSS: LOSS.replace("o.grpo", "o:grpo")}, OWN, "Write MODULE.FUNCTION."),
    "no Python": (
        {OF_LOSS: "_target_: bad_1.f\n", "bad_1.py": "def f(policy)\n    pass\n"},
        OWN,
        "bad_1.py, line 1: expected",
    ),
    "a constructor that fails": (
        {
            "mine/task/own.yaml": "_target_: bad_2.Own\n",
            "bad_2.py": "class Own:\n    def __init__(self):\n        {}['x']\n",
        },
        TASK,
        "task=own cannot be built: KeyError: 'x' (",
    ),
    "a constructor of nothing": (
        {"mine/task/own.yaml": "_target_: bad_3.make\n", "bad_3.py": "def make():\n    return None\n"},
        TASK,
        "does not have all members of `Task` in rlvr/records.py.",
    ),
    # --- data
    "no rows": (train(""), DATA, "train.jsonl has no rows."),
    "an array of JSON": (train(f"[{ROW.strip()}]\n"), DATA, "train.jsonl:1: a JSON object is expected, not [{"),
    "no answer": (train(ROW.replace('"1"', "null")), DATA, "train.jsonl:1: answer is None, expected a text"),
    "several answers": (
        train(ROW.replace('"1"', '["1", "2"]')),
        DATA,
        "train.jsonl:1: answer is ['1', '2'], expected a text",
    ),
    "a space in a path": ({}, DATA.replace("train.jsonl", "my train.jsonl"), "train.jsonl: no value. Type KEY=VALUE"),
    # --- models
    "a file of weights": ({"models/qwen": ""}, MODEL, "a file, and not of the kind .gguf. Pass the directory"),
    "no GGUF": ({"models/qwen.gguf": "x"}, f"{MODEL}.gguf", "no readable GGUF file"),
    # --- typed words
    "another script's sign": ({}, "seed\uff1d1", "'\uff1d' is FULLWIDTH EQUALS SIGN. Type seed=1."),
    "another script's letter": ({}, "s\u0435ed=1", "'\u0435' is CYRILLIC SMALL LETTER IE. Type it anew"),
    "the same in an option": ({}, "loss=gr\u0440o", "'\u0440' is CYRILLIC SMALL LETTER ER."),
    "two misspelt groups": ({}, "los=grpo taks=maze", "all. taks is not a knob. Did you mean task?"),
    "minus zero": ({}, "lr=-0.0", "lr=-0.0 is 0, and would be another run than lr=0. Type lr=0."),
    "a number of C": ({}, "steps=0x10", "steps=0x10: a whole number is expected, greater than 0. Type steps=80"),
    "a share in per cent": ({}, "lr=0.1%", "lr=0.1%: a number is expected, 0 or more."),
    "a typed decimal comma": ({}, "lr=0,0001", "lr=0,0001 is several values. One list is lr=[0,0001]."),
    "spaces around =": ({}, "lr = 1e-4", "lr: no value. Type KEY=VALUE"),
    "a word in a list of numbers": (
        {},
        "evaluation.k=[one,8]",
        "evaluation.k=[one,8]: a list is expected, each a whole",
    ),
    "a k twice": ({}, "evaluation.k=[8,8]", "evaluation.k=[8, 8] lists a k twice. Drop one."),
    "an open quote": ({}, '"name=\'abc"', "name='abc: the value cannot be read."),
    "an open bracket": ({}, "evaluation.k=[1,8", "evaluation.k=[1,8: the value cannot be read."),
    "no such variable": ({}, "'lr=${oc.env:NO_SUCH}'", "Environment variable 'NO_SUCH' not found"),
    "no such resolver": ({}, "'lr=${nothing:1}'", "Unsupported interpolation type nothing. Type lr=VALUE."),
    "too few runs": ({}, "-m loss=grpo,rloo until=decided budget=2", "Pass budget=6 or more."),
    "an = for a colon": ({}, "-m loss=grpo,rloo tune=lr=1e-4,1e-3", "write a knob and its values, as in tune=lr:1e-5"),
    "a misspelt knob of tune": ({}, "-m loss=grpo,rloo tune=lrr:1e-4,1e-3", "lrr is not a knob. Did you mean lr?"),
    "a value of tune": ({}, "-m loss=grpo,rloo tune=lr:1e-4,1e-x", "lr=1e-x: a number is expected, 0 or more."),
    "a misspelt knob of also": ({}, "-m loss=grpo 'also=loss=lad etaa=1'", "etaa is not a knob. Did you mean eta?"),
    "a value of when": ({}, "-m loss=grpo,rloo 'when=lr=x if loss=grpo'", "lr=x: a number is expected, 0 or more."),
    "a misspelt knob beside an interval": (
        {},
        "-m hydra/sweeper=optuna 'lr=interval(1e-5,1e-3)' evaluation.samplse=4",
        "evaluation.samplse is not a knob. Did you mean evaluation.samples?",
    ),
    "a misspelt knob of a search": (
        {},
        "-m hydra/sweeper=optuna 'lr=interval(1e-5,1e-3)' hydra.sweeper.n_trial=4",
        "hydra.sweeper.n_trial is not a knob. Those of hydra.sweeper in a search: metrics, directions, n_trials,",
    ),
    "no data for a search": (
        {},
        "-m hydra/sweeper=optuna 'lr=interval(1e-5,1e-3)' task=math task.train=x.jsonl task.test=x.jsonl",
        "x.jsonl does not exist.",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_mistake_is_answered_in_a_line(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files, typed, said = CASES[case]
    for name, content in files.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("RLVR_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    words = [*shlex.split(typed), *([] if "cluster" in typed else ["cluster=local"]), "--dry-run"]
    try:
        code = main(words)
    except SystemExit as ended:
        code = int(str(ended.code))
    printed = capsys.readouterr()
    assert (code, printed.out, printed.err.count("\n")) == (2, "", 1), printed.err
    assert said in printed.err
    assert not (tmp_path / "home").exists()
    for module in ("bad_1", "bad_2", "bad_3"):
        sys.modules.pop(module, None)
