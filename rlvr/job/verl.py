"""verl as a program (`program=verl`, docs/programs.md): its own command, from our words. Versions read: verl 0.9."""

import functools
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hydra.utils import instantiate

from rlvr.config.imports import find_spec
from rlvr.config.schema import Section
from rlvr.ledger import layout
from rlvr.ledger.runs import flatten
from rlvr.records import NotAvailable, Problem
from rlvr.rollout.rewards import rewards_of

METRICS = {  # our names of verl's (docs/metrics.md)
    **{"actor/pg_loss": "loss/total", "actor/grad_norm": "optim/grad_norm", "actor/lr": "optim/lr"},
    **{"actor/entropy": "policy/entropy", "critic/score/mean": "reward/mean", "timing_s/step": "time/step_s"},
}
Json = Mapping[str, Any]
_judging = threading.Lock()


def check(plain: Json) -> None:
    """Raises ValueError for a frozen config that verl cannot carry out, NotAvailable if verl is not installed."""
    if plain["cluster"]["gpus"] < 1 or not plain["model"].get("chat") or plain["rollout"]["max_tokens"] is None:
        raise ValueError(
            "program=verl needs GPUs, here or with cluster=slurm (cluster.gpus=1 or more), model=hf model.path=... "
            "model.chat=true, rollout.max_tokens=N, and the package: pip install 'verl==0.9.*'."
        )
    if taken := sorted(words(plain, Path(), "", Path()).keys() & own_words(plain).keys()):
        raise ValueError(f"program.args: {taken[0]} has no effect: the run's own words determine it. Drop it.")
    if find_spec("verl") is None:
        raise NotAvailable("program=verl needs verl 0.9, which this environment lacks: pip install 'verl==0.9.*'.")


def words(config: Json, run_dir: Path, base: str, folder: Path) -> dict[str, Any]:
    """What our words say of verl's config. base: the directory of the policy; folder: of the attempt's files."""
    rollout, evaluation, actor = config["rollout"], config["evaluation"], "actor_rollout_ref."
    sampling = {f"{actor}rollout.{key}": rollout[key] for key in ("temperature", "top_p")}
    sampling |= {f"{actor}rollout.val_kwargs.{key}": evaluation[key] for key in ("temperature", "top_p")}
    return {
        **{"data.train_files": f"{folder}/train.parquet", "data.val_files": f"{folder}/held_out.parquet"},
        **{"data.shuffle": False, "data.train_batch_size": rollout["prompts"], "data.seed": config["seed"]},
        **{"data.max_response_length": rollout["max_tokens"], f"{actor}model.path": base},
        **{f"{actor}actor.optim.lr": config["lr"], f"{actor}rollout.seed": config["seed"], **sampling},
        **{f"{actor}rollout.n": rollout["samples"], f"{actor}rollout.val_kwargs.n": evaluation["samples"]},
        **{f"{actor}rollout.val_kwargs.do_sample": True, "reward.custom_reward_function.path": __file__},
        **{"trainer.total_epochs": 1, "trainer.total_training_steps": config["steps"]},
        **{"trainer.test_freq": evaluation["every"], "trainer.save_freq": config["checkpoint"]["every"] or -1},
        **{"trainer.n_gpus_per_node": config["cluster"]["gpus"], "trainer.logger": ["console", "file"]},
        **{"trainer.validation_data_dir": f"{folder}/validation", "trainer.default_local_dir": f"{run_dir}/verl"},
    }


def own_words(config: Json) -> dict[str, Any]:
    """What is written of verl's config in its own words."""
    program = config["program"]
    return flatten({name: program[name] for name in ("algorithm", "actor_rollout_ref")}) | flatten(program["args"])


def train(config: Section, run: Any) -> None:
    """Write verl's data and run it, from the base policy or from its own newest checkpoint."""
    import pyarrow as pa  # here, and `command`: `check` is called where runs are planned
    import pyarrow.parquet as pq

    from rlvr.job import command

    folder, about = run.attempt_dir / "verl", str(layout.program_input(run.attempt_dir))
    folder.mkdir()
    training = [problem for step in range(1, run.steps + 1) for problem in run.problems(step)]
    for name, problems in (("train", training), ("held_out", run.held_out)):
        table = pa.Table.from_pylist([row(problem, config, about) for problem in problems])
        pq.write_table(table, folder / f"{name}.parquet")
    composed = words(config, run.checkpoint_dir, str(run.base_policy()), folder) | own_words(config)
    argv = [sys.executable, "-m", "rlvr.job.verl", *(f"{key}={json.dumps(value)}" for key, value in composed.items())]
    command.train(Section({**config, "program": {**config.program, "argv": argv}}), run)


def row(problem: Problem, config: Json, about: str) -> dict[str, Any]:
    """A row of verl's data. about: the file that tells its reward function of the run."""
    from rlvr.trainer.collate import turns  # imports torch

    prompt = turns(problem.prompt, config["model"]["system"])
    judged_by = {"style": "rule", "ground_truth": json.dumps(asdict(problem))}
    return {"data_source": problem.source, "prompt": prompt, "reward_model": judged_by, "extra_info": {"run": about}}


def compute_score(solution_str: str, ground_truth: str, extra_info: Json, **_: Any) -> dict[str, Any]:
    """verl's reward function: the verifier of the run's task. What it returns is in verl's dumps."""
    with _judging:
        (reward,) = rewards_of(_task(extra_info["run"]), [(Problem(**json.loads(ground_truth)), solution_str)])
    return {"score": reward.value, "outcome": reward.outcome}


@functools.cache
def _task(about: str) -> Any:
    return instantiate(json.loads(Path(about).read_text())["config"]["task"], _convert_="all")


def lines_of(record: Json, about: Json, folder: Path, count: Callable[[str], int]) -> list[Json] | None:
    """The lines for a step that verl has recorded; None while its dump is not complete. count: tokens of a text."""
    step, options, longest = record["step"], about["config"]["evaluation"], about["config"]["rollout"]["max_tokens"]
    metrics = {ours: record["data"][name] for name, ours in METRICS.items() if name in record["data"]}
    if step % options["every"] and step != about["steps"]:
        return [{"step": step, "metrics": metrics}]
    file, samples = folder / "validation" / f"{step}.jsonl", list[Json]()
    content = file.read_text() if file.exists() else ""
    if content.count("\n") < len(about["held_out"]) * options["samples"]:
        return None
    for dumped in map(json.loads, filter(None, content.split("\n"))):
        tokens, judged = count(dumped["output"]), {"outcome": dumped["outcome"], "reward": dumped["score"]}
        said = {"response": dumped["output"], "num_tokens": tokens, "finished": tokens < longest}
        samples.append({"problem": json.loads(dumped["gts"])["id"], **said, **judged})
    return [{"step": step, "samples": samples}, {"step": step, "metrics": metrics}]


def main(argv: list[str]) -> int:
    """The command: start verl, and append the lines for what it records."""
    from rlvr.job.command import FILE, POLL_S, Lines
    from rlvr.model.tokenizer import load_tokenizer

    about = json.loads(Path(os.environ[FILE]).read_text())
    lines, base = Path(about["lines"]), dict(word.split("=", 1) for word in argv)["actor_rollout_ref.model.path"]
    tokenizer, records = load_tokenizer(Path(json.loads(base))), lines.parent / "verl" / "records.jsonl"
    records.touch()
    command = [sys.executable, "-m", "verl.trainer.main_ppo", *argv]
    verl = subprocess.Popen(command, env={**os.environ, "VERL_FILE_LOGGER_PATH": str(records)})
    waiting, recorded, ended = list[Json](), Lines(records), False
    while not ended:
        time.sleep(POLL_S)
        ended = verl.poll() is not None  # before its records are read: none comes later
        waiting += recorded.read()
        while waiting and (new := lines_of(waiting[0], about, records.parent, lambda x: len(tokenizer.encode(x)))):
            waiting.pop(0)
            with lines.open("a") as file:
                file.write("".join(json.dumps(line) + "\n" for line in new))
    return verl.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
