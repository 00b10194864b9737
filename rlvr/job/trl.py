"""TRL's GRPOTrainer and RLOOTrainer as a program (`program=trl`, docs/programs.md).

TRL samples and learns. Problems, rewards, evaluations, the record and the directory of its checkpoints are the run's.
Texts are ours too: AutoTokenizer takes another tokenizer than the directory's for some models, and TRL's own texts of
responses lack the end word, by which our tasks know a complete answer.
"""

import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from hydra.utils import get_class
from torch import Tensor

from rlvr.config import trl as config_of_trl
from rlvr.config.schema import Section
from rlvr.job.parts import special_ids
from rlvr.job.program import Run, SampledAnswer
from rlvr.model.load import load
from rlvr.records import Problem, Reward, Sampling
from rlvr.rollout.evaluation import NOISE_STREAM
from rlvr.rollout.native import NativeEngine
from rlvr.rollout.sampler import RolloutCost, Sampler, reward_metrics
from rlvr.trainer.collate import decode, encode, turns

STATE = "trl"  # TRL's checkpoint, within the directory of a state of the run
# Of TRL's names, those that mean the same as ours (docs/metrics.md).
METRICS = {
    "loss": "loss/total",
    "grad_norm": "optim/grad_norm",
    "learning_rate": "optim/lr",
    "entropy": "policy/entropy",
    "kl": "policy/kl_base",
    "clip_ratio/region_mean": "policy/clip_fraction",
    "cispo_clip_ratio": "policy/clip_fraction",
    "completions/mean_length": "response/length",
}


def train(config: Section, run: Run) -> None:
    """Train with TRL from the newest state, or from the base policy."""
    from transformers.trainer_callback import PrinterCallback  # here, as TRL: they take seconds to import

    subject = Subject(config, run)
    trainer = subject.trainer()
    trainer.remove_callback(PrinterCallback)  # of a dictionary for each step
    if not run.resumed:
        run.log(0, subject.evaluate(trainer.model, 0))
    trainer.train(resume_from_checkpoint=str(run.resumed / STATE) if run.resumed else None)


class Subject:
    """The model that TRL trains, and what it is trained and measured on."""

    def __init__(self, config: Section, run: Run) -> None:
        self.config, self.run = config, run
        self.base = run.base_policy()
        self.model, self.tokenizer = load(self.base, dtype=torch.float32)
        self.chat, self.system = bool(config.model.get("chat")), config.model.get("system")
        self.ends, self.silent, _, self.pad = special_ids(self.base, self.tokenizer, run.task, chat=self.chat)
        if self.tokenizer.pad_token_id is not None:  # else TRL chooses one
            self.tokenizer.pad_token_id = self.pad
        self.model.generation_config.eos_token_id = [*self.ends]  # TRL ends responses at these
        self.max_tokens: int = config.rollout.max_tokens or run.task.max_tokens
        self.problems = functools.lru_cache(maxsize=2)(run.problems)
        self.rewards: list[list[Reward]] = []  # of the newest rollout

    def trainer(self) -> Any:
        """TRL's trainer of the model, with the arguments that our words mean."""
        program, on_cpu = self.config.program, not torch.cuda.is_available()
        kind, settings_of = trainer_class(self.config)
        settings = settings_of(
            output_dir=str(self.run.attempt_dir / STATE),
            seed=self.run.seed,
            max_completion_length=self.max_tokens,
            use_cpu=on_cpu,
            dataloader_pin_memory=not on_cpu,
            report_to="none",
            save_strategy="no",  # the run says when
            disable_tqdm=True,
            **{**config_of_trl.arguments(self.config), **program.args},
        )
        adapters = None
        if program.lora_rank:
            from peft import LoraConfig

            adapters = LoraConfig(r=program.lora_rank, lora_alpha=program.lora_alpha, target_modules="all-linear")
        return leaving_out(kind, self.kept)(
            model=self.model,
            processing_class=self.tokenizer,
            args=settings,
            reward_funcs=self.judge,
            train_dataset=self.prompts(),
            peft_config=adapters,
            callbacks=[record(self)],
        )

    # --- training

    def prompts(self) -> Any:
        """A row for every problem of every step, in the order of the run; its prompt is made when it is read."""
        from datasets import Dataset

        def rows(batch: Mapping[str, list[int]]) -> dict[str, list[Any]]:
            problems = [self._problem(place) for place in batch["place"]]
            return {"place": batch["place"], "prompt": [self._prompt(problem) for problem in problems]}

        count = self.run.steps * self.config.rollout.prompts
        return Dataset.from_dict({"place": range(count)}).with_transform(rows)

    def _problem(self, place: int) -> Problem:
        step, number = divmod(place, self.config.rollout.prompts)
        return self.problems(step + 1)[number]

    def _prompt(self, problem: Problem) -> str | list[dict[str, str]]:
        return turns(problem.prompt, self.system) if self.chat else problem.prompt

    def judge(self, completion_ids: Sequence[Sequence[int]], place: Sequence[int], **_: Any) -> list[float | None]:
        """TRL's reward function: of one rollout, whose groups follow one another."""
        texts = decode(self.tokenizer, [np.asarray(ids) for ids in completion_ids], self.silent)
        group = self.config.rollout.samples
        groups = [(self._problem(place[row]), texts[row : row + group]) for row in range(0, len(texts), group)]
        self.rewards = self.run.judge(place[0] // self.config.rollout.prompts + 1, groups)
        values = [reward.value for rewards in self.rewards for reward in rewards]
        return [value if kept else None for value, kept in zip(values, self.kept(), strict=True)]

    def kept(self) -> list[bool]:
        """Of each response of the newest rollout, whether it is learned from: not if a verifier failed in its group."""
        failed = [any(reward.outcome == "error" for reward in rewards) for rewards in self.rewards]
        return [not any_failed for any_failed, rewards in zip(failed, self.rewards, strict=True) for _ in rewards]

    # --- evaluation

    @functools.cached_property
    def sampler(self) -> Sampler:
        """Our own engine: the same noise as in evaluations of our trainer, so that differences are paired."""
        engine = NativeEngine(self.base, device=self.model.device, eos_token_ids=self.ends, pad_token_id=self.pad)
        return Sampler(
            self.run.task,
            engine,
            encode=lambda problems: encode(self.tokenizer, problems, chat=self.chat, system=self.system),
            decode=lambda tokens: decode(self.tokenizer, tokens, self.silent),
            on_answer=self.run.alive,
        )

    def evaluate(self, model: Any, step: int) -> dict[str, float]:
        """Record an evaluation of a step. Returns its seconds; the run adds the rest."""
        began, options = time.perf_counter(), self.config.evaluation
        self.sampler.engine.sync(weights_of(model))
        sampling = Sampling(self.max_tokens, self.run.seed + NOISE_STREAM, 0, options.temperature, options.top_p)
        groups = self.sampler(self.run.held_out, options.samples, sampling, RolloutCost())
        rows = [(g.problem, *row) for g in groups for row in zip(g.texts, g.completions, g.rewards, strict=True)]
        self.run.samples(step, [SampledAnswer(p, text, len(c.tokens), c.finished, r) for p, text, c, r in rows])
        return {"time/evaluation_s": time.perf_counter() - began}


def trainer_class(config: Mapping[str, Any]) -> tuple[Any, Any]:
    """TRL's trainer of a run, and its configuration."""
    name = config_of_trl.config_class(config)
    return get_class(name.replace("Config", "Trainer")), get_class(name)


def leaving_out(kind: Any, kept: Callable[[], Sequence[bool]]) -> Any:
    """A trainer of TRL without the responses of a rollout that are not kept: they are in no sum and no average.

    TRL gives such responses the advantage 0, and divides by their tokens or their number all the same.
    """

    class Kept(kind):
        def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
            batch, rows = super()._generate_and_score_completions(inputs), torch.tensor(kept())
            batch["completion_mask"] = batch["completion_mask"] * rows.to(batch["advantages"].device)[:, None]
            by_tokens = getattr(self, "loss_type", None) in ("dapo", "cispo")
            batch["share"] = torch.tensor(1.0) if by_tokens else rows.float().mean().clamp(min=1 / len(rows))
            if "num_items_in_batch" in batch:
                batch["num_items_in_batch"] = batch["completion_mask"].sum()
            return batch

        def compute_loss(self, model: Any, inputs: Any, *args: Any, **options: Any) -> Tensor:
            return super().compute_loss(model, inputs, *args, **options) / inputs["share"]

    return Kept


def weights_of(model: Any) -> Iterator[tuple[str, Tensor]]:
    """The weights of a model under the names that they have without adapters, which are added to them."""
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            continue
        plain = name.removeprefix("base_model.model.")
        owner = model.get_submodule(name.rpartition(".base_layer.")[0]) if ".base_layer.weight" in name else None
        added = 0 if owner is None else owner.get_delta_weight("default")
        yield plain.replace(".base_layer.", "."), parameter.detach() + added


def record(subject: Subject) -> Any:
    """A callback that makes TRL's optimiser steps steps of the run: a rollout, and all that is learned from it."""
    from transformers import TrainerCallback

    run, per_step = subject.run, subject.config.program.updates * subject.config.program.epochs

    class Record(TrainerCallback):
        began = 0.0

        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step % per_step == 0:
                self.began = time.perf_counter()

        def on_substep_end(self, *_: Any, **__: Any) -> None:
            run.alive()

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, model: Any = None, **_: Any) -> None:
            if "loss" not in logs:
                return  # a summary at the end
            step, seconds = state.global_step // per_step, time.perf_counter() - self.began
            metrics = {ours: float(logs[name]) for name, ours in METRICS.items() if logs.get(name) is not None}
            metrics |= _of_rollout(subject.rewards, logs, seconds)
            if run.should_evaluate(step):
                metrics |= subject.evaluate(model, step)
            run.log(step, metrics)
            stop = run.should_stop()
            control.should_save = stop or run.should_save(step)
            control.should_training_stop = stop or step == run.steps

        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            with run.saving(state.global_step // per_step) as folder:
                (run.attempt_dir / STATE / f"checkpoint-{state.global_step}").rename(folder / STATE)

    return Record()


def _of_rollout(rewards: Sequence[Sequence[Reward]], logs: Mapping[str, float], seconds: float) -> dict[str, float]:
    tokens = logs["completions/mean_length"] * sum(map(len, rewards))
    return {
        **reward_metrics(rewards),
        "response/finished": 1 - logs["completions/clipped_ratio"],
        "tokens/rollout": tokens,
        "time/step_s": seconds,
        "throughput/tokens_per_s": tokens / seconds,
    }
