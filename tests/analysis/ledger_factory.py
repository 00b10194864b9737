"""Writes small ledgers with known numbers, in the layout of `runs/`."""

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pandas as pd
from omegaconf import OmegaConf

from rlvr.ledger.journal import encode
from rlvr.ledger.runs import FORMAT

K = (1, 8)
Counts = Mapping[str, Sequence[tuple[int, int, int]]]  # benchmark -> (n, correct, errors) of each problem


def config(loss: str = "lad", divergence: str = "js", eta: float = 1.0, seed: int = 0, **other: Any) -> dict[str, Any]:
    """A frozen config like the real one."""
    frozen: dict[str, Any] = {
        "eta": eta if loss == "lad" else None,
        "beta": None,
        "seed": seed,
        "steps": 40,
        "lr": 1e-06,
        "loss": {"_target_": f"rlvr.loss.{loss}.{loss}", "_partial_": True},
        "task": {"_target_": "rlvr.task.maze.Maze", "size": 7, "test_problems": 512},
        "model": {"_target_": "rlvr.model.maze"},
        "trainer": {"updates": 4, "kl": 0.0},
        "evaluation": {"every": 40, "samples": 8, "k": list(K)},
        "cluster": {"workers": 2},
        "tracker": {"enabled": True, "uri": None},
        "choices": {"loss": loss, "advantage": "grpo", "task": "maze", "model": "maze_tiny"},
    }
    if loss == "lad":
        frozen["loss"] |= {"eta": eta, "ratio": "token"}
        frozen["divergence"] = {"_target_": f"rlvr.objective.divergence.{divergence}", "_partial_": True}
        frozen["choices"]["divergence@_global_.divergence"] = divergence
    for key, value in other.items():
        frozen[key] = {**frozen.get(key, {}), **value} if isinstance(value, dict) else value
    return frozen


def name_of(frozen: Mapping[str, Any]) -> str:
    choices = frozen["choices"]
    parts = [choices["loss"], choices.get("divergence@_global_.divergence", "")]
    parts += [f"eta{frozen['loss']['eta']:g}"] if "eta" in frozen["loss"] else []
    return "-".join([*(p for p in parts if p), f"s{frozen['seed']}"])


def group_of(frozen: Mapping[str, Any]) -> str:
    """A name for everything but the seed."""
    return f"group-{crc32(json.dumps({**frozen, 'seed': 0}, sort_keys=True).encode()):08x}"


def pass_at(n: int, c: int, k: int) -> float:
    """1 − C(n−c, k)/C(n, k) by counting, independent of rlvr.metrics."""
    from math import comb

    return 1 - comb(n - c, k) / comb(n, k)


def logged(counts: Counts) -> dict[str, float]:
    """What evaluation logs for these counts."""
    metrics = {}
    for source, problems in counts.items():
        judged = [(n, c) for n, c, _ in problems if n]
        metrics[f"evaluation/{source}/avg_at_8"] = sum(c / n for n, c in judged) / len(judged)
        for k in K:
            enough = [pass_at(n, c, k) for n, c in judged if n >= k]
            if enough:
                metrics[f"evaluation/{source}/pass_at_{k}"] = sum(enough) / len(enough)
        metrics[f"evaluation/{source}/error"] = sum(e for *_, e in problems) / sum(n + e for n, _, e in problems)
    return metrics


def write_run(
    home: Path,
    frozen: Mapping[str, Any],
    evaluations: Mapping[int, Counts],
    *,
    training: Mapping[str, Sequence[float]] | None = None,
    cause: str | None = "ok",
    attempts: int = 1,
    study: str = "default",
    created: float = 1000.0,
    message: str = "",
    name: str | None = None,
    validation: float | None = None,
    logged_at: Mapping[int, Mapping[str, float]] = {},
    own_gpus: bool = False,
) -> str:
    """One run. `cause=None`: the attempt has no exit; attempts=0: planned only. validation: avg@8 of that split.
    logged_at: further metrics, by step.

    Returns its run_id."""
    run_id = f"id-{name or name_of(frozen)}"
    folder = home / "runs" / run_id
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(dict(frozen))))
    info = {"run_id": run_id, "group_id": group_of(frozen), "name": name or name_of(frozen)}
    info |= {"arm": (name or name_of(frozen)).removesuffix(f"-s{frozen['seed']}"), "study": study}
    info |= {"created": created, "git_sha": "0123456789abcdef", "git_dirty": False, "host": "here"}
    info |= {"command": "python -m rlvr.run", "format": FORMAT}
    (folder / "run.json").write_text(json.dumps(info))
    for number in range(1, attempts + 1):
        attempt = folder / "attempts" / str(number)
        attempt.mkdir(parents=True)
        (attempt / "job.json").write_text(
            json.dumps({"attempt": number, "pid": 1, "host": "elsewhere", "started": 1.0, "own_gpus": own_gpus})
        )
        if cause is not None or number < attempts:
            end = {"cause": cause if number == attempts else "preempted", "code": 0, "time": 1.0, "message": message}
            (attempt / "exit.json").write_text(json.dumps(end))
    lines: dict[int, dict[str, float]] = {}
    for name_, values in (training or {}).items():
        for step, value in enumerate(values, start=1):
            lines.setdefault(step, {})[name_] = value
    for step, counts in evaluations.items():
        lines.setdefault(step, {}).update(logged(counts))
        if validation is not None:
            lines[step]["validation/maze7/avg_at_8"] = validation
        write_samples(folder, step, counts)
    for step, metrics in logged_at.items():
        lines.setdefault(step, {}).update(metrics)
    with (folder / "metrics.jsonl").open("wb") as file:
        for step, metrics in sorted(lines.items()):
            file.write(encode(step, 2.0 + step, 1, metrics))
    return run_id


def write_samples(folder: Path, step: int, counts: Counts) -> None:
    rows = []
    for source, problems in counts.items():
        for p, (n, c, errors) in enumerate(problems):
            outcomes = ["correct"] * c + ["wrong"] * (n - c) + ["error"] * errors
            place = {"step": step, "source": source, "problem_id": f"{source}-{p}"}
            of_all = {"response": "text " * 9, "num_tokens": 9, "finished": True}
            rows += [
                {**place, "sample": i, "outcome": o, "reward": float(o == "correct"), **of_all}
                for i, o in enumerate(outcomes)
            ]
    (folder / "samples").mkdir(exist_ok=True)
    pd.DataFrame(rows).to_parquet(folder / "samples" / f"test-{step:08d}.parquet")


def write_sweep(
    home: Path,
    sweep_id: str,
    runs: Sequence[tuple[str, str, Sequence[str]]],
    *,
    study: str = "default",
    created: float = 1000.0,
    configs: Sequence[Mapping[str, Any]] = (),
    claims: Sequence[Mapping[str, Any]] = (),
    control: Mapping[str, str] = {},
    name: str = "",
    baseline: str | None = "",
    command: str = "python -m rlvr.run -m loss=lad divergence=js,hd,tv eta=0.5,1,2,4",
) -> None:
    """A sweep of (run_id, name, overrides). configs: of the runs, where some have left nothing else; claims: its
    study's; baseline: None records that it has none; control: by name, what a run is a control by."""
    folder = home / "runs" / "sweeps" / sweep_id
    folder.mkdir(parents=True)
    info = {"sweep_id": sweep_id, "study": study, "command": command, "created": created, "swept": {}}
    info |= {"format": FORMAT, "claims": list(claims)}
    info |= {"name": name} if name else {}
    info |= {} if baseline == "" else {"baseline": baseline}
    (folder / "sweep.json").write_text(json.dumps(info))
    lines = [{"run_id": r, "name": n, "overrides": list(o), "index": i} for i, (r, n, o) in enumerate(runs)]
    for line, frozen in zip(lines, configs, strict=bool(configs)):
        line |= {"arm": line["name"].rpartition("-s")[0], "group_id": group_of(frozen), "seed": frozen["seed"]}
    for line in lines:
        line |= {"control": control[line["name"]]} if line["name"] in control else {}
    (folder / "manifest.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def config_of(typed: str, **other: Any) -> dict[str, Any]:
    """The config that these words make, such as `loss=grpo lr=1e-5 trainer.kl=0.1 seed=0`."""
    knobs: dict[str, Any] = {}
    for key, _, text in (word.partition("=") for word in typed.split()):
        value = {"true": True, "false": False, "null": None}.get(text, text)
        value = int(text) if text.isdigit() else float(text) if text[0].isdigit() else value
        group, _, knob = key.partition(".")
        knobs |= {group: {**knobs.get(group, {}), knob: value}} if knob else {key: value}
    return config(**{**knobs, **other})


def write_planned(
    home: Path,
    ends_of: Mapping[str, Mapping[int, Counts]],
    sweep_id: str = "s",
    *,
    study: str = "default",
    lost: Collection[str] = (),
    frozen: Mapping[str, Any] = {},
    fate: Mapping[str, Any] = {},
    **about: Any,
) -> list[str]:
    """Runs, and the sweep that planned them; returns their ids. ends_of: by the words that were typed for a run, after
    which it is named, its evaluations. lost: those that diverged. frozen, fate, about: of all, further values of their
    configs, and options of `write_run` and `write_sweep`."""
    plan = []
    for typed, evaluations in ends_of.items():
        name, cause = typed.replace("=", "").replace(" ", "-"), "diverged" if typed in lost else "ok"
        options = {"name": name, "study": study, "cause": cause, **fate}
        plan.append((write_run(home, config_of(typed, **frozen), evaluations, **options), name, typed.split()))
    write_sweep(home, sweep_id, plan, study=study, **about)
    return [run_id for run_id, _, _ in plan]


def change_sweep(home: Path, sweep_id: str = "s", **changes: Any) -> None:
    """Record other facts of a sweep."""
    file = home / "runs" / "sweeps" / sweep_id / "sweep.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def counts(*correct: int, n: int = 8) -> list[tuple[int, int, int]]:
    return [(n, c, 0) for c in correct]


BASE: Counts = {"maze7": counts(4, 2, 0, 0), "maze9": counts(2, 0, 0, 0)}
ETAS = (0.5, 1.0, 2.0, 4.0)
# Correct answers of eight, four problems of maze7; maze9 has one fewer on the first problem.
FINAL = {
    ("js", 0.5): (8, 8, 4, 0),
    ("js", 1.0): (8, 6, 4, 2),
    ("js", 2.0): (8, 4, 2, 0),
    ("js", 4.0): (6, 4, 0, 0),
    ("hd", 0.5): (8, 8, 2, 0),
    ("hd", 1.0): (8, 6, 2, 2),
    ("hd", 2.0): (8, 4, 0, 0),
    ("hd", 4.0): (6, 2, 0, 0),
    ("tv", 0.5): (8, 4, 4, 0),
    ("tv", 1.0): (8, 4, 4, 2),
    ("tv", 2.0): (6, 4, 2, 0),
    ("tv", 4.0): (4, 4, 0, 0),
}


def final(correct: Sequence[int]) -> Counts:
    first, *others = correct
    return {"maze7": counts(*correct), "maze9": counts(first - 1, *others)}


def write_study(home: Path, *, grpo: bool = True, spoil: bool = False) -> None:
    """lad x {js, hd, tv} x 4 η, and GRPO. `spoil`: hd at 4 failed, tv at 2 runs, tv at 4 was only planned."""
    planned, configs = [], []
    for (divergence, eta), correct in FINAL.items():
        frozen = config(divergence=divergence, eta=eta)
        overrides = ("loss=lad", f"divergence={divergence}", f"eta={eta:g}")
        planned.append((f"id-{name_of(frozen)}", name_of(frozen), overrides))
        configs.append(frozen)
        fate: dict[str, Any] = {}
        evaluations = {0: BASE, 40: final(correct)}
        if spoil and (divergence, eta) == ("tv", 4.0):
            continue
        if spoil and (divergence, eta) == ("hd", 4.0):
            fate, evaluations = {"cause": "host_oom", "message": "out of memory"}, {0: BASE}
        if spoil and (divergence, eta) == ("tv", 2.0):
            fate, evaluations = {"cause": None}, {0: BASE}
        run_id = write_run(home, frozen, evaluations, training=curves(divergence, eta), **fate)
        if fate.get("cause", "") is None:
            beat(home / "runs" / run_id / "attempts" / "1")
    write_sweep(home, "abc12345", planned, configs=configs)
    if grpo:
        frozen = config(loss="grpo")
        write_run(home, frozen, {0: BASE, 40: final((8, 4, 4, 0))}, training=curves("grpo", 1.0))


def beat(attempt: Path) -> None:
    """A fresh heartbeat: the attempt is alive."""
    import time

    (attempt / "heartbeat.json").write_text(
        json.dumps({"time": time.time(), "step": 12, "steps": 40, "phase": "train"})
    )


def curves(divergence: str, eta: float) -> dict[str, list[float]]:
    """Forty steps of training metrics, a plain function of the arguments."""
    rank = ("tv", "hd", "js", "grpo").index(divergence)
    steps = range(1, 41)
    return {
        "reward/accuracy": [0.2 + 0.01 * s / eta + 0.01 * rank for s in steps],
        "reward/solved_fraction": [0.5 + 0.005 * s for s in steps],
        "policy/entropy": [1.0 / (1 + 0.05 * s) + 0.02 * rank for s in steps],
        "policy/kl_base": [0.001 * s / eta for s in steps],
        "optim/grad_norm": [1.0 + 0.5 * ((s * 7 + rank) % 5) for s in steps],
        "response/length": [20.0 + (s * 3 + rank) % 4 for s in steps],
    }


REWARD = np.array([0, 1, 0, 0, 1, 0, 0, 1, 0], float)


def write_bandit(home: Path, divergence: str, where: str, *, seeds: tuple[int, ...]) -> None:
    """Runs whose final policy is known, of nine arms and three modes of one arm each.

    where: "target" (π = π_old e^{A/η}/Z at η = 1/4) or "first mode" (all mass on arm 1)."""
    for seed in seeds:
        loss = "grpo" if divergence == "grpo" else "lad"
        kl = 0.01 if loss == "grpo" else 0.0
        frozen = config(loss, divergence, eta=0.25, seed=seed, task={"_target_": "b"}, trainer={"kl": kl})
        frozen["choices"]["task"] = "bandit"
        run_id = write_run(home, frozen, {0: {"bandit": counts(2)}, 40: {"bandit": counts(4)}})
        old = np.random.default_rng(seed).dirichlet(np.ones(9))
        new = old * np.exp(REWARD / 0.25) if where == "target" else np.eye(9)[1]
        columns = {"arm": range(9), "word": [f"arm{i}" for i in range(9)], "reward": REWARD, "advantage": REWARD}
        frame = pd.DataFrame({**columns, "probability": new / new.sum(), "probability_old": old})
        # Rows in any order: the arm column counts.
        frame.iloc[::-1].to_parquet(home / "runs" / run_id / "samples" / "policy-00000040.parquet")
