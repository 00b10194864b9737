from pathlib import Path

from analysis.frames.load import load
from analysis.report.looks import LIGHTEST, NUM_DASHES, lighter, looks_of, numbered
from analysis.scores import labels
from analysis.scores.arm import arms
from analysis.scores.labels import Label
from tests.analysis.ledger_factory import BASE, config, write_planned, write_run, write_study


def test_the_colour_is_the_divergence_the_shade_is_eta_and_grpo_is_black(tmp_path: Path) -> None:
    write_study(tmp_path)
    of_study = arms(load(tmp_path))
    looks = {arm.short: look for arm, look in zip(of_study, looks_of(of_study), strict=True)}
    assert set(looks) == {"grpo", *(f"{d} η={eta}" for d in ("js", "hd", "tv") for eta in ("0.5", "1", "2", "4"))}
    assert looks["grpo"].colour == "#000000"
    for divergence, colour in (("js", "#0072B2"), ("hd", "#009E73"), ("tv", "#7A3E9D")):
        shades = [looks[f"{divergence} η={eta}"].colour for eta in ("4", "2", "1", "0.5")]
        assert shades == [lighter(colour, LIGHTEST * share) for share in (0, 1 / 3, 2 / 3, 1)]
    assert len({(look.colour, look.dash) for look in looks.values()}) == len(looks)


def test_no_two_losses_have_one_colour(tmp_path: Path) -> None:
    for loss in ("grpo", "pacs", "maxrl", "rloo", "dapo", "cispo", "gspo", "dr_grpo", "reinforce", "drpo"):
        write_run(tmp_path, config(loss), {0: BASE})
    of_study = arms(load(tmp_path))
    looks = {arm.loss: look for arm, look in zip(of_study, looks_of(of_study), strict=True)}
    assert {looks[loss].colour for loss in ("grpo", "maxrl", "rloo", "pacs")} == {
        *("#000000", "#0072B2", "#E69F00", "#009E73")
    }
    assert len({(look.colour, look.dash) for look in looks.values()}) == len(looks)
    assert [loss for loss, look in looks.items() if look.colour == "#000000"] == ["grpo"]


def test_the_reference_is_black_among_arms_that_differ_by_a_number(tmp_path: Path) -> None:
    """Of GRPO the others are greys, lighter for smaller numbers; of another loss they keep its hue. Beside GRPO, which
    is black, another reference is the darkest of its kind."""
    planned = {}
    for loss in ("grpo", "rloo"):
        for lr in (1e-4, 2e-4, 4e-4):
            planned[f"loss={loss} lr={lr:g} seed=0"] = {0: BASE}
    write_planned(tmp_path, planned)
    of_study = arms(load(tmp_path))

    def colours(baseline: str, *losses: str) -> list[str]:
        shown = [arm for arm in of_study if arm.loss in losses]
        shown.sort(key=lambda arm: (arm.loss, float(arm.knobs["lr"])))
        return [look.colour for look in looks_of(shown, baseline)]

    assert colours("lr=2e-4", "grpo") == ["#808080", "#000000", lighter("#000000", LIGHTEST / 2)]
    assert colours("", "grpo") == ["#000000", "#808080", "#404040"]  # the first arm is the default reference
    orange = "#E69F00"
    assert colours("lr=2e-4", "rloo") == [lighter(orange, 0.5), "#000000", lighter(orange, 0.25)]
    assert colours("loss=rloo lr=2e-4", "grpo", "rloo")[2:] == ["#000000", *map(lighter, [orange] * 3, (0.5, 0, 0.25))]


def test_a_shade_is_mixed_with_white() -> None:
    assert lighter("#0072B2", 0) == "#0072B2"
    assert lighter("#000000", 0.5) == "#808080"  # 127.5 of 255
    assert lighter("#0072B2", 1) == "#FFFFFF"
    assert len({numbered(i) for i in range(8 * NUM_DASHES)}) == 32


def test_a_short_label_tells_arms_apart() -> None:
    def label(**knobs: str) -> Label:
        return Label(labels.text(knobs), knobs)

    of_groups = {"a": label(loss="grpo"), "b": label(loss="lad", divergence="js", eta="0.5")}
    of_groups |= {"c": label(loss="dph", divergence="kl", beta="1")}
    of_groups |= {"d": label(loss="lad", divergence="kl", beta="1"), "e": label(lr="1e-4")}
    expected = {"a": "grpo", "b": "js η=0.5", "c": "dph kl β=1", "d": "lad kl β=1", "e": "lr=1e-4"}
    assert labels.in_short(of_groups) == expected
