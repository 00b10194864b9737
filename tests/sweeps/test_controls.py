import json
from pathlib import Path

import pytest

from analysis.frames.load import load
from analysis.scores.controls import against_controls
from analysis.scores.findings import findings
from analysis.tables import comparison
from sweeps import controls
from sweeps.grid import Usual
from tests.analysis.ledger_factory import config, counts, write_run, write_sweep

POINTS = [["loss=grpo", "seed=0"], ["loss=grpo", "seed=1"], ["loss=pacs", "seed=0"], ["loss=pacs", "seed=1"]]


def usual(**values: object) -> Usual:
    """What points that do not set a key have."""
    return lambda key, _: values.get(key)


def test_each_control_has_its_points() -> None:
    def added(text: str, baseline: str = "") -> list[str]:
        points = controls.added(POINTS, text, baseline, usual())
        assert {control for _, control in points} == {text}
        return [" ".join(words) for words, _ in points]

    arms = [f"loss={loss} seed={seed}" for loss in ("grpo", "pacs") for seed in (0, 1)]
    assert added("random") == [f"{arm} rollout.reward=random" for arm in arms]
    assert added("seeds") == ["loss=grpo seed=2", "loss=grpo seed=3"]
    assert added("still", "loss=pacs") == ["loss=pacs seed=0 lr=0", "loss=pacs seed=1 lr=0"]
    both = controls.added([["lr=1"], ["lr=2"]], "still,seeds", "", usual(seed=5))
    assert both == [(["lr=0"], "still"), (["lr=1", "seed=6"], "seeds")]
    with pytest.raises(ValueError, match="placebo is unknown. Controls: seeds, random, flipped, majority, still"):
        controls.added(POINTS, "placebo", "", usual())


def test_the_reference_is_the_arm_that_the_report_compares_with() -> None:
    """By values, those of a study's defaults among them; of several that have them, the one with nothing else."""
    defaults = usual(loss="lad", seed=0, lr=2e-4)
    etas = [["eta=0.5"], ["eta=1"]]
    assert controls.added(etas, "seeds", "loss=lad eta = 1.0", defaults) == [(["eta=1", "seed=1"], "seeds")]
    rates = [["lr=1e-3"], ["lr=1e-4"]]
    assert controls.added(rates, "still", "lr=0.0001", defaults) == [(["lr=0"], "still")]
    grpos = [["loss=grpo", "clip_high=0.28"], ["loss=grpo"]]
    for baseline in ("loss=grpo", ""):
        assert controls.added(grpos, "still", baseline, defaults) == [(["loss=grpo", "lr=0"], "still")]
    with pytest.raises(ValueError, match="baseline='loss=pacs': no point of the sweep has it"):
        controls.added(etas, "seeds", "loss=pacs", defaults)


def test_a_control_that_was_tuned_to_another_value_is_still_that_of_its_arm(tmp_path: Path) -> None:
    plan = []
    for reward, lr, right in (("exact", 1e-5, 4), ("random", 3e-5, 4)):
        for seed in range(3):
            knobs = {"lr": lr, "rollout": {"samples": 8, **({"reward": reward} if reward == "random" else {})}}
            of_problems = counts(*(right + (seed + i) % 2 for i in range(60)))
            name = f"{reward}-s{seed}"
            run_id = write_run(tmp_path, config("grpo", seed=seed, **knobs), {40: {"maze7": of_problems}}, name=name)
            words = ["rollout.reward=random"] if reward == "random" else []
            plan.append((run_id, name, ["loss=grpo", f"lr={lr:g}", *words, f"seed={seed}"]))
    write_sweep(tmp_path, "s", plan)
    file = tmp_path / "runs" / "sweeps" / "s" / "sweep.json"
    rule = {"keys": ["lr"], "values": ["lr=1e-05", "lr=3e-05"], "seeds": [1000], "picks": {}}
    file.write_text(json.dumps({**json.loads(file.read_text()), "tune": rule}))
    (result,) = against_controls(load(tmp_path))
    assert (result.control, result.passed) == ("random", False)


def test_an_arm_that_is_not_above_its_control_is_flagged(tmp_path: Path) -> None:
    plan = []

    def arm(loss: str, right: tuple[int, ...], *words: str, first: int = 0, **other: object) -> None:
        for seed, correct in enumerate(right, start=first):
            name = "-".join((loss, *words, f"s{seed}"))
            of_problems = counts(*(min(8, correct + (0, 1)[i % 2]) for i in range(60)))
            run_id = write_run(tmp_path, config(loss, seed=seed, **other), {40: {"maze7": of_problems}}, name=name)
            plan.append((run_id, name, [f"loss={loss}", *words, f"seed={seed}"]))

    random = {"rollout": {"reward": "random"}}
    rollout = {"rollout": {"samples": 8}}
    arm("grpo", (3, 4, 3), **rollout)
    arm("pacs", (6, 7, 6), **rollout)
    arm("grpo", (3, 4, 4), "rollout.reward=random", rollout={**rollout["rollout"], **random["rollout"]})
    arm("pacs", (3, 3, 3), "rollout.reward=random", rollout={**rollout["rollout"], **random["rollout"]})
    arm("grpo", (4, 4, 3), first=3, **rollout)
    write_sweep(tmp_path, "s", plan, control={f"grpo-s{seed}": "seeds" for seed in (3, 4, 5)})
    frames = load(tmp_path)
    by_arm = {(result.arm, result.control): result for result in against_controls(frames)}
    assert {key: result.passed for key, result in by_arm.items()} == {
        ("loss=grpo", "random"): False,
        ("loss=pacs", "random"): True,
        ("loss=pacs", "seeds"): True,
    }
    assert by_arm["loss=pacs", "seeds"].effect == pytest.approx(3 / 8)  # 3 of 8 more at every seed
    # By place 3, 4, 3 and 4, 4, 3 of 8: one of three is 1/8 above.
    assert by_arm["loss=pacs", "seeds"].floor == pytest.approx(1 / 24)
    assert [v.claim.says for v in findings(frames)] == ["loss=grpo is not decidedly above its control, random rewards"]
    table = comparison.table(frames)
    assert table is not None
    rows = {cell["row"]: cell["seeds"] for cell in table.records}
    assert (rows["loss=grpo"], rows["loss=grpo control=seeds"]) == (3, 3)
    assert {cell["reference"] for cell in table.records} == {"", "loss=grpo"}
