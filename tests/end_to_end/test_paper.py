"""The recipes of conf/paper set what their papers print, fit their GPUs, and cost what docs/recipes.md says."""

import csv
import re
from pathlib import Path
from typing import Any, cast

import pytest
from hydra import compose
from omegaconf import OmegaConf

from analysis.frames.frames import Frames
from analysis.frames.runs import RunRecord, flat_config, runs_frame
from analysis.paper import printed
from analysis.paper.counterparts import counterparts
from rlvr import run as runs
from rlvr.config import cost, memory
from rlvr.config.checks import Checker
from tests.support.composed import REGISTRY

ROOT = Path(__file__).parents[2]
PRINTED = ROOT.parent / "shared" / "papers" / "hyperparameters.csv"
BIRD = ["task.train=a.jsonl", "task.test=b.jsonl", "task.databases=c"]

LLAMA = "Llama-SQL"
SMOL, POLARIS = "SmolLM2-360M-Instruct on GSM8K", "Qwen3-1.7B-Base and Qwen3-4B-Base on POLARIS-53K"
STEP_BY_STEP = "Please reason step by step, and put your final answer within \\boxed{}."
OUTPUT = "Let's think step by step and output the final answer within \\boxed{}."
SYSTEM_OF_QWEN_MATH = "Please reason step by step and put the final answer in \\boxed{}."
MAZE, DPH_JS, ALL = "Maze, 3M transformer", "DPH-JS", "all"
LLAMA_MATH = "DPH-RL, D.2: 0.2 for all methods in the Llama math experiments"

# Recipe, knob, what the paper prints, and where: (paper, scope, hyperparameter) of a table, or the place in words.
SETTINGS: list[tuple[str, str, Any, tuple[str, str, str] | str]] = [
    ("lad_math", "model.path", "Qwen2.5-7B", ("LAD", "math", "backbone")),
    ("lad_math", "rollout.samples", 8, ("LAD", "math", "responses per prompt")),
    ("lad_math", "rollout.max_tokens", 8192, ("LAD", "math", "max response length")),
    ("lad_math", "rollout.prompts", 256, ("LAD", "math", "prompt batch")),
    ("lad_math", "rollout.temperature", 1.0, ("LAD", "math", "sampling temperature")),
    ("lad_math", "trainer.updates", 8, ("LAD", "math", "policy update steps per rollout step")),
    ("lad_math", "lr", 1e-6, ("LAD", "math", "learning rate")),
    ("lad_math", "cluster.gpus", 2, ("LAD", "math", "hardware")),
    ("lad_math", "rollout.dynamic_sampling", "refill", "LAD, C.2: dynamic sampling, of all baselines"),
    ("lad_math", "divergence._target_", "rlvr.objective.divergence.js", "LAD, C.2: Jensen-Shannon"),
    ("lad_math", "loss.eta", 0.25, "LAD, Table 6: the row 1/eta = 4 is that of Table 1"),
    ("lad_code", "model.path", "DeepSeek-R1-Distill-Qwen-7B", ("LAD", "code", "backbone")),
    ("lad_code", "rollout.prompts", 64, ("LAD", "code", "batch size")),
    ("lad_code", "lr", 1e-6, ("LAD", "code", "learning rate")),
    ("lad_code", "cluster.gpus", 8, ("LAD", "code", "hardware")),
    ("lad_code", "divergence._target_", "rlvr.objective.divergence.js", "LAD, C.2: Jensen-Shannon"),
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
    ("pacs_8b", "steps", 320, "PACS, Table 4: the same cell"),
    ("pacs_4b", "evaluation.temperature", 0.6, ("PACS", "inference", "Temperature")),
    ("pacs_4b", "evaluation.top_p", 0.95, ("PACS", "inference", "Top- p")),
    ("pacs_4b", "evaluation.samples", 128, ("PACS", "PACS", "n candidates per problem at evaluation")),
    ("pacs_4b", "loss.beta", 1.0, ("PACS", "PACS", "beta")),
    ("pacs_4b", "loss.score", "rloo", "PACS, section 3.4, Eq. 6"),
    ("pacs_4b", "trainer.kl", 0.0, "PACS, Table 4: use KL loss False"),
    ("pacs_8b", "model.path", "Qwen3-8B", "PACS, section 4.1"),
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
    ("maxrl_polaris_4b", "advantage._target_", "rlvr.objective.advantage.maxrl", "MaxRL, App. F"),
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
    *[
        (recipe, key, value, ("DPH-RL", scope, name))
        for recipe, scope in (("dph_math_llama", "Llama-Math"), ("dph_math_qwen", "Qwen2.5-Math"))
        for key, value, name in (
            ("rollout.prompts", 128, "Batch Size"),
            ("lr", 2e-7, "Learning Rate"),
            ("rollout.temperature", 0.7, "Rollout Temperature"),
            ("rollout.top_p", 0.95, "Rollout Top-p"),
            ("evaluation.temperature", 0.6, "Validation Temperature"),
            ("evaluation.top_p", 0.95, "Validation Top-p"),
            ("trainer.epochs", 1, "PPO Epochs"),
            ("rollout.max_tokens", 2048, "Max Response Length"),
            ("rollout.samples", 16, "Number of Rollouts"),
        )
    ],
    *[
        ("dph_sql_32b", key, value, ("DPH-RL", "OmniSQL-32B-SQL", name))
        for key, value, name in (
            ("rollout.prompts", 128, "Batch Size"),
            ("lr", 1e-6, "Learning Rate"),
            ("rollout.temperature", 1.0, "Rollout Temperature"),
            ("evaluation.temperature", 1.0, "Validation Temperature"),
            ("rollout.max_tokens", 4096, "Max Response Length"),
            ("rollout.samples", 16, "Number of Rollouts"),
        )
    ],
    ("dph_math_llama", "loss.clip_high", 0.2, LLAMA_MATH),
    ("dph_math_qwen", "loss.clip_high", 0.28, ("DPH-RL", DPH_JS, "clip_high_epsilon")),
    ("dph_math_llama", "presample.drop_unsolved", True, "DPH-RL, D.3: data with all responses wrong are discarded"),
    ("dph_math_llama", "evaluation.k", [1, 8, 16, 64], "DPH-RL, Tables 4 and 8"),
    ("dph_math_llama", "evaluation.samples", 64, "DPH-RL, Tables 4 and 8"),
    ("dph_sql", "evaluation.k", [1, 8, 16], "DPH-RL, Table 2; its greedy column: evaluation.temperature=0"),
    ("dph_sql_32b", "model.path", "OmniSQL-32B", "DPH-RL, App. E.1"),
    ("lad_math_nemotron_1b5", "model.path", "OpenMath-Nemotron-1.5B", "LAD, Table 3"),
    ("lad_math_thinkless_1b5", "model.path", "Thinkless-1.5B-RL-DeepScaleR", "LAD, Table 3"),
    *[
        (f"lad_math_{name}_1b5", "rollout.max_tokens", 4096, ("LAD", "math, 1.5B models", "max response length"))
        for name in ("nemotron", "thinkless")
    ],
    ("lad_math", "evaluation.k", [1, 8, 16, 32], "LAD, Table 8"),
    ("lad_math", "evaluation.samples", 32, "LAD, Table 1: avg@32"),
    *[
        (recipe, key, value, place)
        for recipe in ("pacs_4b", "pacs_8b")
        for key, value, place in (
            ("model.system", "You are a helpful assistant.", "PACS, C.1: chat template"),
            ("task.template", f"{{problem}} {STEP_BY_STEP}", "PACS, C.1: chat template"),
            ("task.max_prompt_tokens", 1024, ("PACS", "training", "Max prompt length")),
            ("task.long_prompts", "drop", "PACS, Table 4: filter overlong prompts"),
            ("evaluation.every", 20, "PACS, section 4.2: every 20 training steps"),
            ("evaluation.k", [1, 4, 8, 16, 32, 64], "PACS, Tables 2 and 6"),
            ("trainer.reference_resets_optimiser", True, "PACS, section 3.4: reinitializing optimizer states"),
        )
    ],
    ("maxrl_gsm8k", "task.template", f"{{problem}} {OUTPUT}", "MaxRL, E.2.1: prompt template"),
    ("maxrl_gsm8k", "model.system", None, "MaxRL, E.2.1: that of the tokenizer's chat template"),
    ("maxrl_gsm8k", "task.max_prompt_tokens", 512, ("MaxRL", SMOL, "Max prompt length")),
    ("maxrl_gsm8k", "evaluation.k", [1, 128, 1024], "MaxRL, Table 4"),
    *[
        (recipe, key, value, place)
        for recipe in ("maxrl_polaris_1b7", "maxrl_polaris_4b")
        for key, value, place in (
            ("model.system", SYSTEM_OF_QWEN_MATH, "MaxRL, E.3.1: prompt template"),
            ("task.template", f"{{problem}} {OUTPUT}", "MaxRL, E.3.1: prompt template"),
            ("task.max_prompt_tokens", 1024, ("MaxRL", POLARIS, "Max prompt length")),
        )
    ],
    *[
        ("maxrl_maze", key, value, f"MaxRL, E.1.1: {place}")
        for key, value, place in (
            ("trainer.dtype", "bfloat16", "trained and evaluated using bfloat16 precision"),
            ("rollout.engine.dtype", "bfloat16", "trained and evaluated using bfloat16 precision"),
            ("model.architecture.max_position_embeddings", 512, "maximum sequence length"),
            ("model.architecture.num_hidden_layers", 4, "layers"),
            ("model.architecture.hidden_size", 256, "hidden size"),
            ("model.architecture.intermediate_size", 1024, "feed-forward dimension"),
            ("model.architecture.num_attention_heads", 4, "attention heads"),
            ("model.architecture.num_key_value_heads", 2, "key-value heads"),
            ("model.architecture.rope_parameters.rope_theta", 1e6, "theta"),
            ("model.architecture.tie_word_embeddings", True, "tied embeddings"),
        )
    ],
    ("maxrl_maze", "trainer.updates", 1, "MaxRL, E.1.3: only once per RL step"),
    ("maxrl_maze", "evaluation.k", [1, 128, 256], "MaxRL, Table 3"),
    ("maxrl_maze_scaling", "rollout.prompts", 256, ("MaxRL", MAZE, "Rollout-scaling study batch size")),
    ("maxrl_maze_scaling", "steps", 9000, "MaxRL, E.1.3: at least 9,000 steps"),
    ("dph_sql", "trainer.aggregation", "token-mean", "DPH-RL, D.2: token-level loss"),
]

# Recipe, a baseline of its paper, the bound ε on the upper side, and where it is printed.
CLIPS: list[tuple[str, str, float, tuple[str, str, str] | str]] = [
    *[
        (recipe, loss, 0.28, "LAD, C.2: clip-higher of DAPO, uniformly across all baselines")
        for recipe, loss in (
            *[("lad_math", loss) for loss in ("grpo", "dapo", "entadv", "flowrl")],
            *[(recipe, "grpo") for recipe in ("lad_math_nemotron_1b5", "lad_math_thinkless_1b5", "lad_code")],
        )
    ],
    *[
        (recipe, "grpo", 0.2, ("DPH-RL", "GRPO", "clip_high_epsilon"))
        for recipe in ("dph_sql", "dph_sql_32b", "dph_math_qwen", "dph_math_llama")
    ],
    ("dph_math_qwen", "dapo", 0.28, ("DPH-RL", "DAPO", "clip_high_epsilon")),
    ("dph_math_qwen", "dph_reverse_kl", 0.28, ("DPH-RL", "RKL", "clip_high_epsilon")),
    *[("dph_math_llama", loss, 0.2, LLAMA_MATH) for loss in ("dapo", "dph_reverse_kl")],
    # These print none: GRPO's own. MaxRL says that it has no effect there.
    *[(recipe, "grpo", 0.2, "") for recipe in ("pacs_4b", "maxrl_polaris_4b")],
]

RECIPES = sorted({recipe for recipe, *_ in SETTINGS})


pytestmark = pytest.mark.usefixtures("composing")


def composed(recipe: str, *overrides: str) -> dict[str, Any]:
    data = BIRD if recipe.startswith("dph_sql") else []
    config = compose("run", [f"paper={recipe}", *data, *overrides])
    plain = OmegaConf.to_container(config, resolve=True)
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}


def knob(plain: dict[str, Any], key: str) -> Any:
    value: Any = plain
    for part in key.split("."):
        value = value[part]
    return value


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_sets_what_its_paper_prints(recipe: str) -> None:
    assert REGISTRY.options("paper") == RECIPES
    plain = composed(recipe)
    wanted = {key: value for name, key, value, _ in SETTINGS if name == recipe}
    wanted = {k: v for k, v in wanted.items() if k != "model.path"}
    assert {key: knob(plain, key) for key in wanted} == wanted
    paths = [value for name, key, value, _ in SETTINGS if (name, key) == (recipe, "model.path")]
    assert all(plain["model"]["path"].endswith(f"/{path}") for path in paths)


@pytest.mark.parametrize(("recipe", "loss", "bound", "place"), CLIPS)
def test_a_baseline_beside_a_recipe_is_clipped_as_printed(
    recipe: str, loss: str, bound: float, place: tuple[str, str, str] | str
) -> None:
    knobs = composed(recipe, f"loss={loss}")["loss"]
    assert (knobs["clip_low"], knobs["clip_high"]) == (0.2, bound), place


@pytest.mark.slow
@pytest.mark.parametrize(
    ("study", "recipe", "bounds"),
    [
        *[
            ("eta", "lad_math", {0.28}),
            ("divergence", "lad_math", {0.28}),
            ("dph_baselines", "dph_math_qwen", {0.2, 0.28}),
        ],
        *[("eta", None, {0.2, 0.28}), ("baselines", "lad_math", {0.28}), ("baselines", None, {0.2, 0.28})],
    ],
)
def test_a_studys_grpo_is_clipped_as_its_recipe_has_it(
    study: str, recipe: str | None, bounds: set[float], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of what is planned, with the lines of `also`; the arm of `divergence` without clipping is its own, and in
    `dph_baselines` the one with a penalty is the paper's RKL, with the bound of Table 5."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setenv("RLVR_HOME", str(tmp_path))
    words = [f"study={study}", *([f"paper={recipe}"] if recipe else [])]
    with runs.one_line_errors(words) as registry:
        (launch,) = runs.carry_out(words, registry, dry_run=True).launches
    clipped = {run.config["loss"]["clip_high"] for run in launch.plan.runs if run.config["choices"]["loss"] == "grpo"}
    assert clipped - {1000} == bounds


def test_a_bound_typed_for_a_loss_that_has_none_is_refused_and_a_recipes_is_not() -> None:
    checker = Checker(REGISTRY, dry_run=True)
    for words in (["paper=lad_math"], ["paper=lad_math", "clip_high=0.28"]):
        checker.check(*REGISTRY.compose(words))
    with pytest.raises(
        ValueError, match=r"clip_high=0.3 has no effect with loss=lad. Losses that read clip_high: dapo, "
    ):
        checker.check(*REGISTRY.compose(["paper=lad_math", "clip_high=0.3"]))


@pytest.mark.slow
def test_batches_divide_as_printed() -> None:
    pacs, dph = composed("pacs_4b"), composed("dph_sql")
    assert pacs["rollout"]["prompts"] / pacs["trainer"]["updates"] == 256  # mini batch size
    explored = dph["rollout"]["prompts"] * dph["rollout"]["samples"]
    assert (explored, explored / dph["presample"]["ratio"]) == (2048, 256)  # samples per step of D_exp and of D_pef
    assert dph["steps"] == round(4 * 6710 / 128)  # epochs, size of D_exp, batch size
    sizes = {"dph_sql_32b": (4, 5169), "dph_math_llama": (8, 4599), "dph_math_qwen": (8, 7009)}
    for recipe, (epochs, size) in sizes.items():
        assert composed(recipe)["steps"] == round(epochs * size / 128)


def number_in(text: str) -> float:
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
    for recipe, key, value, place in [*SETTINGS, *CLIPS]:
        if isinstance(place, str):
            continue
        said = cells[place]
        assert said == value if isinstance(value, str) else number_in(said) == pytest.approx(value), (recipe, key, said)
    assert cells["PACS", "training", "Total training steps"] == "120 for Qwen3-4B, 320 for Qwen3-8B"
    assert number_in(cells["DPH-RL", LLAMA, "Size of D_exp"]) == 6710
    assert number_in(cells["DPH-RL", LLAMA, "Training Epochs"]) == 4
    assert number_in(cells["PACS", "training", "Mini batch size"]) == 256


def documented() -> dict[str, tuple[int, ...]]:
    """{recipe: (GPUs, GB of each, GB needed, the same with vLLM, hours, with vLLM)} of the table in docs/recipes.md."""
    rows = re.findall(
        r"^\| `paper=(\w+)` \|.*\| (\d+) × (\d+) GB \| (\d+) GB \| (\d+) GB \| (\d+) \| (\d+) \|",
        (ROOT / "docs/recipes.md").read_text(),
        re.M,
    )
    return {name: tuple(map(int, numbers)) for name, *numbers in rows}


def rounded(hours: float) -> int:
    """To two digits."""
    return int(float(f"{max(1.0, hours):.2g}"))


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_fits_its_gpus_and_takes_what_the_documentation_says(recipe: str) -> None:
    """Native and with vLLM, without the hub and without a GPU."""
    hours, needs = list[int](), list[int]()
    for engine in ("rollout=native", "rollout=vllm"):
        plain = composed(recipe, engine)
        memory.check(plain)
        model = memory.architecture_of_model(plain["model"])
        assert model is not None
        hours.append(rounded(cost.hours(plain, model)))
        need = sum(memory.per_gpu(model, memory.setting_of(plain)).values()) / memory.GB
        assert need < plain["cluster"]["gpu_memory_gb"]
        needs.append(round(need))
    cluster = plain["cluster"]
    assert cluster["ranks"] == cluster["gpus"] * cluster["nodes"]
    assert documented()[recipe] == (cluster["ranks"], cluster["gpu_memory_gb"], *needs, *hours)


@pytest.mark.slow
def test_recipes_sample_with_vllm_where_the_papers_do() -> None:
    """MaxRL replaced it for mazes; all four papers train with veRL and vLLM else."""
    engines = {recipe: composed(recipe)["rollout"]["engine"]["_target_"].rpartition(".")[2] for recipe in RECIPES}
    native = {recipe for recipe, engine in engines.items() if engine == "NativeEngine"}
    assert native == {"maxrl_maze", "maxrl_maze_scaling"}
    assert set(engines.values()) == {"NativeEngine", "VllmEngine"}


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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("study", "recipe", "tables"),
    [
        ("lad_baselines", "lad_math", ["lad_table_1", "lad_table_7"]),
        ("pacs_baselines", "pacs_4b", ["pacs_table_6", "pacs_table_7", "pacs_table_13"]),
        ("dph_baselines", "dph_math_qwen", ["dph_rl_table_4", "dph_rl_table_8"]),
        ("maxrl_baselines", "maxrl_maze", ["maxrl_table_3"]),
    ],
)
def test_a_study_of_baselines_has_an_arm_for_every_row_of_its_tables(
    study: str, recipe: str, tables: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As a dry run plans it, without the hub, read as the report reads runs."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # what HF_HUB_OFFLINE=1 sets
    monkeypatch.setenv("RLVR_HOME", str(tmp_path))
    words = [f"study={study}", f"paper={recipe}"]
    with runs.one_line_errors(words) as registry:
        (launch,) = runs.carry_out(words, registry, dry_run=True).launches
    records = [RunRecord(run.run_id, run.run_id, run.name, config=flat_config(run.config)) for run in launch.plan.runs]
    frames = Frames(runs_frame(records, {}), cast(Any, None), cast(Any, None), cast(Any, None))
    model = launch.plan.runs[0].config["model"].get("path", "maze_3m").rpartition("/")[2]
    for name in tables:
        arms = {cell.arm for cell in printed.tables()[name].cells if f"model={model} " in f"{cell.arm} "}
        assert len(arms) >= 3
        for arm in arms:
            (one,) = counterparts(frames, arm)  # one, and not several
            assert one.arms


@pytest.mark.slow
def test_the_models_of_the_papers_tables_are_those_of_recipes() -> None:
    """Where a row stands for runs of a model, some recipe trains that model, under the name that the row expects."""
    wanted = {
        word
        for table in printed.tables().values()
        for cell in table.cells
        for word in cell.arm.split()
        if word.startswith("model=")
    }
    models = [composed(recipe)["model"].get("path", "maze_3m").rpartition("/")[2] for recipe in RECIPES]
    assert len(wanted) > 10
    assert wanted <= {f"model={model}" for model in models}
