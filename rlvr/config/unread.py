"""Refuses a knob that was changed although another setting makes it useless: no knob is silently ignored."""

from rlvr.config import values
from rlvr.config.registry import Registry
from rlvr.config.schema import Choices, Knobs
from rlvr.config.signature import declared, has_terms_per_response


def check(config: Knobs, choices: Choices, registry: Registry) -> None:
    """Raises ValueError for a knob that has another value than in its file, and that nothing reads."""
    for is_unread, reason, keys in _rules(config, f"loss={choices.get('loss')}"):
        for key in keys if is_unread else ():
            section, _, name = key.rpartition(".")
            value, usual = (config[section] if section else config).get(name), registry.as_written(choices, key)
            if (value or None) != (usual or None):  # a file may lack what is off
                remedy = f"Drop it, or pass {key}={values.typed(usual)} where a recipe or a study sets it."
                raise ValueError(f"{key}={values.typed(value)} has no effect with {reason}. {remedy}")


def _rules(config: Knobs, of_loss: str) -> list[tuple[bool, str, tuple[str, ...]]]:
    """(whether nothing reads these knobs, because of what, the knobs)"""
    loss, trainer, rollout = config.loss, config.trainer, config.rollout
    marks = declared(loss["_target_"])
    has_reference = trainer.kl > 0 or "reference" in marks
    # Terms of responses have one average, whatever `aggregation` is; the penalty and the bonus are terms of tokens.
    of_tokens = trainer.aggregation != "prompt-mean" and (trainer.kl != 0 or trainer.entropy != 0)
    no_tokens = has_terms_per_response(loss) and not of_tokens
    of_samples = ("reward", "overlong_buffer", "overlong_filter", "ahead", "truncation", "importance", "max_mismatch")
    of_weights = ("rollout.importance_cap", "rollout.importance_level")
    sampling, schedule, score = rollout.dynamic_sampling, trainer.schedule, loss.get("score")
    adapted = f"trainer.lora_rank={trainer.lora_rank}: the reference is the policy without its adapters"
    is_table = config.model["_target_"] == "rlvr.model.table.table"
    is_bandit = config.task["_target_"] == "rlvr.task.bandit.Bandit"
    of_evaluation = tuple(f"evaluation.{key}" for key in ("samples", "k", "temperature", "top_p", "problems"))
    in_flight = f"rollout.ahead={rollout.ahead}, where groups are drawn one after the other"
    return [
        ("solution" in marks, f"{of_loss}, which learns known answers", tuple(f"rollout.{key}" for key in of_samples)),
        (sampling != "refill", f"rollout.dynamic_sampling={sampling}", ("rollout.max_rounds", "rollout.overdraw")),
        (rollout.ahead > 1, in_flight, ("rollout.overdraw", "rollout.retire_at")),
        (rollout.importance == "none", "rollout.importance=none", of_weights),
        (rollout.top_p == 1, "rollout.top_p=1", ("rollout.truncation",)),
        (rollout.overlong_buffer is None, "rollout.overlong_buffer=null", ("rollout.overlong_penalty",)),
        (not trainer.base_kl, "trainer.base_kl=false", ("max_kl",)),
        (trainer.kl == 0, "trainer.kl=0", ("trainer.kl_estimator",)),
        (not has_reference, f"{of_loss} and trainer.kl=0, which read no reference", ("trainer.reference_every",)),
        (trainer.reference_every is None, "trainer.reference_every=null", ("trainer.reference_resets_optimiser",)),
        (not (has_reference or trainer.base_kl), "no frozen copy of the policy", ("trainer.reference_offload",)),
        ("value" not in marks, f"{of_loss}, which trains no value head, as ppo does", ("trainer.critic",)),
        (not marks & {"value", "log_z"}, f"{of_loss}, which trains no head beside the model", ("trainer.head_lr",)),
        (trainer.lora_rank is None, "trainer.lora_rank=null", ("trainer.lora_alpha",)),
        (trainer.lora_rank is not None, adapted, ("trainer.reference_every", "trainer.reference_offload")),
        (not trainer.packing, "trainer.packing=false: padded rows repeat the prompt", ("trainer.shared_prompt",)),
        (is_table, "model=table, without layers and attention", ("trainer.lora_rank", "trainer.shared_prompt")),
        (is_bandit, "task=bandit, whose policy is read off, not sampled", of_evaluation),
        (no_tokens, f"{of_loss}, which has one term per response", ("trainer.aggregation",)),
        (score != "grpo", f"loss.score={score}", ("loss.std_floor",)),
        (schedule != "wsd", f"trainer.schedule={schedule}", ("trainer.decay_steps",)),
        (schedule == "constant", "trainer.schedule=constant", ("trainer.final_lr",)),
    ]
