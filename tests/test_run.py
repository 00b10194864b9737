"""The command line as a user sees it; nothing is launched."""

import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rlvr import run as rlvr_run
from rlvr.config import imports
from rlvr.config.explain import OTHER_NAMES
from rlvr.config.overrides import quoted
from rlvr.run import deferred, main
from tests.support.composed import REGISTRY

ROOT = Path(__file__).parent.parent
Command = Callable[..., tuple[int, str, list[str]]]


def rlvr(*arguments: str, home: Path, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "RLVR_HOME": str(home), "COLUMNS": "100", **environment}
    command = [sys.executable, "-m", "rlvr.run", *arguments]
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """The command in this process: (exit code, standard output, lines of standard error)."""

    def run_command(*arguments: str, home: Path) -> tuple[int, str, list[str]]:
        monkeypatch.setenv("RLVR_HOME", str(home))
        try:
            code = main(arguments)
        except SystemExit as ended:  # argparse
            code = int(str(ended.code))
        shown = capsys.readouterr()
        return code, shown.out, shown.err.splitlines()

    return run_command


MISTAKES = {
    # what is typed -> what came, what is allowed, what to type
    "loss=grpo eta=2": "eta=2.0 has no effect with loss=grpo. Losses that read eta: lad, lad_theoretical. Drop eta "
    "or pass loss=lad.",
    "loss=grpo divergence=js": "divergence=js has no effect with loss=grpo. Losses that take a divergence: lad, "
    "lad_theoretical. Drop divergence or pass loss=lad.",
    "-m loss=lad divergence=hd also=loss=grpo": "divergence=hd has no effect with the loss of some arm, of `also` "
    'for example. Give it to the others alone: add when="divergence if loss=lad".',
    "-m loss=lad eta=0.5 also=loss=grpo": "eta=0.5 has no effect with the loss of some arm, of `also` for example. "
    'Give it to the others alone: add when="eta if loss=lad".',
    "-m loss=lad,grpo eta=0.5,1": 'eta is no knob of loss=grpo. Give it to the others alone: add when="eta if '
    'loss=lad".',
    "-m loss=lad,grpo loss.clip_high=0.3,0.4 'when=steps=9 if loss=lad'": "Give it to the others alone: extend "
    '`when` to when="steps=9 if loss=lad; loss.clip_high if loss=grpo".',
    "loss=lad loss.eta=0.5 eta=2": "eta=2.0 has no effect beside loss.eta=0.5, for which it is a shorthand. Drop "
    "eta, or set loss.eta=2.0.",
    "study=eta -m loss=grpo": "study=eta sets divergence, which loss=grpo does not read. Losses that do: lad, "
    "lad_theoretical. Drop loss=grpo or pass one of these.",
    "study=beta -m loss=grpo": "study=beta sets beta, which loss=grpo does not read. Losses that do: flowrl, pacs, "
    "pacs_actor. ",
    "-m loss=dph_js,grpo presample.problems=64": "presample.problems is no knob of loss=grpo. Give it to the others "
    'alone: add when="presample.problems if loss=dph_js".',
    "loss=ladd": "loss=ladd does not exist. loss takes: ",
    "model=Qwen/Qwen2.5-0.5B": "model=Qwen/Qwen2.5-0.5B is no option. For a model of the hub or in a directory: "
    "model=hf model.path=Qwen/Qwen2.5-0.5B.",
    "paper=small/coin": "paper=small/coin does not exist. paper takes: small/coins, ",
    "-m study=eta,exact_likelihood": "study=eta,exact_likelihood: a study brings axes, arms and claims of its own. "
    "Launch studies one by one.",
    "paper=dph_sql": "task.train has no value: pass task.train=...",
    "paper=lad_math task.test=[a,b]": "~task.test.name to drop one.",
    "divergence=jss": "Did you mean js?",
    "sede=1": "sede is not a knob. Did you mean seed?",
    "num_generations=8": "Did you mean rollout.samples?",
    "actor.optim.learning_rate=1e-4": "Did you mean lr?",
    "+task.sise=9": "task.sise is unknown: task takes loops, mistakes, seed, size, test_problems, ",
    "-m eta=0.5,1,x": "eta=x: a number is expected, greater than 0, or null.",
    "rollout.prompts=1 trainer.updates=2": "do not divide into trainer.updates=2 equal mini-batches. Divisors of 1: 1.",
    "evaluation.temperature=0": "evaluation.temperature=0 gives one answer, and evaluation.samples=8 would be "
    "copies of it.",
    "evaluation.k=[1,16]": "evaluation.k=16 is larger than evaluation.samples=8",
    "task.size=8": "task.size=8: a maze has an odd size",
    "-m eta=1,1.0": "eta=1 and eta=1.0 make the same run",
    "-m cluster.threads=1,2": "changes nothing",
    "model=hf": "model.path has no value: pass model.path=...",
    "-m eta=1,2 exclude=eta=3": "exclude='eta=3' matches no point",
    "zip=eta,lr": "zip has no effect on a single run. Sweep with -m, or drop",
    "-m seed=0,1 'when=cluster.ranks=2 if seed=1' cluster=local": "cluster.ranks=1 and cluster.ranks=2: all runs of "
    "a launch on this machine share it.",
    "cluster.nodes=2 cluster.ranks=2 cluster=local": "cluster.nodes=2 needs SLURM",
    "tracker.uri=foo cluster=local --dry-run": "tracking URI 'foo' has no usable scheme.",
    "eta=[1,": "eta=[1,: the value cannot be read. Type KEY=VALUE",
    "task=classes task.class=3": "Did you mean task.classes?",
    "++until=decided": "until has no effect on a single run.",
    "+policy.chat=true": "policy.chat is a knob of evaluations, and this command trains",
    "loss=": "loss=: loss takes the name of an option.",
    "hydra/job_logging=default": "hydra/job_logging=default has no effect on a run.",
    "-m lr=1e-3,1e-4 trainer.lr=5e-4": "trainer.lr=0.0005 would leave lr=0.001 without effect, by which arms are named "
    "and compared. Type lr=0.0005.",
    "-m eta=null,0.25": "eta=null and eta=0.25 make the same run: the sweep of eta changes nothing. Drop one.",
    "-m loss=lad 'also=loss=lad eta=0.25'": "no eta and eta=0.25 make the same run",
    "loss._partial_=false": "loss._partial_=false is no knob: the option's file decides how it is called.",
    "-m seed=0,1 tune=": "tune= has no value. Give it one, or drop it.",
    "-m task=maze,bandit task.test_problems=64": "task.test_problems is no knob of task=bandit. Give it to the "
    'others alone: add when="task.test_problems if task=maze".',
    "task.classes=3": "task.classes is a knob of task=classes",
    "loss=grpo,rloo lr=1e-3": "loss=grpo,rloo is several values. To sweep over them, add -m: python -m rlvr.run -m "
    "loss=grpo,rloo lr=1e-3",
    "task.size=7,9": "task.size=7,9 is several values. One list is task.size=[7,9]. To sweep over them, add -m: "
    "python -m rlvr.run -m task.size=7,9",
    "seed=range(3)": "seed=range(3) is several values. To sweep over them, add -m: ",
    "paper=lad_math ~task.test.minervaa": "~task.test.minervaa: there is no such entry to drop. task.test has: "
    "math500, olympiadbench, minerva, aime24, aime25, amc. Did you mean minerva?",
    "~lr": "~lr: only entries of a mapping can be dropped. Leave ~lr out, or set lr=VALUE.",
    "~sede": "~sede: there is no such knob or group. Did you mean seed?",
    "-m seed=0,1 hydra.sweeper.n_trials=3": "hydra.sweeper.n_trials has an effect on searches only. Search with -m "
    "hydra/sweeper=optuna, or drop it.",
    "-m hydra/sweeper=optuna hydra.sweeper.ntrials=3": "hydra.sweeper.ntrials is not a knob. Those of hydra.sweeper "
    "in a search: metrics, directions, n_trials, n_jobs, retries, params, sampler, pruner. Did you mean n_trials?",
    "--dryrun": "there is no option --dryrun.",
    "--config-dir": "--config-dir: expected one argument.",
    "--config-dir=/nowhere": "/nowhere: there is no such directory.",
    "hydra.searchpath=[file:///nowhere]": "hydra.searchpath=[file:///nowhere]: there is no such directory.",
    "loss=../task/maze": "loss=../task/maze is no option of loss.",
    "\N{EN DASH}m seed=0,1": "\N{EN DASH}m begins with a dash that is no hyphen. Type it anew: -m.",
    "loss=grpo.yaml": "loss=grpo.yaml is the name of a file. Type loss=grpo.",
    "-m loss=lad also=loss=grpo.yaml": "Type loss=grpo. (in the grid point",
}


def test_names_of_other_trainers_are_no_knobs_and_their_replacements_are() -> None:
    known = set(REGISTRY.names(("loss=grpo", "model=hf")))
    assert set(OTHER_NAMES) <= known
    assert not known & {name for names in OTHER_NAMES.values() for name in names}


@pytest.mark.parametrize("typed", MISTAKES)
def test_a_mistake_gets_one_clear_line_and_launches_nothing(typed: str, command: Command, tmp_path: Path) -> None:
    code, out, (line,) = command(*shlex.split(typed), home=tmp_path)
    assert (code, out) == (2, "")
    assert line.startswith("rlvr: ")
    assert MISTAKES[typed] in line
    assert not (tmp_path / "runs").exists() or not any((tmp_path / "runs").glob("*/config.yaml"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ["loss=lad,grpo", "eta=0.5,1"],
        ["loss=lad,grpo", "divergence=hd"],
        ["loss=lad,grpo", "loss.clip_high=0.3,0.4"],
        ["loss=lad,grpo", "loss.clip_high=0.3", "when=steps=9 if loss=lad"],
        ["loss=lad", "eta=0.5", "also=loss=grpo"],
        ["task=maze,bandit", "task.test_problems=64", "when=model=table if task=bandit"],
    ],
)
def test_a_rule_that_a_refusal_proposes_is_accepted(arguments: list[str], command: Command, tmp_path: Path) -> None:
    _, _, (line,) = command("-m", *arguments, home=tmp_path)
    (rule,) = re.findall(r'when="(.+)"', line)
    kept = [word for word in arguments if not word.startswith("when=")]
    code, out, _ = command("-m", *kept, f"when={rule}", "cluster=local", "--dry-run", home=tmp_path)
    assert code == 0
    assert "runs, 0 finished" in out


@pytest.mark.slow
@pytest.mark.parametrize("recipe", REGISTRY.options("paper"))
def test_a_dry_run_of_a_recipe_alone_shows_its_plan(
    recipe: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in the README: without a hub, a GPU, SLURM, or data that are on no hub."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    code, out, errors = command(f"paper={recipe}", "cluster=local", "--dry-run", home=tmp_path)
    assert code == 0, errors
    assert "1 run, 0 finished, 1 to do." in out
    assert f"paper={recipe}" in out.split()


@pytest.mark.slow
@pytest.mark.parametrize(
    "more", [[], ["seed=3"], ["-m", "seed=1,2", "lr=1e-6,2e-6,3e-6"]], ids=["one", "seed", "sweep"]
)
def test_a_dry_run_names_the_data_that_a_launch_needs(more: list[str], command: Command, tmp_path: Path) -> None:
    words = ["paper=dph_sql", *more, "task.train=bird.jsonl", "--dry-run"]
    code, out, _ = command(*words, home=tmp_path)
    assert code == 0
    lacking = (
        "Not checked here: task.databases, task.test without a value. A launch needs task.databases=... task.test=..."
    )
    assert [line for line in out.splitlines() if "without a value" in line] == [
        f"{lacking}, and its run has another id."
    ]
    code, _, (line,) = command(*words, "model.path=???", home=tmp_path)
    assert (code, line.partition(":")[2][:24]) == (2, " model.path has no value")


@pytest.mark.slow
def test_a_dry_run_shows_the_nodes_of_a_recipe_and_refuses_typed_ones(command: Command, tmp_path: Path) -> None:
    words = ["paper=dph_sql_32b", "cluster=local", "--dry-run"]
    assert "not here: cluster.nodes=2 needs SLURM" in command(*words, home=tmp_path)[1]
    code, _, (line,) = command(*words, "cluster.nodes=2", home=tmp_path)
    assert (code, line.partition(",")[0]) == (2, "rlvr: cluster.nodes=2 needs SLURM")


TABLE = ["task=classes", "model=table", "steps=10", "rollout.prompts=32"]
CLASSES = [*TABLE, "task.contexts=64"]
NO_REFILL = "rollout.dynamic_sampling=none"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "lines"),
    [
        ([*CLASSES, "loss=grpo", NO_REFILL], ["1 run: 64 training problems, 5 epochs in 10 steps of 32"]),
        ([*CLASSES, "loss=grpo"], ["1 run: 64 training problems, 5 epochs or more in 10 steps of 32"]),  # 320 of 64
        ([*CLASSES, "loss=dph_js", NO_REFILL], ["1 run: 64 training problems"]),  # not known how many are explored
        (
            ["-m", *TABLE, "loss=grpo", NO_REFILL, "task.contexts=320,1280", "seed=0,1"],  # 320 of each
            [
                "2 runs: 320 training problems, 1 epoch in 10 steps of 32",
                "2 runs: 1,280 training problems, 0.25 epochs in 10 steps of 32",
            ],
        ),
        (["task=coins", "model=coins_tiny", "loss=grpo"], []),  # they never end
        (["task=bandit", "model=table", "rollout.prompts=1", "trainer.updates=1", "loss=grpo"], []),
        (["paper=dph_sql"], []),
    ],
    ids=["once", "refill", "rehearsed", "sweep", "endless", "bandit", "not at hand"],
)
def test_a_dry_run_shows_the_number_of_training_problems_and_of_their_repetitions(
    words: list[str], lines: list[str], command: Command, tmp_path: Path
) -> None:
    code, out, errors = command(*words, "cluster=local", "--dry-run", home=tmp_path)
    assert code == 0, errors
    assert [line for line in out.splitlines() if "training problem" in line] == lines


@pytest.mark.parametrize("loss", ["pacs", "pacs_actor"])
def test_the_setting_for_pacs_uses_pacs_unless_another_loss_is_typed(loss: str) -> None:
    alone, typed = (REGISTRY.compose(["paper=small/coins_pacs", *more]) for more in ([], [f"loss={loss}"]))
    assert (alone[1]["loss"], typed[1]["loss"]) == ("pacs", loss)
    assert (alone[0] == typed[0]) is (loss == "pacs")


@pytest.mark.slow
@pytest.mark.parametrize("text", ["hydra: {sweeper: {params: {loss: 'grpo,rloo'}}}", "also: [loss=rloo]"])
def test_a_study_that_sweeps_is_no_single_run(text: str, command: Command, tmp_path: Path) -> None:
    (tmp_path / "study").mkdir()
    (tmp_path / "study/mine.yaml").write_text(f"# @package _global_\n{text}\n", encoding="utf-8")
    words = ["--config-dir", str(tmp_path), "study=mine", "cluster=local", "--dry-run"]
    code, _, (line,) = command(*words, home=tmp_path)
    assert (code, line) == (2, "rlvr: study=mine sweeps: write `mode: MULTIRUN` under `hydra` in its file, or type -m.")
    assert command(*words, "-m", home=tmp_path)[0] == 0


def test_a_knob_of_a_swept_group_belongs_to_its_points() -> None:
    words = ["-m", "loss=grpo,dapo", "loss.clip_low=0.1", "seed=1"]
    assert deferred(words, REGISTRY) == ["-m", "loss=grpo,dapo", "loss.clip_low=choice(0.1)", "seed=1"]
    assert deferred(["loss=grpo", "loss.clip_low=0.1"], REGISTRY) == ["loss=grpo", "loss.clip_low=0.1"]
    assert deferred(["study=baselines", *words[1:]], REGISTRY) == ["study=baselines", *deferred(words, REGISTRY)[1:]]
    assert deferred(["-m", "loss=glob(dph_r*)", "loss.coef=0.1"], REGISTRY)[-1] == "loss.coef=choice(0.1)"
    # Some losses bring a group along, which the default loss does not have
    of_losses = deferred(["-m", "loss=dph_js,dph_none", "presample.problems=64"], REGISTRY)
    assert of_losses[-1] == "presample.problems=choice(64)"
    assert deferred(["-m", "seed=0,1", "presample.problems=64"], REGISTRY)[-1] == "presample.problems=64"


def test_lines_are_typed_without_brackets() -> None:
    assert quoted(["exclude=loss=grpo eta=2; seed=1"]) == ["exclude=['loss=grpo eta=2','seed=1']"]
    assert quoted(["zip=eta,lr"]) == ["zip=['eta,lr']"]
    assert quoted(["zip=[]", "eta=1,2"]) == ["zip=[]", "eta=1,2"]
    assert quoted(["baseline=loss=lad eta=1"]) == ["baseline='loss=lad eta=1'"]


def test_a_rule_of_a_study_that_is_no_list_is_named(command: Command, tmp_path: Path) -> None:
    (tmp_path / "study").mkdir()
    (tmp_path / "study/mine.yaml").write_text("# @package _global_\nzip: loss,seed\n", encoding="utf-8")
    _, _, (line,) = command("--config-dir", str(tmp_path), "study=mine", home=tmp_path)
    assert line == "rlvr: In 'study/mine': zip is a list: under `zip:` each line as `- LINE`."


@pytest.mark.slow
def test_rules_shape_a_grid_of_the_command_line(tmp_path: Path) -> None:
    done = rlvr(
        "loss=lad,grpo",
        "-m",
        "divergence=hd",
        "eta=1,2",
        "lr=1e-4,2e-4",
        "zip=eta,lr",
        "--dry-run",
        "when=eta lr divergence if loss=lad; cluster.memory_gb=8 if loss=grpo",
        "also=loss=dapo lr=1e-3,1e-2",
        "exclude=lr=0.01",
        "cluster=local",
        home=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    shown = [" ".join(line.split()[1:]) for line in done.stdout.splitlines() if line.startswith("  ")]
    assert shown == [
        "lad-hd-eta1-lr0.0001-s0 new divergence=hd eta=1.0 lr=0.0001",
        "lad-hd-eta2-lr0.0002-s0 new divergence=hd eta=2.0",
        "grpo-s0 new loss=grpo cluster.memory_gb=8.0",
        "dapo-lr0.001-s0 new loss=dapo lr=0.001",
    ]


@pytest.mark.slow
def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    done = rlvr("loss=grpo", "eta=2", "--debug", home=tmp_path)
    assert done.returncode != 0
    assert "Traceback" in done.stderr
    of_hydra = rlvr("loss=grpo", "eta=2", home=tmp_path, HYDRA_FULL_ERROR="1")  # set for another tool, perhaps
    assert (of_hydra.returncode, of_hydra.stderr.count("\n")) == (2, 1)


@pytest.mark.slow
def test_help_fits_a_screen_and_imports_no_torch(tmp_path: Path) -> None:
    began = time.perf_counter()
    done = rlvr("--help", home=tmp_path, PYTHONPROFILEIMPORTTIME="1")
    assert done.returncode == 0
    assert "python -m rlvr.run -m loss=lad divergence=js,hd,tv eta=0.5,1,2,4" in done.stdout
    (losses,) = re.findall(r"^\s*loss: (.*)$", done.stdout, re.MULTILINE)
    assert {"dapo", "grpo", "lad", "reinforce"} <= set(losses.split(", "))
    assert len(done.stdout.splitlines()) <= 60
    modules = {line.rsplit("|", 1)[-1].strip() for line in done.stderr.splitlines()}
    assert not modules & {"torch", "transformers", "mlflow", "pandas", "vllm", "ray"}
    assert time.perf_counter() - began < 30  # a hang, not a benchmark


def test_cfg_job_shows_the_composed_run_from_any_directory(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, errors = command("--cfg", "job", "eta=0.5", "divergence=hd", home=tmp_path)
    assert code == 0, errors
    assert "_target_: rlvr.objective.divergence.hd" in out
    assert "eta: 0.5" in out


@pytest.mark.parametrize("home", ["/proc/no_home", "/dev/null/below_a_file"])
def test_a_home_that_cannot_be_created_is_named_with_its_variable(command: Command, home: str) -> None:
    code, _, (line,) = command("loss=grpo", "cluster=local", "tracker=none", home=Path(home))
    assert code == 2
    assert f"Runs go to {home}: set RLVR_HOME to a directory that you may write to" in line


@pytest.mark.parametrize("function", [rlvr_run.run, rlvr_run.compose])
def test_several_values_from_python_need_rlvr_sweep(
    function: Callable[[list[str]], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLVR_HOME", str(tmp_path))
    with pytest.raises(ValueError, match=re.escape('To sweep over them, rlvr.sweep(["loss=grpo", "seed=0,1"])')):
        function(["loss=grpo", "seed=0,1"])


def test_a_text_instead_of_words_is_refused_from_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLVR_HOME", str(tmp_path))
    for call in (rlvr_run.run, rlvr_run.sweep):
        with pytest.raises(ValueError, match=re.escape('pass a list of words: ["loss=grpo"].')):
            call("loss=grpo")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("door", [rlvr_run.run, rlvr_run.sweep, rlvr_run.load])
def test_from_python_too_a_file_that_hides_one_of_our_packages_is_named(
    door: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(imports, "hidden_package_message", lambda: "`import sweeps` finds /mine/sweeps.py")
    with pytest.raises(ValueError, match=r"finds /mine/sweeps\.py"):
        door()
