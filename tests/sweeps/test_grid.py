import shlex
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode

from rlvr import run as runs
from rlvr.config import schema
from rlvr.config.overrides import parse, with_home
from sweeps.grid import Rules, expand
from sweeps.launcher import GridSweep
from sweeps.session import Session
from tests.support.composed import REGISTRY


def points(words: str, *, own: tuple[str, ...] = (), usual: dict[str, object] | None = None, **rules: list[str]):
    expanded = expand(parse(shlex.split(words)), own, Rules(**rules), lambda key, _: (usual or {}).get(key))
    return [" ".join(point) for point in expanded]


LAD_GRPO = "loss=lad,grpo eta=1,2 seed=0,1"
# Words, rules, and the points that they make.
GRIDS: list[tuple[str, dict[str, Any], list[str]]] = [
    ("a=1,2 b=3,4 c=5", {}, ["a=1 b=3 c=5", "a=1 b=4 c=5", "a=2 b=3 c=5", "a=2 b=4 c=5"]),  # the last one fastest
    ("k=[1,8] +new=a,b ~old g@x.y=z", {}, [f"k=[1,8] +new={new} ~old g@x.y=z" for new in "ab"]),
    ("a=true,false,null b=no", {}, ["a=true b=no", "a=false b=no", "a=null b=no"]),  # as they were typed
    ("""a="'True',b" """, {}, ["a='True'", "a=b"]),
    ("eta=1,2 eta=3", {}, ["eta=3"]),  # what is given later wins
    # Paired axes go in step.
    ("a=1,2 s=0,1 b=3,4", {"zip": ["a,b"]}, ["a=1 b=3 s=0", "a=1 b=3 s=1", "a=2 b=4 s=0", "a=2 b=4 s=1"]),
    ("a=1,2 b=3,4 c=5,6", {"zip": ["a b c"]}, ["a=1 b=3 c=5", "a=2 b=4 c=6"]),
    # Points that have all of a line are excluded.
    ("a=1,2 b=3,4", {"exclude": ["a=2 b=4"]}, ["a=1 b=3", "a=1 b=4", "a=2 b=3"]),
    ("a=1,2,3 b=3,4", {"exclude": ["a=2,3 b=4.0"]}, ["a=1 b=3", "a=1 b=4", "a=2 b=3", "a=3 b=3"]),
    (  # an axis of some points leaves the others once
        LAD_GRPO,
        {"when": ["eta if loss=lad"]},
        [*(f"loss=lad eta={e} seed={s}" for e in (1, 2) for s in (0, 1)), "loss=grpo seed=0", "loss=grpo seed=1"],
    ),
    (  # settings of some points win over those of all
        "loss=lad,ppo cluster.gpus=1",
        {"when": ["cluster.gpus=2 cluster.memory_gb=64 if loss=ppo"]},
        ["loss=lad cluster.gpus=1", "loss=ppo cluster.gpus=2 cluster.memory_gb=64"],
    ),
    (  # an arm may sweep, and its own values win
        "eta=1 lr=1e-3",
        {"own": ("eta",), "also": ["loss=grpo lr=1,2"]},
        ["eta=1 lr=0.001", "loss=grpo lr=1", "loss=grpo lr=2"],
    ),
    (  # under a recipe that clips at 0.28 an arm with that bound is the plain one
        "loss=grpo s=0,1",
        {"also": ["loss=grpo s=0,1 clip_high=0.28"], "usual": {"clip_high": 0.28}},
        ["loss=grpo s=0", "loss=grpo s=1"],
    ),
    (  # the study's grid is of its default loss, lad; an arm adds grpo; each rule must see both
        "eta=1,2 s=0,1",
        {
            **{"own": ("eta",), "usual": {"loss": "lad"}, "also": ["loss=grpo"], "exclude": ["loss=grpo s=1"]},
            "when": ["cluster.gpus=2 if loss=lad", "cluster.gpus=4 if loss=grpo"],
        },
        [*(f"eta={e} s={s} cluster.gpus=2" for e in (1, 2) for s in (0, 1)), "s=0 loss=grpo cluster.gpus=4"],
    ),
]
# The same, without the points of the grid itself, which are as many as stands there.
ARMS: list[tuple[str, dict[str, Any], int, list[str]]] = [
    # A baseline is repeated over what the user sweeps beside the study, and over the seeds of the study.
    ("eta=1,2 seed=0,1", {"own": ("eta",), "also": ["loss=grpo"]}, 4, ["seed=0 loss=grpo", "seed=1 loss=grpo"]),
    ("eta=1,2 seed=0,1", {"own": ("eta", "seed"), "also": ["loss=grpo"]}, 4, ["seed=0 loss=grpo", "seed=1 loss=grpo"]),
    # Beside a grid of the command line it repeats what is fixed, and the seeds where it has none of its own.
    ("loss=lad eta=1,2 steps=9", {"also": ["loss=grpo"]}, 2, ["steps=9 loss=grpo"]),
    (
        "loss=lad eta=1,2 seed=0,1",
        {"also": ["loss=grpo", "loss=rloo seed=5"]},
        4,
        ["seed=0 loss=grpo", "seed=1 loss=grpo", "loss=rloo seed=5"],
    ),
    (  # lr is swept for lad alone; an arm that sets it itself keeps it, and is repeated over seeds but not over lr
        "loss=lad lr=1,2 s=0,1",
        {"own": ("loss",), "also": ["loss=grpo lr=3", "loss=rloo"], "when": ["lr if loss=lad"]},
        4,
        ["s=0 loss=grpo lr=3", "s=1 loss=grpo lr=3", "s=0 loss=rloo", "s=1 loss=rloo"],
    ),
    (  # a knob of an option has another default in another option: only the shorthands of all are looked at
        "loss=lad eta=1,2",
        {"also": ["loss=js", "loss=js loss.coef=1"], "usual": {"loss.coef": 1}},
        2,
        ["loss=js", "loss=js loss.coef=1"],
    ),
]


def test_the_home_of_a_user_stands_for_its_sign_outside_of_quotes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    typed = ["a=~/x", "a={b:~/x,c:y~/z}", "a='~/x'", "~a", "a=1"]
    assert list(map(with_home, typed)) == ["a=/home/ada/x", "a={b:/home/ada/x,c:y~/z}", "a='~/x'", "~a", "a=1"]
    assert runs._split(["--dry-run", "a=~/x"]) == (["--dry-run"], ["a=/home/ada/x"])  # as from Python


def test_a_grid_has_these_points() -> None:
    for words, rules, expected in GRIDS:
        assert points(words, **rules) == expected, (words, rules)
    for words, rules, num, expected in ARMS:
        assert points(words, **rules)[num:] == expected, (words, rules)


def test_an_arm_that_is_another_by_what_holds_anyway_is_left_out_in_whatever_order_they_stand() -> None:
    for also in (["loss=grpo", "loss=grpo clip_high=0.28"], ["loss=grpo clip_high=0.28", "loss=grpo"]):
        assert points("loss=lad eta=1,2", also=also, usual={"clip_high": 0.28})[2:] == ["loss=grpo"]
        assert set(points("loss=lad eta=1,2", also=also)[2:]) == {"loss=grpo", "loss=grpo clip_high=0.28"}


def test_ten_thousand_pairs_are_not_a_hundred_million_points() -> None:
    assert len(points("a=range(10000) b=range(10000)", zip=["a,b"])) == 10_000


@pytest.mark.parametrize("usual", [1, 2])
def test_axes_that_hang_on_each_other_are_the_same_whichever_line_comes_first(usual: int) -> None:
    lines = ["steps if loss=lad", "lr if steps=2"]
    with_lr = ["loss=grpo lr=1", "loss=grpo lr=2"]  # where runs without the axis have two steps, too
    expected = ["loss=lad steps=1", "loss=lad steps=2 lr=1", "loss=lad steps=2 lr=2"]
    expected += with_lr if usual == 2 else ["loss=grpo"]
    for when in (lines, lines[::-1]):
        assert points("loss=lad,grpo steps=1,2 lr=1,2", usual={"steps": usual}, when=when) == expected


@pytest.mark.slow
@pytest.mark.usefixtures("composing")
@pytest.mark.parametrize("study", sorted(path.stem for path in (schema.CONF / "study").glob("*.yaml")))
def test_seeds_typed_beside_a_study_take_the_place_of_its_own_in_every_arm(study: str) -> None:
    """Of exact_likelihood the arms that learn digits have one seed, which their lines set."""
    loader = GlobalHydra.instance().config_loader()
    master = loader.load_configuration("run", [f"study={study}"], RunMode.MULTIRUN)
    with Session(registry=REGISTRY).entered():
        expanded = GridSweep(master, master.hydra.sweeper.params).points([f"study={study}", "seed=21,22"])
    whole = [point for point in expanded if "task=digits" not in point]
    seeds = [next(word for word in point if word.startswith("seed=")) for point in whole]
    assert {*seeds} == {"seed=21", "seed=22"}
    arms = Counter(" ".join(word for word in point if word not in seeds) for point in whole)
    assert {*arms.values()} == {2}


REFUSED: list[tuple[str, dict[str, list[str]], str]] = [
    ("a=1,2 b=1,2,3", {"zip": ["a,b"]}, "zip=a,b pairs values one by one, and a has 2, b has 3"),
    ("a=1,2 b=1,2", {"zip": ["a"]}, "names one key"),
    ("a=1,2 b=1,2", {"zip": ["a,c"]}, "c is not swept. Swept: a, b"),
    ("a=1,2 b=1,2", {"zip": ["a,b", "a,b"]}, "is in two lines"),
    ("a=1,2", {"exclude": ["c=1"]}, "no point of the sweep sets c. Points set a"),
    ("a=1,2", {"exclude": ["a=3"]}, "exclude='a=3' matches no point"),
    ("a=1,2", {"exclude": ["a=1,2"]}, "leaves no point"),
    ("a=1,2", {"exclude": ["a"]}, "a condition is key=value"),
    ("a=1,2", {"when": ["c if a=1"]}, "no point of the sweep sets c"),
    ("a=1,2", {"when": ["a"]}, "write the axis or the setting"),
    ("a=1,2", {"when": ["b=1,2 if a=1"]}, "gives b several values"),
    ("a=1,2", {"when": ["b=1 if a=3"]}, "matches no point"),
    ("a=1,2", {"also": ["b=1 c=1e-4="]}, "also='b=1 c=1e-4=': c=1e-4=: the value cannot be read. Type KEY=VALUE"),
    ("a=1,2", {"also": ["'b=1"]}, "a quote is not closed"),
    ("a=1,2", {"also": ["b=1 +until=decided"]}, "until is set for the whole sweep, not for some points."),
    ("a=1,2", {"when": ["tracker.uri=x if a=1"]}, "tracker.uri is set for the whole sweep"),
    ("a=1,2", {"when": ["b='1 if a=1"]}, 'when="b=\'1 if a=1": a quote is not closed'),
    ("a=1,2", {"exclude": ["a=é"]}, "exclude='a=é': a=é: 'é' is LATIN SMALL LETTER E WITH ACUTE. Type it anew, or put"),
    (
        "a=1,2",
        {"exclude": ["a=1 a=2"]},
        "exclude='a=1 a=2': a is given twice. Keep one of them; alternatives are a=A,B",
    ),
    ("a=1,2", {"also": ["b=1 c=2 +b=3"]}, "also='b=1 c=2 +b=3': b is given twice."),
    ("a=1,2", {"when": ["b=1 b=2 if a=1"]}, "b is given twice."),
    ("a=1,2", {"exclude": ["a=("]}, "exclude='a=(': a=(: the value cannot be read."),
    ("a=interval(0,1)", {}, "hydra/sweeper=optuna"),
]


def test_a_rule_that_cannot_be_meant_is_refused() -> None:
    for words, rules, said in REFUSED:
        with pytest.raises(ValueError) as caught:
            points(words, **rules)
        assert said in str(caught.value), (words, rules)
        assert "\n" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        # rloo brings an advantage of its own: the command's default, grpo's, is only that of lad and grpo.
        ("exclude=['advantage=grpo']", {("rloo", 2e-4), ("grpo", 2e-4)}),
        ("when=['lr=1e-3 if advantage=grpo']", {("lad", 1e-3), ("rloo", 2e-4), ("grpo", 2e-4)}),
    ],
)
def test_a_condition_reads_what_a_points_own_options_bring(
    rule: str, expected: set[tuple[str, float]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RLVR_HOME", str(tmp_path))
    words = ["loss=lad,rloo", "also=['loss=grpo advantage=maxrl']", rule]
    (launch,) = runs.carry_out(["-m", *words], REGISTRY, dry_run=True).launches
    assert {(run.config["choices"]["loss"], run.config["lr"]) for run in launch.plan.runs} == expected
