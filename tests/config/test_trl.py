from typing import Any

import pytest

from rlvr.config.trl import arguments
from tests.support.composed import REGISTRY, checked


def frozen(*words: str) -> dict[str, Any]:
    """The frozen config of a run of TRL, checked as before a launch."""
    typed = ["program=trl", *([] if any(word.startswith("loss=") for word in words) else ["loss=grpo"]), *words]
    return checked(REGISTRY, *typed)


def test_our_words_become_the_arguments_that_mean_the_same() -> None:
    """6 problems of 4 responses in 3 updates: 8 responses each, 4 in a forward pass; twice, in 10 steps."""
    words = ["rollout.prompts=6", "rollout.samples=4", "trainer.updates=3", "trainer.epochs=2", "steps=10"]
    words += ["program.micro_batch=6", "lr=1e-3", "trainer.kl=0.1", "loss.clip_high=0.3", "trainer.warmup_steps=5"]
    found = arguments(frozen(*words, "trainer.betas=[0.8,0.9]", "rollout.temperature=0.7"))
    expected = {
        **{"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "steps_per_generation": 6},
        **{"num_iterations": 2, "max_steps": 60, "logging_steps": 6, "num_generations": 4, "temperature": 0.7},
        **{"loss_type": "dapo", "scale_rewards": "group", "epsilon": 0.2, "epsilon_high": 0.3, "delta": None},
        **{"beta": 0.1, "use_bias_correction_kl": False, "learning_rate": 1e-3, "warmup_steps": 5},
        **{"lr_scheduler_type": "constant_with_warmup", "adam_beta1": 0.8, "adam_beta2": 0.9, "max_grad_norm": 1.0},
        **{"bf16": False, "fp16": False, "importance_sampling_level": "token", "shuffle_dataset": False},
    }
    assert {name: found[name] for name in expected} == expected


LOSSES = {
    ("loss=dr_grpo", "trainer.aggregation=seq-mean-token-sum-norm"): {"loss_type": "dr_grpo", "scale_rewards": "none"},
    ("loss=grpo", "trainer.aggregation=seq-mean-token-mean"): {"loss_type": "grpo", "epsilon_high": 0.2},
    ("loss=gspo",): {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 3e-4},
    ("loss=cispo",): {"loss_type": "cispo", "epsilon_high": 5.0},
    ("loss=sapo",): {"loss_type": "sapo", "sapo_temperature_pos": 1.0, "sapo_temperature_neg": 1.05},
    ("loss=grpo", "loss.dual_clip=3"): {"loss_type": "dapo", "delta": 3.0},
    ("loss=rloo", "trainer.aggregation=seq-mean-token-sum", "trainer.updates=1"): {"normalize_advantages": False},
}


@pytest.mark.parametrize("words", LOSSES)
def test_a_loss_and_its_average_are_one_of_trls_loss_types(words: tuple[str, ...]) -> None:
    assert LOSSES[words].items() <= arguments(frozen(*words)).items()


REFUSED = {
    "loss=lad": "loss=lad: TRL has no such loss. Pass one of grpo, dapo, dr_grpo, gspo, cispo, sapo, rloo.",
    "loss=rloo": "loss=rloo advantage=rloo trainer.aggregation=token-mean trainer.updates=2: TRL's RLOOTrainer is our "
    "loss=rloo only with trainer.aggregation=seq-mean-token-sum trainer.updates=1",
    "cluster.gpus=2": "cluster.gpus=2: program=trl trains on one GPU. Pass cluster.gpus=1.",
    "cluster.ranks=2": "cluster.ranks=2: a program has one process. Drop it.",
    "loss=dapo": "rollout.overlong_buffer=0.2: TRL has no such penalty. Pass rollout.overlong_buffer=null.",
    "advantage.epsilon=1e-5": "advantage=grpo: .* advantage.epsilon=0.0001, dr_grpo, and for",
    "trainer.aggregation=prompt-mean": "trainer.aggregation=prompt-mean: with loss=grpo TRL averages as token-mean or",
    "trainer.schedule=wsd": "trainer.schedule=wsd: program=trl takes constant, linear, cosine.",
    "trainer.updates=3": "rollout.prompts=32 rollout.samples=8 trainer.updates=3: TRL's updates have equal numbers",
    "rollout.dynamic_sampling=none": "rollout.dynamic_sampling has no effect with program=trl",
    "trainer.packing=false": "trainer.packing has no effect with program=trl",
    "+program.args.top_kk=3": "program.args.top_kk is no argument of trl.GRPOConfig. Did you mean top_k?",
    "+program.args.top_k=high": "program.args.top_k=high: a whole number is expected.",
    "+program.args.max_steps=3": "program.args.max_steps has no effect: the run's own words determine it",
    "+program.args.output_dir=x": "program.args.output_dir has no effect: the run's own words determine it",
}


@pytest.mark.parametrize("word", REFUSED)
def test_what_trl_cannot_carry_out_is_refused_in_a_line(word: str) -> None:
    with pytest.raises(ValueError, match=REFUSED[word].replace("+", r"\+").replace("?", r"\?")) as error:
        frozen(word)
    assert "\n" not in str(error.value)


def test_further_arguments_of_trl_are_taken_and_belong_to_the_run() -> None:
    assert frozen("+program.args.top_k=50")["program"]["args"] == {"top_k": 50}
