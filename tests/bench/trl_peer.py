"""TRL's GRPOTrainer on the work of tests/bench/step.py: one JSON line per optimiser step on standard output.

A step begins when a line comes on standard input, so that two programs can be timed in turn.

Imports nothing of this project. MODEL has the model, its tokenizer and prompts.json, a list of texts.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, TrainerCallback
from trl import GRPOConfig, GRPOTrainer


def parity(completions: list[str], **_: Any) -> list[float]:
    """1 for a response with an odd number of different words: a fast verifier, with right and wrong in each group."""
    return [float(len(set(text.split())) % 2) for text in completions]


class OfEqualWork(GRPOTrainer):
    """Ends the process if the work is not the same."""

    def _generate(self, prompts: list[str]) -> Any:
        generated = super()._generate(prompts)
        lengths = {len(tokens) for tokens in generated[1]}
        assert lengths == {self.max_completion_length}, f"responses of {lengths} tokens: the work is not the same"
        return generated


class Clock(TrainerCallback):
    """Times a step from before its generation to after its optimiser update."""

    def __init__(self) -> None:
        self.start = 0.0
        self.out = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)  # prints of libraries go to standard error and cannot break the protocol

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        if not sys.stdin.readline():
            sys.exit("standard input was closed: no further step is needed")
        self.start = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
        print(json.dumps({"step": state.global_step, "seconds": time.perf_counter() - self.start}), file=self.out)


def configure(options: argparse.Namespace, output: str) -> GRPOConfig:
    """One optimiser step per rollout, no KL, nothing logged or saved, no gradient checkpointing (it is slower)."""
    rows = options.prompts * options.samples
    if rows % options.micro_batch:
        raise ValueError(f"--micro-batch={options.micro_batch} does not divide {rows} responses")
    return GRPOConfig(
        output_dir=output,
        use_cpu=True,
        bf16=options.precision == "autocast",
        max_steps=options.steps,
        per_device_train_batch_size=options.micro_batch,
        gradient_accumulation_steps=rows // options.micro_batch,
        num_generations=options.samples,
        max_completion_length=options.new_tokens,
        beta=0.0,
        learning_rate=1e-5,
        lr_scheduler_type="constant",
        gradient_checkpointing=False,
        dataloader_pin_memory=False,
        report_to="none",
        logging_strategy="no",
        save_strategy="no",
        disable_tqdm=True,
        generation_kwargs={"min_new_tokens": options.new_tokens},
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    # autocast: float32 weights, bfloat16 arithmetic; bfloat16: weights too. Micro-batch: responses per forward pass.
    parser.add_argument("--precision", choices=["float32", "autocast", "bfloat16"], required=True)
    for name in ("micro-batch", "prompts", "samples", "new-tokens", "steps", "threads"):
        parser.add_argument(f"--{name}", type=int, required=True)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    dtype = torch.bfloat16 if options.precision == "bfloat16" else torch.float32
    texts = json.loads((options.model / "prompts.json").read_text())[: options.prompts]
    with tempfile.TemporaryDirectory() as output:
        trainer = OfEqualWork(
            model=AutoModelForCausalLM.from_pretrained(options.model, dtype=dtype, local_files_only=True),
            processing_class=PreTrainedTokenizerFast.from_pretrained(options.model),  # AutoTokenizer insists on Qwen2's
            args=configure(options, output),
            reward_funcs=parity,
            callbacks=[Clock()],
            train_dataset=Dataset.from_dict({"prompt": texts}),
        )
        trainer.train()


if __name__ == "__main__":
    main()
