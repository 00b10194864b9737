"""The recipes of conf/paper set what their papers print, fit their GPUs, and cost what docs/recipes.md says."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hydra import compose
from omegaconf import OmegaConf

from rlvr.config import cost, memory
from tests.support.composed import REGISTRY

ROOT = Path(__file__).parents[2]
PRINTED = ROOT.parent / "shared" / "papers" / "hyperparameters.csv"
BIRD = ["task.train=a.jsonl", "task.test=b.jsonl", "task.databases=c"]

LLAMA = "Llama-SQL"
SMOL, POLARIS = "SmolLM2-360M-Instruct on GSM8K", "Qwen3-1.7B-Base and Qwen3-4B-Base on POLARIS-53K"
MAZE, DPH_JS, ALL = "Maze, 3M transformer", "DPH-JS", "all"

# Recipe, knob, what the paper prints, and where: (paper, scope, hyperparameter) of hyperparameters.csv.
SETTINGS: list[tuple[str, str, Any, tuple[str, str, str] | None]] = [
    ("lad_math", "model.path", "Qwen2.5-7B", ("LAD", "math", "backbone")),
    ("lad_math", "rollout.samples", 8, ("LAD", "math", "responses per prompt")),
    ("lad_math", "rollout.max_tokens", 8192, ("LAD", "math", "max response length")),
    ("lad_math", "rollout.prompts", 256, ("LAD", "math", "prompt batch")),
    ("lad_math", "rollout.temperature", 1.0, ("LAD", "math", "sampling temperature")),
    ("lad_math", "trainer.updates", 8, ("LAD", "math", "policy update steps per rollout step")),
    ("lad_math", "lr", 1e-6, ("LAD", "math", "learning rate")),
    ("lad_math", "cluster.gpus", 2, ("LAD", "math", "hardware")),
    ("lad_math", "rollout.dynamic_sampling", "refill", None),
    ("lad_math", "divergence._target_", "rlvr.objective.divergence.js", None),
    ("lad_math", "loss.eta", 0.25, None),  # 1/eta = 4 in the main rows
    ("lad_code", "model.path", "DeepSeek-R1-Distill-Qwen-7B", ("LAD", "code", "backbone")),
    ("lad_code", "rollout.prompts", 64, ("LAD", "code", "batch size")),
    ("lad_code", "lr", 1e-6, ("LAD", "code", "learning rate")),
    ("lad_code", "cluster.gpus", 8, ("LAD", "code", "hardware")),
    ("lad_code", "divergence._target_", "rlvr.objective.divergence.js", None),
    *[
        (recipe, key, value, ("PACS", "training", name))
        for recipe in ("pacs_4b", "pacs_8b")
        for key, value, name in (
            ("rollout.prompts", 1024, "Train batch size"),
            ("rollout.max_tokens", 8192, "Max response length"),
            ("lr", 1e-6, "Learning rate"),
            ("rollout.samples", 8, "Rollout number"),
        )
    ],
    ("pacs_4b", "steps", 120, ("PACS", "training", "Total training steps")),
    ("pacs_8b", "steps", 320, None),  # the same cell
    ("pacs_4b", "evaluation.temperature", 0.6, ("PACS", "inference", "Temperature")),
    ("pacs_4b", "evaluation.top_p", 0.95, ("PACS", "inference", "Top- p")),
    ("pacs_4b", "evaluation.samples", 128, ("PACS", "PACS", "n candidates per problem at evaluation")),
    ("pacs_4b", "loss.beta", 1.0, ("PACS", "PACS", "beta")),
    ("pacs_4b", "loss.score", "rloo", None),
    ("pacs_4b", "trainer.kl", 0.0, None),
    ("pacs_8b", "model.path", "Qwen3-8B", None),
    *[
        (recipe, key, value, ("MaxRL", scope, name))
        for recipe, scope, samples, tokens, lr, steps in (
            ("maxrl_gsm8k", SMOL, 128, 2048, 1e-5, 1500),
            ("maxrl_polaris_1b7", POLARIS, 16, 4096, 1e-6, 1000),
            ("maxrl_polaris_4b", POLARIS, 16, 4096, 1e-6, 1000),
        )
        for key, value, name in (
            ("rollout.prompts", 256, "Prompts per batch"),
            ("rollout.samples", samples, "Generations per prompt"),
            ("trainer.updates", 1, "Grad update per RL step"),
            ("rollout.max_tokens", tokens, "Max response len"),
            ("lr", lr, "Learning rate"),
            ("steps", steps, "Training Steps"),
            ("trainer.kl", 0.0, "KL coeff"),
            ("trainer.entropy", 0.0, "Entropy coeff"),
            ("rollout.temperature", 1.0, "Rollout temp"),
            ("evaluation.temperature", 0.6, "Validation temp"),
        )
    ],
    ("maxrl_gsm8k", "evaluation.top_p", 0.95, ("MaxRL", SMOL, "Validation top_p")),
    ("maxrl_polaris_4b", "evaluation.top_p", 0.95, ("MaxRL", POLARIS, "Validation top-p")),
    ("maxrl_polaris_4b", "advantage._target_", "rlvr.objective.advantage.maxrl", None),
    ("maxrl_maze", "model.lr", 5e-4, ("MaxRL", MAZE, "SFT learning rate")),
    ("maxrl_maze", "model.steps", 1500, ("MaxRL", MAZE, "SFT steps")),
    ("maxrl_maze", "model.batch", 32, ("MaxRL", MAZE, "SFT batch size")),
    ("maxrl_maze", "rollout.prompts", 32, ("MaxRL", MAZE, "RL batch size")),
    ("maxrl_maze", "rollout.samples", 128, ("MaxRL", MAZE, "RL rollouts")),
    ("maxrl_maze", "lr", 1e-4, ("MaxRL", MAZE, "RL learning rate")),
    ("maxrl_maze", "steps", 20000, ("MaxRL", MAZE, "RL steps")),
    ("maxrl_maze", "task.test_problems", 256, ("MaxRL", MAZE, "test mazes")),
    ("maxrl_maze", "task.size", 17, ("MaxRL", MAZE, "maze size")),
    ("maxrl_maze", "cluster.gpus", 4, ("MaxRL", MAZE, "Device")),
    ("dph_sql", "rollout.prompts", 128, ("DPH-RL", LLAMA, "Batch Size")),
    ("dph_sql", "lr", 1e-6, ("DPH-RL", LLAMA, "Learning Rate")),
    ("dph_sql", "rollout.temperature", 1.0, ("DPH-RL", LLAMA, "Rollout Temperature")),
    ("dph_sql", "rollout.top_p", 0.95, ("DPH-RL", LLAMA, "Rollout Top-p")),
    ("dph_sql", "evaluation.temperature", 1.0, ("DPH-RL", LLAMA, "Validation Temperature")),
    ("dph_sql", "evaluation.top_p", 0.95, ("DPH-RL", LLAMA, "Validation Top-p")),
    ("dph_sql", "trainer.epochs", 1, ("DPH-RL", LLAMA, "PPO Epochs")),
    ("dph_sql", "rollout.max_tokens", 4096, ("DPH-RL", LLAMA, "Max Response Length")),
    ("dph_sql", "rollout.samples", 16, ("DPH-RL", LLAMA, "Number of Rollouts")),
    ("dph_sql", "presample.samples", 8, ("DPH-RL", ALL, "pre-sampling rollouts")),
    ("dph_sql", "loss.coef", 0.2, ("DPH-RL", DPH_JS, "divergence_loss_weight")),
    ("dph_sql", "loss.clip_high", 0.28, ("DPH-RL", DPH_JS, "clip_high_epsilon")),
    ("dph_sql", "trainer.aggregation", "token-mean", None),
]

# The config.json of each model, as published: what memory depends on.
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "qwen2.5-7b": {
        "model_type": "qwen2",
        "hidden_size": 3584,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "intermediate_size": 18944,
        "vocab_size": 152064,
    },
    "qwen3-4b": {
        "model_type": "qwen3",
        "hidden_size": 2560,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 9728,
        "vocab_size": 151936,
        "tie_word_embeddings": True,
    },
    "qwen3-8b": {
        "model_type": "qwen3",
        "hidden_size": 4096,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 12288,
        "vocab_size": 151936,
    },
    "qwen3-1.7b": {
        "model_type": "qwen3",
        "hidden_size": 2048,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 6144,
        "vocab_size": 151936,
        "tie_word_embeddings": True,
    },
    "smollm2-360m": {
        "model_type": "llama",
        "hidden_size": 960,
        "num_hidden_layers": 32,
        "num_attention_heads": 15,
        "num_key_value_heads": 5,
        "intermediate_size": 2560,
        "vocab_size": 49152,
        "tie_word_embeddings": True,
    },
    "llama-3.1-8b": {
        "model_type": "llama",
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
        "vocab_size": 128256,
    },
}
MODELS = {
    "lad_math": "qwen2.5-7b",
    "lad_code": "qwen2.5-7b",
    "pacs_4b": "qwen3-4b",
    "pacs_8b": "qwen3-8b",
    "maxrl_polaris_4b": "qwen3-4b",
    "maxrl_polaris_1b7": "qwen3-1.7b",
    "maxrl_gsm8k": "smollm2-360m",
    "dph_sql": "llama-3.1-8b",
    "maxrl_maze": None,
}


pytestmark = pytest.mark.usefixtures("composing")


def composed(recipe: str, *overrides: str) -> dict[str, Any]:
    data = BIRD if recipe == "dph_sql" else []
    config = compose("run", [f"paper={recipe}", *data, *overrides])
    plain = OmegaConf.to_container(config, resolve=True)
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}


def knob(plain: dict[str, Any], key: str) -> Any:
    value: Any = plain
    for part in key.split("."):
        value = value[part]
    return value


@pytest.mark.parametrize("recipe", sorted(MODELS))
def test_a_recipe_sets_what_its_paper_prints(recipe: str) -> None:
    assert sorted(MODELS) == REGISTRY.options("paper")
    plain = composed(recipe)
    wanted = {key: value for name, key, value, _ in SETTINGS if name == recipe}
    wanted = {k: v for k, v in wanted.items() if k != "model.path"}
    assert {key: knob(plain, key) for key in wanted} == wanted
    paths = [value for name, key, value, _ in SETTINGS if (name, key) == (recipe, "model.path")]
    assert all(plain["model"]["path"].endswith(f"/{path}") for path in paths)


def test_batches_divide_as_printed() -> None:
    pacs, dph = composed("pacs_4b"), composed("dph_sql")
    assert pacs["rollout"]["prompts"] / pacs["trainer"]["updates"] == 256  # mini batch size
    explored = dph["rollout"]["prompts"] * dph["rollout"]["samples"]
    assert (explored, explored / dph["presample"]["ratio"]) == (2048, 256)  # samples per step of D_exp and of D_pef
    assert dph["steps"] == round(4 * 6710 / 128)  # epochs, size of D_exp, batch size


def printed(text: str) -> float:
    """The first number of a cell: `1 x 10^{-6} for actor`, `1,024`, `2 x NVIDIA H200`, `17x17`."""
    found = re.match(r"(\d+) x 10\^\{(-?\d+)\}", text)
    if found:
        return float(found[1]) * 10 ** int(found[2])
    number = re.match(r"[\d,.]+(e-?\d+)?", text)
    assert number is not None, text
    return float(number[0].replace(",", ""))


@pytest.mark.skipif(not PRINTED.is_file(), reason=f"no table at {PRINTED}")
def test_expected_values_are_those_of_the_papers_tables() -> None:
    with PRINTED.open(encoding="utf-8") as file:
        cells = {(row["paper"], row["scope"], row["hyperparameter"]): row["value"] for row in csv.DictReader(file)}
    for recipe, key, value, place in SETTINGS:
        if place is None:
            continue
        said = cells[place]
        assert said == value if isinstance(value, str) else printed(said) == pytest.approx(value), (recipe, key, said)
    assert cells["PACS", "training", "Total training steps"] == "120 for Qwen3-4B, 320 for Qwen3-8B"
    assert printed(cells["DPH-RL", LLAMA, "Size of D_exp"]) == 6710
    assert printed(cells["DPH-RL", LLAMA, "Training Epochs"]) == 4
    assert printed(cells["PACS", "training", "Mini batch size"]) == 256


def documented() -> dict[str, tuple[int, ...]]:
    """{recipe: (GPUs, GB of each, GB needed, hours, hours with vLLM)} of the table in docs/recipes.md."""
    rows = re.findall(
        r"^\| `paper=(\w+)` \|.*\| (\d+) × (\d+) GB \| (\d+) GB \| (\d+) \| (\d+) \|",
        (ROOT / "docs/recipes.md").read_text(),
        re.M,
    )
    return {name: tuple(map(int, numbers)) for name, *numbers in rows}


def rounded(hours: float) -> int:
    """To two digits."""
    return int(float(f"{max(1.0, hours):.2g}"))


@pytest.mark.parametrize("recipe", sorted(MODELS))
def test_a_recipe_fits_its_gpus_and_takes_what_the_documentation_says(recipe: str, tmp_path: Path) -> None:
    """Native and with vLLM: both compose, with all that is checked before launch but whether vLLM is installed here."""
    name = MODELS[recipe]
    if name is not None:
        (tmp_path / "config.json").write_text(json.dumps(ARCHITECTURES[name]))
    where = [f"model.path={tmp_path}"] if name else []
    hours = []
    for engine in ("rollout=native", "rollout=vllm"):
        plain = composed(recipe, engine, *where)
        memory.check(plain)
        model = memory.of_model(plain["model"])
        assert model is not None
        hours.append(rounded(cost.estimate(plain, model).total_s / 3600))
        need = sum(memory.per_gpu(model, memory.setting_of(plain)).values()) / memory.GB
        assert need < plain["cluster"]["gpu_memory_gb"]
    native = memory.setting_of(composed(recipe, *where))
    need = sum(memory.per_gpu(model, native).values()) / memory.GB
    cluster = plain["cluster"]
    assert cluster["ranks"] == cluster["gpus"]
    assert documented()[recipe] == (cluster["gpus"], cluster["gpu_memory_gb"], round(need), *hours)


@pytest.mark.parametrize(
    ("name", "millions"),
    [
        ("qwen2.5-7b", 7616),
        ("qwen3-4b", 4022),
        ("qwen3-8b", 8191),
        ("qwen3-1.7b", 1721),
        ("smollm2-360m", 362),
        ("llama-3.1-8b", 8030),
    ],
)
def test_the_architectures_have_the_published_numbers_of_parameters(name: str, millions: int) -> None:
    model = memory.architecture(ARCHITECTURES[name])
    assert model is not None
    assert round(model.parameters / 1e6) == millions


@pytest.mark.parametrize(
    ("recipe", "study"),
    [
        ("lad_math", "eta"),
        ("lad_math", "divergence"),
        ("lad_math", "baselines"),
        ("dph_sql", "alpha"),
        ("pacs_4b", "beta"),
        ("pacs_8b", "score_function"),
        ("pacs_4b", "weighting"),
        ("maxrl_maze", "rollout_scaling"),
    ],
)
def test_a_study_keeps_the_length_and_the_evaluation_of_a_recipe(recipe: str, study: str) -> None:
    alone, studied = (compose("run", [f"paper={recipe}", *more]) for more in ([], [f"study={study}"]))
    for key in ("task", "model", "steps", "lr", "evaluation", "rollout"):
        assert studied[key] == alone[key], key


def test_a_study_runs_with_a_recipe_and_an_unknown_recipe_is_refused() -> None:
    config = compose("run", ["study=eta", "paper=lad_math"])
    assert (config.loss._target_, config.rollout.prompts) == ("rlvr.loss.lad.lad", 256)
    for group in ("paper", "study"):
        with pytest.raises(Exception, match=f"Could not find '{group}/nope'"):
            compose("run", [f"{group}=nope"])
