import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

import pytest
from annotated_types import Ge, Interval, MultipleOf
from pydantic import PositiveInt

from rlvr.config import values
from rlvr.run import main
from tests.support.composed import check_with_task

TYPED = {
    # what is typed -> what came, what is allowed, what to type
    "trainer.kl=-1": "trainer.kl=-1 must be 0 or more. Type trainer.kl=0.0, for example.",
    "trainer.eps=inf": "trainer.eps=inf: a finite number is expected, greater than 0. Type trainer.eps=1e-08, for",
    "trainer.betas=[2,2]": "trainer.betas=[2,2]: a list of 2 is expected, each a number, from 0 to less than 1. "
    "Type trainer.betas=[0.9,0.999], for example.",
    "trainer.warmup_steps=160": "takes up all 160 optimiser steps of the run (steps=80 x trainer.epochs=1 x "
    "trainer.updates=2). Pass trainer.warmup_steps=16, for example, or more steps.",
    "trainer.schedule=wsd trainer.decay_steps=400": "trainer.decay_steps=400 takes up all 160 optimiser steps",
    "trainer.lora_rank=100000": "trainer.lora_rank=100000 is more than the model is wide, 64",
    "task=bandit model=table trainer.lora_rank=4": "trainer.lora_rank=4 has no effect with model=table, without layers",
    "task=bandit model=table trainer.shared_prompt=always": "trainer.shared_prompt=always has no effect with model=t",
    "task=bandit model=table evaluation.samples=16": "evaluation.samples=16 has no effect with task=bandit, whose",
    "trainer.packing=1": "trainer.packing=1: true or false is expected. Type trainer.packing=true, for example.",
    "trainer.lora_rank='4'": "trainer.lora_rank='4': a whole number is expected, 1 or more, or null.",
    "eta=1e-300": "eta=1e-300 must be 0, or of a size from 1.2e-38 to 3.4e+38: a float32.",
    "steps=99999999999999999999": "steps=99999999999999999999 must be less than 2^63: numbers have 64 bits.",
    "task.size=1001": "task.size=1001 must be from 5 to 99. Type task.size=7, for example.",
    "rollout.max_tokens=2000": "rollout.max_tokens=2000 after a prompt of 59 tokens of task=maze is over the context "
    "of model=maze_tiny, 1024 tokens. Pass rollout.max_tokens=965 or less",
    "rollout.temperature=inf": "rollout.temperature=inf: a finite number is expected, from 0.001 to 1000.0. Type",
    "cluster.gpu=cpu": "cluster.gpu=cpu: rtx4090, l40s, a100, h100, h200 or b200 is expected, or null.",
    "tracker.uri='postgresql://host/db?password=s3cret'": "tracker.uri=postgresql://host/db?password=*** with a user",
    "+cluster.environment.MYSQL_PWD=s3cret": "cluster.environment.MYSQL_PWD would be kept in runs/.",
    "+cluster.environment.SMTP_PASS=s3cret": "cluster.environment.SMTP_PASS would be kept in runs/.",
    "+cluster.environment.TOKEN2=s3cret": "cluster.environment.TOKEN2 would be kept in runs/.",
    "+cluster.environment.HTTP_PROXY='http://ann:s3cret@host:1'": "cluster.environment.HTTP_PROXY=http://***@host:1: ",
    "cluster.setup=['A=http://ann:s3cret@host']": "cluster.setup: the password in A=http://***@host would be kept",
    "+cluster.environment.MY_KEY=s3cret": "cluster.environment.MY_KEY would be kept in runs/.",
    "cluster.setup=['HF_TOKEN=s3cret']": "cluster.setup: the value of HF_TOKEN would be kept in runs/.",
    "+cluster.environment.FOO=${oc.env:HUB_TOKEN}": "cluster.environment.FOO has the value of $HUB_TOKEN, which would",
    "cluster.setup=['wget${oc.env:HUB_TOKEN}@host']": "cluster.setup has the value of $HUB_TOKEN, which would be kept",
    "name=a tags=${oc.env:HUB_TOKEN}": "tags has the value of $HUB_TOKEN",
    "+foo=1": "foo is not a knob.",
    "+rollout.foo=1": "rollout.foo is not a knob.",
}
OF_COMMANDS = {  # found before or after the checks of a config; and one of each kind of those
    "trainer.kl=nan": "trainer.kl=nan: a finite number is expected, 0 or more. Type trainer.kl=0.0, for example.",
    "seed=1e3": "seed=1e3: a whole number is expected, 0 or more. Type seed=0, for example.",
    "lr=abc": "lr=abc: a number is expected, 0 or more.",
    "eta=": "eta=: a number is expected, greater than 0, or null.",
    # 43 x 43 squares, 43 ends of line and 3 marks; 21 x 21 cells with 440 passages between them
    "task.size=43": "The longest response, 881 tokens, after a prompt of 1895 tokens of task=maze is over the context "
    "of model=maze_tiny, 1024 tokens. Pass smaller problems",
    "cluster.gpus=8": "cluster.gpus=8, and this machine has no GPU. Pass cluster.gpus=0, or cluster=slurm where",
    "loss=flowrl trainer.reference_offload=true": "trainer.reference_offload=true keeps frozen weights out of GPU memor"
    "y, and these runs have no GPU.",
    "cluster=slurm": "cluster=slurm, and there is no SLURM here: sbatch is not on PATH, or knows no cluster.",
    "tracker.uri=http://ann:s3cret@host/a": "tracker.uri=http://***@host/a with a user or a password would be kept in",
    "+cluster.environment.HF_TOKEN=s3cret": "do not, type '+cluster.environment.HF_TOKEN=$HF_TOKEN'.",
    "cluster.environment.A=b": "cluster.environment.A=b: a new entry of a mapping is typed with a plus: +cluster.env",
    "-m loss=grpo,rloo seed=0.5,1 controls=seeds": "seed=0.5: a whole number is expected, 0 or more.",
    "-m loss=grpo,rloo seed=a,b until=decided budget=24": "seed=a: a whole number is expected, 0 or more.",
    "-m loss=grpo,rloo tune=lr:range(1,3)": "tune=lr:range(1,3): lr=range(1: the value cannot be read.",
    "study=eta study=alpha": "study=eta and study=alpha: study is given twice. Keep one of them.",
    "loss=grpo loss=lad": "loss=grpo and loss=lad: loss is given twice.",
    "-m lr=1e-4,1e-3 ++lr=5": "lr=1e-4,1e-3 and ++lr=5: lr is given twice.",
    "cluster.threads=1 cluster.threads=2": "cluster.threads is given twice. Keep one of them.",
    "-m eta=1,2,1": "eta=1,2,1: 1 is listed twice on this axis. Drop one.",
    "hydra.output_subdir=x": "hydra.output_subdir=x has no effect on a run.",  # wrote a directory, in a dry run too
    "-m seed=range(1000000)": "seed=range(1000000) has more than 100000 values, and a launch has at most ",
    "-m seed=range(1000) eta=range(1,1001)": "the grid has 1000000 points, and a launch has at most 100000 points.",
}


@pytest.fixture(autouse=True)
def _machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without GPU, without SLURM."""
    monkeypatch.setenv("RLVR_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("HUB_TOKEN", "hub-s3cret")
    monkeypatch.setenv("TOKEN_FILE_KEY", "/a/path/of/tokens")
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "no.conf"))


@pytest.mark.parametrize("typed", TYPED)
def test_an_impossible_number_is_refused_in_one_line(typed: str) -> None:
    with pytest.raises(ValueError, match=re.escape(TYPED[typed])) as refused:
        check_with_task(*typed.split(), "cluster=local")
    assert "\n" not in str(refused.value)
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize("typed", OF_COMMANDS)
def test_the_command_ends_with_that_line_and_has_written_nothing(
    typed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*typed.split(), *([] if "cluster=" in typed else ["cluster=local"]), "--dry-run"]) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert OF_COMMANDS[typed] in printed.err
    assert "s3cret" not in printed.err
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(
    "typed",
    [
        "lr=0",
        "+cluster.environment.TOKENIZERS_PARALLELISM=false cluster.setup=['HF_TOKEN=$(cat)']",
        "+cluster.environment.FILE=/a/path/of/tokens +cluster.environment.HUB_TOKEN=$HUB_TOKEN",
        "+cluster.environment.OLDPWD=/a cluster.setup=['PWD=/a']",
        "+cluster.environment.NCCL_BYPASS=1 cluster.setup=['A=https://ann:$PASSWORD@host/a']",
        "task=digits model=digits_tiny model.steps=0",
    ],
)
def test_unusual_but_valid_values_are_taken(typed: str) -> None:
    check_with_task(*typed.split(), "cluster=local")


@pytest.mark.slow
@pytest.mark.parametrize("typed", ["-m loss=grpo,rloo controls=still", "-m loss=grpo,rloo seed='0','1' controls=seeds"])
def test_unusual_but_valid_axes_are_planned(typed: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*typed.split(), "cluster=local", "--dry-run"]) == 0, capsys.readouterr().err


def test_a_type_is_described_in_words() -> None:
    for kind, words in (
        (PositiveInt | None, "a whole number is expected, greater than 0, or null"),  # pyright: ignore
        (Annotated[float, Interval(ge=0, le=1), "a share"], "a number is expected, a share, from 0 to 1"),
        (tuple[float, float], "a list of 2 is expected, each a number"),
        (Literal["a", "b"], "a or b is expected"),
        (Annotated[int, Ge(2), MultipleOf(2)], "a whole number is expected, 2 or more, a multiple of 2"),
    ):
        assert values.expected(kind) == words


def test_a_type_that_is_no_plain_data_is_not_checked() -> None:
    for kind in (Callable[[int], int], list[Path | Callable[[], int]], object):
        assert values.checkable(lambda kind=kind: kind) is None
    assert values.checkable(lambda: list[Path]) == list[Path]


SEARCH = "-m hydra/sweeper=optuna lr=1e-5,1e-4 hydra.sweeper.metrics=reward/mean hydra.sweeper.directions=maximize"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("rollout=vllm rollout.ahead=1 rollout.logp_old=engine", "rollout.ahead=1 samples while the policy is trained"),
        ("rollout=vllm cluster.workers=3", "cluster.workers=3 runs would share this machine's 2 GPUs"),
        ("rollout=vllm cluster.workers=2", ""),
        (
            f"{SEARCH} rollout=vllm hydra.sweeper.n_jobs=3",
            "hydra.sweeper.n_jobs=3 runs would share this machine's 2 GPUs",
        ),
        (f"{SEARCH} rollout=vllm hydra.sweeper.n_jobs=2", ""),
        ("cluster.workers=3", ""),  # the native engine has no memory of its own
    ],
)
def test_a_vllm_of_this_machine_shares_its_gpu_with_its_own_trainer_alone(
    typed: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    python = [f"rollout.engine.python={sys.executable}"] if "vllm" in typed else []
    words = [*typed.split(), *python, "task=digits", "model=digits_tiny", "cluster=local", "--dry-run"]
    assert main(words) == (2 if message else 0)
    assert message in capsys.readouterr().err
