from pathlib import Path

import pytest

from analysis.frames.load import load
from analysis.scores import labels
from analysis.scores.arm import Arm, arms
from analysis.scores.selection import default_reference, ordered, references, select
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

END = {0: BASE, 40: {"maze7": counts(4, 4, 0, 0)}}


def sweep(home: Path, *typed: str, sweep_id: str = "s") -> list[Arm]:
    """Runs with these knobs."""
    write_planned(home, dict.fromkeys(typed, END), sweep_id)
    return arms(load(home))


def labels_in(home: Path) -> list[str]:
    frames = load(home)
    return [arm.label for arm in ordered(arms(frames), frames.swept)]


def test_numbers_that_a_search_has_drawn_have_four_digits_and_typed_ones_all(tmp_path):
    sweep(tmp_path, *(f"loss=grpo lr={lr}" for lr in ("0.06735245379657583", "2.1422345867e-05", "0.123456")))
    assert labels_in(tmp_path) == ["lr = 2.142e-05", "lr = 0.06735", "lr = 0.123456"]


def test_the_labels_of_several_references_are_shortened():
    first, second = "loss=grpo lr = 1e-4 rollout.samples = 4", "loss=grpo lr = 3e-4 rollout.samples = 4"
    assert labels.joined([first, first]) == first
    assert labels.joined([first, second, first]) == "loss=grpo rollout.samples = 4 at the same lr"
    assert labels.joined(["loss=grpo", "loss=lad"]) == "loss=grpo or loss=lad"
    assert labels.joined([first, "base policy (step 0)"]) == f"{first} or base policy (step 0)"


def test_settings_whose_long_values_end_alike_are_two(tmp_path):
    test = "a-folder-of-a-long-name/and-another-one/test.jsonl"
    settings = [arm.setting for arm in sweep(tmp_path, *(f"loss=grpo n={i} task.test={i}/{test}" for i in "ab"))]
    assert sorted(settings) == [f"task.test={i}/{test}" for i in "ab"]


def test_groups_and_numbers_and_the_inverse_of_eta(tmp_path):
    write_study(tmp_path)
    texts = labels_in(tmp_path)
    assert texts[0] == "loss=grpo"  # an arm without a knob comes first
    assert "loss=lad divergence=hd eta = 0.5 (1/η = 2)" in texts
    assert "loss=lad divergence=tv eta = 4 (1/η = 1/4)" in texts


def test_a_knob_that_was_not_typed_is_shown_with_its_value_in_the_config(tmp_path):
    sweep(tmp_path, "lr=1e-5", "lr=1e-4")
    write_run(tmp_path, config(), END, name="plain")  # the default, lr 1e-06
    assert labels_in(tmp_path) == ["lr = 1e-06", "lr = 1e-5", "lr = 1e-4"]


def test_a_knob_typed_for_one_arm_is_only_in_its_label(tmp_path):
    """`also: loss=grpo trainer.kl=0.01` beside a grid of losses."""
    sweep(tmp_path, "loss=grpo", "loss=pacs", "loss=grpo trainer.kl=0.01")
    assert sorted(labels_in(tmp_path)) == ["loss=grpo", "loss=grpo trainer.kl = 0.01", "loss=pacs"]


def test_an_arm_in_which_all_is_off_is_called_by_its_loss(tmp_path):
    """`-m loss=grpo controls=random` began its warning with "warning:  is not"."""
    sweep(tmp_path, "", "rollout.reward=random")
    assert sorted(labels_in(tmp_path)) == ["loss=lad", "rollout.reward=random"]


def test_runs_without_a_sweep_are_distinguished_by_their_configs(tmp_path):
    for updates in (1, 4):
        write_run(tmp_path, config("grpo", trainer={"updates": updates}), END, name=f"updates{updates}")
    assert labels_in(tmp_path) == ["trainer.updates = 1", "trainer.updates = 4"]


def test_arms_that_differ_in_late_digits_have_labels_of_their_own(tmp_path):
    for kl in (0.1, 0.10000001):
        write_run(tmp_path, config("grpo", trainer={"kl": kl}), END, name=f"kl{kl}")
    assert labels_in(tmp_path) == ["trainer.kl = 0.1", "trainer.kl = 0.10000001"]


def test_a_knob_of_many_digits_that_all_arms_share_is_found_by_its_value(tmp_path):
    """Six digits were compared: a claim that named the rate as it was typed was not tested."""
    arms = sweep(tmp_path, "loss=grpo lr=3.1622777e-4", "loss=pacs lr=3.1622777e-4")
    assert [arm.loss for arm in select(arms, "loss=pacs lr=3.1622777e-4")] == ["pacs"]
    assert select(arms, "loss=pacs lr=3.1622e-4") == []


@pytest.mark.parametrize("key", ["model.system", "evaluation.problems", "task.train_problems"])
def test_null_in_one_arm_is_another_setting_than_a_value_in_another(key, tmp_path):
    """A prompt of the system makes another base policy, to which the arm without one was compared."""
    swept = sweep(tmp_path, f"loss=grpo {key}=null", f"loss=grpo {key}=4")
    assert sorted(arm.setting for arm in swept) == ["", f"{key}=4"]
    assert {arm.label for arm in swept} == {"loss=grpo"}


@pytest.mark.parametrize(("group", "key"), [("model", "layers"), ("task", "size"), ("evaluation", "samples")])
def test_a_swept_model_task_or_evaluation_makes_blocks(tmp_path, group, key):
    swept = sweep(tmp_path, *(f"loss=grpo {group}.{key}={n}" for n in (7, 9)))
    assert {arm.setting for arm in swept} == {f"{group}.{key}=7", f"{group}.{key}=9"}


def test_a_swept_length_makes_arms(tmp_path):
    swept = sweep(tmp_path, "loss=grpo steps=20", "loss=grpo steps=40")
    assert {(arm.setting, arm.label) for arm in swept} == {("", "steps = 20"), ("", "steps = 40")}


def test_numbers_ascend_and_words_keep_the_order_of_the_sweep(tmp_path):
    losses = ("pacs", "grpo", "rloo")
    sweep(tmp_path, *(f"loss={x} lr={lr}" for x in losses for lr in (1e-3, 1e-5)))
    change_sweep(tmp_path, swept={"loss": losses})
    assert labels_in(tmp_path) == [f"loss={x} lr = {lr}" for x in losses for lr in (1e-05, 0.001)]


def test_a_selector_is_read_with_and_without_spaces():
    assert labels.parse("loss=grpo lr = 1e-4") == {"loss": "grpo", "lr": "1e-4"}
    assert labels.parse("eta = 0.5 (1/η = 2)") == {"eta": "0.5"}  # a label, copied from a table
    with pytest.raises(ValueError, match="names no arm"):
        labels.parse("grpo")
    with pytest.raises(ValueError, match="gives loss twice. Keep one of them; alternatives are loss=A,B"):
        labels.parse("loss=grpo loss=rloo lr=1e-4")


def test_selection_compares_numbers_as_numbers_and_takes_alternatives(tmp_path):
    write_study(tmp_path)
    of_study = arms(load(tmp_path))
    assert [a.label for a in select(of_study, "loss=grpo")] == ["loss=grpo"]
    assert (len(select(of_study, "eta=0.50")), len(select(of_study, "divergence=js,hd eta=1,2"))) == (3, 4)
    assert len(select(of_study, "lr=1e-6")) == 13  # by default, and never typed
    assert select(of_study, "loss=ppo") == []


def test_lists_truths_and_quoted_texts_are_selected_as_they_are_typed(tmp_path):
    """A comma in brackets or quotes is no alternative; a value that was not typed is the same in the config's words."""
    points = [
        (config("grpo", trainer={"betas": [0.9, 0.95], "packing": True}), "trainer.betas=[0.9,0.95]"),
        (config("grpo", trainer={"betas": [0.9, 0.99], "packing": False}), "trainer.packing=false"),
        (config("grpo", rollout={"stop": "a, b = c"}), "rollout.stop='a, b = c'"),
    ]
    plan = [(write_run(tmp_path, frozen, END, name=typed), typed, [typed]) for frozen, typed in points]
    write_sweep(tmp_path, "s", plan)
    of_study = arms(load(tmp_path))
    lists, truths, texts = ("trainer.betas=[0.9,0.95]", "trainer.packing=false", "rollout.stop='a, b = c'")
    for selector, labels_of_arms in (
        *((lists, [lists]), ("trainer.betas=[0.9, 0.95]", [lists])),
        *(("trainer.betas=[0.9,0.99],[0.9,0.95]", [lists, truths]), ("trainer.betas=[0.99,0.9]", [])),
        *(("trainer.packing=False loss=grpo", [truths]), ("trainer.packing=true", [lists]), (texts, [texts])),
        ("rollout.stop=b", []),
    ):
        assert sorted(arm.label for arm in select(of_study, selector)) == sorted(labels_of_arms), selector
    for not_a_selector in ("rollout.stop=a, b", "rollout.stop='a", "trainer.betas=[0.9"):
        with pytest.raises(ValueError, match="names no arm"):
            labels.parse(not_a_selector)


def test_a_control_is_selected_only_by_the_knob_that_makes_it_one(tmp_path):
    """Naming the learning rate means arms with this rate, and not those that learn from random rewards at it."""
    rewards = [f"loss=grpo lr=1e-4 rollout.reward={reward}" for reward in ("random", "flipped")]
    of_study = sweep(tmp_path, "loss=grpo lr=1e-4", "loss=grpo lr=0", *rewards)
    for selector, controls in (
        ("loss=grpo", [""]),
        ("loss=grpo lr=1e-4", [""]),
        ("lr=0,1e-4", ["", "still"]),
        ("rollout.reward=random", ["random"]),
        ("loss=grpo rollout.reward=random,flipped", ["flipped", "random"]),
    ):
        assert sorted(arm.control for arm in select(of_study, selector)) == controls


def test_the_default_reference_is_the_baseline_then_grpo_then_the_first(tmp_path):
    write_study(tmp_path)
    of_study = arms(load(tmp_path))
    assert {a.label for a in default_reference(of_study, "").values()} == {"loss=grpo"}
    js = "divergence=js eta=1"
    assert {a.divergence for a in default_reference(of_study, js).values()} == {"js"}
    lad = [a for a in of_study if a.loss == "lad"]
    assert set(default_reference(lad, "").values()) == {lad[0]}


def test_of_several_references_each_arm_takes_the_one_like_it(tmp_path):
    of_study = sweep(tmp_path, *(f"loss={x} lr={lr}" for x in ("grpo", "pacs") for lr in (1e-5, 1e-3)))
    label = {a.group_id: a.label for a in of_study}
    pairs = {label[group]: arm.label for group, arm in references(of_study, "loss=grpo").items()}
    assert pairs == {"loss=pacs lr = 1e-05": "loss=grpo lr = 1e-05", "loss=pacs lr = 0.001": "loss=grpo lr = 0.001"}


@pytest.mark.parametrize("knobs", [("", " lr=4e-4"), (" lr=1e-5", " lr=1e-3", " lr=1e-5 clip_high=0.28")])
def test_an_arm_of_a_later_launch_takes_the_reference_of_that_launch(tmp_path, knobs):
    """Neither the plain one, which has another value, nor one in which the knob is null."""
    of_study = sweep(tmp_path, *(f"loss={loss}{typed}" for typed in knobs for loss in ("grpo", "pacs")))
    label = {a.group_id: a.label for a in of_study}
    of_pacs = {name: name.replace("pacs", "grpo") for name in label.values() if "pacs" in name}
    assert {label[i]: arm.label for i, arm in references(of_study, "loss=grpo").items()}.items() >= of_pacs.items()


@pytest.mark.parametrize(("key", "first", "second"), [("packing", "true", "false"), ("critic", "own", "null")])
def test_a_value_that_one_launch_typed_and_another_has_by_default_is_one_value(tmp_path, key, first, second):
    """PACS, which a later launch added, has the second value by default: it is compared to GRPO with that value."""
    sweep(tmp_path, *(f"loss=grpo trainer.{key}={value}" for value in (first, second)), sweep_id="first")
    default = config_of(f"trainer.{key}={second}")["trainer"]
    write_planned(tmp_path, {"loss=pacs": END}, "second", frozen={"trainer": default})
    of_study = arms(load(tmp_path))
    loss = {a.group_id: a.loss for a in of_study}
    pairs = {loss[group]: arm.label for group, arm in default_reference(of_study, "").items()}
    assert pairs == {"pacs": f"loss=grpo trainer.{key}={second}"}


def test_the_plain_one_of_several_references_stands_for_all(tmp_path):
    reference = references(sweep(tmp_path, "loss=grpo", "loss=grpo trainer.kl=0.1", "loss=pacs"), "loss=grpo")
    assert ({a.label for a in reference.values()}, len(reference)) == ({"loss=grpo"}, 2)


def test_what_was_tuned_is_no_difference_between_arms(tmp_path):
    """Each has the best of its own; the runs that were tried differ in nothing else, and are told apart by it."""
    sweep(tmp_path, "loss=grpo lr=0.0002", "loss=grpo lr=0.0004 trainer.kl=0.1", "loss=rloo lr=0.0001")
    assert "loss=rloo lr = 0.0001" not in reference_labels(tmp_path)
    change_sweep(tmp_path, tune={"keys": ["lr"]})
    assert reference_labels(tmp_path) == dict.fromkeys(
        ("loss=grpo lr = 0.0004 trainer.kl = 0.1", "loss=rloo lr = 0.0001"), "loss=grpo lr = 0.0002"
    )


def reference_labels(home):
    of_study = arms(load(home))
    label = {a.group_id: a.label for a in of_study}
    return {label[group]: arm.label for group, arm in references(of_study, "loss=grpo").items()}
