"""Every logged metric: its name in `metrics.jsonl`, unit and meaning. docs/metrics.md is generated from it.

python -m rlvr.ledger.glossary [NAME...]     # prints the whole page, or the entries of some metrics
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from rlvr.ledger import terminal
from rlvr.metrics import EVALUATION, VALIDATION

# Placeholders in names, written <like this>, and the pattern of the text that takes their place.
VARIABLE = {"benchmark": r"[\w.-]+", "n": r"\d+", "k": r"\d+"}


@dataclass(frozen=True)
class Entry:
    """One metric. unit: a "share" is a number from 0 to 1. only: when it is logged, if not always."""

    name: str
    unit: str
    meaning: str
    only: str = ""

    def describes(self, name: str) -> bool:
        """Whether a logged name is this entry's name with its placeholders filled in."""
        parts = re.split(r"<(\w+)>", self.name)
        pattern = "".join(VARIABLE[part] if i % 2 else re.escape(part) for i, part in enumerate(parts))
        return bool(re.fullmatch(pattern, name))


@dataclass(frozen=True)
class Chapter:
    title: str
    about: str
    entries: tuple[Entry, ...]


GLOSSARY = (
    Chapter(
        "Evaluation",
        "On the test problems: at step 0 (the base policy), every `evaluation.every` steps and at the last. n is "
        "`evaluation.samples`, k one of `evaluation.k`. With `evaluation.validation` the validation split is measured "
        "too, under the same names with `validation/` in place of `evaluation/`.",
        (
            Entry(
                "evaluation/<benchmark>/avg_at_<n>",
                "share",
                "right ones among the judged samples, of n; mean over the problems",
            ),
            Entry(
                "evaluation/<benchmark>/pass_at_<k>",
                "share",
                "chance that k samples of a problem include a right one, 1 − C(n − c, k)/C(n, k) with c of n right; "
                "mean over the problems with k judged samples",
            ),
            Entry(
                "evaluation/<benchmark>/error",
                "share",
                "samples that the verifier failed to judge: no other metric counts them",
            ),
            Entry(
                "evaluation/<benchmark>/distinct_correct_at_<n>",
                "answers",
                "different right answers among the n samples of a problem; mean over the problems",
                "tasks with several right answers",
            ),
            Entry(
                "evaluation/<benchmark>/mean_reward",
                "reward",
                "mean reward of the judged samples of a problem; mean over the problems",
                "tasks that may give rewards other than 0 and 1",
            ),
            Entry(
                "evaluation/<benchmark>/maj_at_<k>",
                "share",
                "chance that the most frequent answer of the first k samples is right, ties broken at random",
                "`rlvr.evaluate`",
            ),
            Entry(
                "evaluation/<benchmark>/coverage_at_<n>",
                "share",
                "problems with a right one among n samples",
                "`rlvr.evaluate`",
            ),
            Entry(
                "evaluation/bandit/expected_reward",
                "reward",
                "Σ probability · reward over the arms, of the whole policy, without sampling",
                "`task=bandit`",
            ),
        ),
    ),
    Chapter(
        "Rewards and responses of training",
        "Of all responses sampled in a step, before dynamic sampling selects some: the average of the policy itself. "
        "`rollout.reward` and the penalty for overlong responses do not change these metrics.",
        (
            Entry("reward/mean", "reward", "mean over the responses that were judged"),
            Entry("reward/accuracy", "share", "right ones among the responses that were judged"),
            Entry("reward/solved_fraction", "share", "problems with a right response"),
            Entry("reward/wrong", "share", "responses with a wrong answer"),
            Entry("reward/unparsable", "share", "responses without an answer to judge"),
            Entry("reward/unevaluated", "share", "responses with the right value that only restate the problem"),
            Entry("reward/timeout", "share", "responses that could not be judged within the time limit"),
            Entry("reward/error", "share", "responses that the verifier failed to judge: they are never learned from"),
            Entry("response/length", "tokens", "mean length, end token included"),
            Entry("response/finished", "share", "responses that ended by themselves, not at the limit"),
        ),
    ),
    Chapter(
        "Policy and optimiser",
        "Means over the response tokens of a mini-batch, then over the optimiser updates of the step. A step with "
        "nothing to learn from (`rollout.dynamic_sampling`) makes no update and logs none of them.",
        (
            Entry("policy/entropy", "nats per token", "entropy of the policy's next-token distribution"),
            Entry(
                "policy/kl_base",
                "nats per token",
                "KL(policy ‖ base), estimated as b − 1 − log b with b = base / policy, at the first update of a step; "
                "not with `trainer.base_kl=false`",
            ),
            Entry(
                "policy/kl_old",
                "nats per token",
                "KL(old ‖ policy), old being the policy that began the step, as r − 1 − log r with r = policy / old",
            ),
            Entry("policy/abs_log_ratio", "nats", "mean of |log r|"),
            Entry(
                "policy/clip_fraction",
                "share",
                "tokens (for losses of whole responses, responses) beyond clipping bounds: no gradient, but for cispo",
                "losses that clip",
            ),
            Entry("advantage/abs_mean", "advantage", "mean of |advantage|"),
            Entry("loss/total", "loss", "what is minimised, averaged by `trainer.aggregation`, penalties included"),
            Entry("optim/grad_norm", "norm", "L2 norm of the gradient before it is clipped to `trainer.clip_norm`"),
            Entry(
                "optim/critic_grad_norm",
                "norm",
                "L2 norm of the critic's gradient, which is clipped separately",
                "trainer.critic=own",
            ),
            Entry("optim/lr", "learning rate", "learning rate by the schedule"),
            Entry(
                "optim/loss_scale",
                "factor",
                "scale of the loss, halved when a gradient overflows",
                "trainer.dtype=float16",
            ),
            Entry(
                "optim/skipped",
                "share",
                "updates whose gradient overflowed: they change no weights and do not count in `optim/grad_norm`",
                "trainer.dtype=float16",
            ),
        ),
    ),
    Chapter(
        "What some objectives add",
        "Logged as `loss/NAME`, averaged like the metrics above. A loss of your own adds what it returns as `metrics`.",
        (
            Entry(
                "loss/divergence",
                "nats",
                "f-divergence of policy and target, per token or response",
                "lad, lad_theoretical",
            ),
            Entry(
                "loss/dual_clip_fraction",
                "share",
                "tokens whose loss is bounded by `loss.dual_clip`",
                "`loss.dual_clip`",
            ),
            Entry("loss/sequence_ratio", "ratio", "ratio of policy to old of a whole response", "gspo"),
            Entry("loss/value_loss", "reward²", "half the squared error of the value head", "ppo"),
            Entry("loss/value", "reward", "the value head's prediction", "ppo"),
            Entry("loss/implicit_reward", "β · nats", "β·Σ log(policy / reference) of a response", "pacs"),
            Entry("loss/score_accuracy", "share", "responses whose score has the sign of their reward − ½", "pacs"),
            Entry(
                "loss/delta_abs",
                "β · advantage",
                "mean of |log Z + distance − β·advantage|, which is minimised",
                "flowrl",
            ),
            Entry("loss/log_z", "nats", "the learned log Z of a prompt", "flowrl"),
            Entry("loss/weight", "ratio", "the weight of a response: the bounded ratio of policy to old", "flowrl"),
            Entry("loss/shaping", "advantage", "the term that entropy adds to the advantage", "entadv"),
            Entry("loss/chosen", "share", "tokens with the largest covariance, which are penalised", "kl_cov"),
            Entry("loss/dropped", "share", "tokens whose loss is left out because of their covariance", "clip_cov"),
            Entry("loss/rehearse", "nats", "divergence from the base policy on its own stored right answers", "dph_*"),
            Entry("loss/rehearse_log_ratio", "nats", "mean log(base / policy) of the tokens of these answers", "dph_*"),
            Entry(
                "loss/explore_penalty",
                "nats",
                "penalty to the base policy on sampled responses",
                "dph_reverse_kl, dph_js_definition",
            ),
        ),
    ),
    Chapter(
        "Trainer against engine",
        "d is a token's log-probability under the trainer minus that under the engine. Logged if the trainer computes "
        "its own (`rollout.logp_old=trainer`, the default with vLLM).",
        (
            Entry("mismatch/mean", "nats", "mean of |d|"),
            Entry("mismatch/max", "nats", "largest |d|"),
            Entry("mismatch/kl", "nats", "KL(engine ‖ trainer), as e^d − 1 − d"),
            Entry("mismatch/weight", "ratio", "mean weight of a token's loss", "`rollout.importance`"),
            Entry("mismatch/cut", "share", "tokens whose weight was changed by the cap", "`rollout.importance`"),
            Entry(
                "mismatch/sequence",
                "nats",
                "largest |log weight| of a response before the cap",
                "`rollout.importance_level=sequence`, `geometric`",
            ),
        ),
    ),
    Chapter(
        "Sampling, tokens, time, speed",
        "Of a step. Seconds are those of the first process; with `rollout.ahead`, sampling runs beside training.",
        (
            Entry(
                "rollout/rounds",
                "rounds",
                "rounds of sampling that it took to fill the step (`dynamic_sampling=refill`)",
            ),
            Entry(
                "rollout/staleness",
                "updates",
                "optimiser updates between the policy that drew a response's first token and the one that learns, on "
                "average over the responses that are learned from",
            ),
            Entry("rollout/staleness_max", "updates", "the largest of these numbers"),
            Entry("tokens/rollout", "tokens", "response tokens that were sampled, refills included"),
            Entry("tokens/used", "tokens", "response tokens that were learned from, once for each of `trainer.epochs`"),
            Entry("tokens/train", "tokens", "tokens that the model reads in training, prompts included"),
            Entry(
                "time/rollout_s",
                "seconds",
                "sampling; with `rollout.ahead` above 1, the time that it adds to the sampling of other steps",
            ),
            Entry("time/reward_s", "seconds", "judging"),
            Entry(
                "time/wait_s", "seconds", "wait for the step's responses: sampling, judging and the transfer of weights"
            ),
            Entry(
                "time/sync_s",
                "seconds",
                "transfer of the newest weights to the engine, the canary, putting the engine to sleep",
            ),
            Entry(
                "time/weights_s",
                "seconds",
                "duration of the transfer of the engine's newest weights, in this step or an earlier one",
            ),
            Entry("time/batch_s", "seconds", "building the batch, including the trainer's own log-probabilities"),
            Entry("time/train_s", "seconds", "forward and backward passes and the optimiser"),
            Entry("time/step_s", "seconds", "the whole step, without evaluation"),
            Entry("time/evaluation_s", "seconds", "the evaluation after the step"),
            Entry("throughput/rollout_tokens_per_s", "tokens/s", "`tokens/rollout` over `time/rollout_s`"),
            Entry("throughput/train_tokens_per_s", "tokens/s", "`tokens/train` over `time/train_s`"),
            Entry("throughput/tokens_per_s", "tokens/s", "`tokens/rollout` over `time/step_s`"),
            Entry(
                "throughput/gpu_s_per_token",
                "seconds",
                "`time/step_s` times ranks (and GPUs of `rollout=ray`) over `tokens/rollout`",
            ),
        ),
    ),
)


def entry(name: str) -> Entry | None:
    """The entry that describes a logged name; None if there is none."""
    if name.startswith(VALIDATION):
        name = EVALUATION + name.removeprefix(VALIDATION)
    entries = (entry for chapter in GLOSSARY for entry in chapter.entries)
    return next((entry for entry in entries if entry.describes(name)), None)


def page() -> str:
    """The text of docs/metrics.md."""
    lines = ["# Metrics", "", *INTRODUCTION]
    for chapter in GLOSSARY:
        lines += ["", f"## {chapter.title}", "", chapter.about, "", "| name | unit | what it is |", "|---|---|---|"]
        lines += [_row(entry) for entry in chapter.entries]
    return "\n".join(lines) + "\n"


INTRODUCTION = (
    "What runs log, by name, in `runs/RUN/metrics.jsonl` and from there in MLflow. Any metric can be a column of a",
    "table: `python -m analysis --metrics policy/kl_base`. A share is a number from 0 to 1.",
    "`python -m rlvr.ledger.glossary NAME` explains one. This page is generated from `rlvr/ledger/glossary.py` by",
    "`python -m tests.ledger.test_glossary --write`; a test runs every objective and fails if something is logged",
    "that is not listed here.",
)


def _row(entry: Entry) -> str:
    only = f" *({entry.only})*" if entry.only else ""
    cells = (f"`{entry.name}`", entry.unit, entry.meaning + only)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit codes: 0, or 2 if a name is not that of a metric."""
    parser = terminal.Parser("python -m rlvr.ledger.glossary", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="of a metric, as in metrics.jsonl (default: the page)")
    names: list[str] = parser.parse_args(arguments).names
    if not names:
        print(page(), end="")
    code = 0
    for name in names:
        if described := entry(name):
            print(f"{name}: {described.meaning} ({described.unit})")
            continue
        code, known = 2, [entry.name for chapter in GLOSSARY for entry in chapter.entries if "<" not in entry.name]
        print(f"{name}: no metric of this name is logged.{terminal.near(name, known)}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
