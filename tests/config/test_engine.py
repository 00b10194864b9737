from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rlvr.config.engine import gpus_of_workers, ranks_per_engine
from rlvr.config.freeze import frozen_config
from rlvr.ledger.stages import presample_settings, presampling_engine
from tests.support.composed import check, composed, identity

pytestmark = pytest.mark.usefixtures("composing")

HERE = f"rollout.engine.python={sys.executable}"


def refused(*overrides: str) -> str:
    with pytest.raises(ValueError) as error:
        check(*overrides)
    return str(error.value)


def test_a_table_is_sampled_by_the_native_engine_alone() -> None:
    bandit = ("task=bandit", "model=table", "rollout.prompts=1", "trainer.updates=1")
    check(*bandit)
    assert refused(*bandit, "rollout=vllm", HERE) == (
        "rollout=vllm loads architectures of Hugging Face and model=table is none. Pass rollout=native."
    )


def test_a_missing_vllm_is_an_error_before_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    check("rollout=vllm", HERE)
    assert "rollout.engine.python=/no/such/python is no program" in refused(
        "rollout=vllm", "rollout.engine.python=/no/such/python"
    )
    monkeypatch.setitem(sys.modules, "vllm", None)  # as if it were not installed
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "rollout=vllm needs vLLM, which this environment lacks" in refused("rollout=vllm")


# Words -> further words -> what the refusal says. HERE: of a python with vLLM.
REFUSED = {
    "rollout=ray HERE": {
        "rollout.engine.workers=3 cluster.ranks=2": "Pass rollout.engine.workers=2, a multiple or a divisor.",
        "rollout.engine.workers=0": "Pass rollout.engine.workers=1, a multiple or a divisor.",
        "cluster=slurm cluster.gpus=3 cluster.pack=2": "cluster.gpus=3. Pass cluster.gpus=6, or fewer workers.",
        "cluster=slurm cluster.nodes=2 cluster.ranks=2 cluster.gpus=3 rollout.engine.workers=6": (
            "spread over cluster.nodes=2, and cluster.gpus=3 on each. Pass cluster.gpus=4, or fewer workers."
        ),
        "cluster=slurm cluster.gpus=2": "cluster.gpus=2. Pass cluster.gpus=3, or fewer workers.",
    },
    "cluster=slurm HERE": {
        "rollout=ray cluster.nodes=3 cluster.sampling_nodes=1": "less cluster.sampling_nodes=1 nodes. Pass cluster.r",
        "rollout=vllm cluster.nodes=2 cluster.sampling_nodes=1": "Pass rollout=ray, or cluster.sampling_nodes=0.",
        # 4 ranks and 12 workers fill two nodes of 8; with 5 on each there are 10 GPUs.
        "rollout=ray cluster.nodes=2 cluster.sampling_nodes=1 cluster.ranks=4 cluster.gpus=5 "
        "rollout.engine.workers=12": "cluster.gpus=5 on each. Pass cluster.gpus=8, or fewer workers.",
    },
    "rollout=vllm cluster=slurm HERE": {
        "cluster.ranks=4 cluster.gpus=4 rollout.engine.tensor_parallel=3": (
            "rollout.engine.tensor_parallel=3: so many of the 4 ranks of a node share a vLLM on their GPUs. Pass "
            "one of 1, 2, 4, another cluster.ranks, or rollout=ray, whose vLLMs have GPUs of their own."
        ),
        "cluster.nodes=2 cluster.ranks=4 cluster.gpus=2 rollout.engine.tensor_parallel=4": "Pass one of 1, 2, another",
        "cluster.ranks=2 rollout.engine.tensor_parallel=2 rollout.ahead=2 rollout.logp_old=engine": (
            "rollout.ahead=2 does not allow. Pass rollout=ray, or rollout.ahead=1."
        ),
        "cluster.ranks=3 cluster.gpus=3 rollout.engine.tensor_parallel=3": "cuts the model's 2 attention heads",
    },
    "": {
        "rollout.importance=truncate": "Pass rollout.logp_old=trainer.",
        "rollout.max_mismatch=0.1": "Pass rollout.logp_old=trainer.",
        "trainer.temperature=0.5": "Drop trainer.temperature, or weigh them",
        "rollout.logp_old=trainer rollout.importance=mask rollout.top_p=0.9": "Pass rollout.top_p=1.",
        "rollout.logp_old=trainer rollout.importance=mask loss=flowrl": "loss=flowrl has one term per response",
        "rollout.logp_old=trainer rollout.importance=mask loss=lad loss.ratio=sequence": "loss=lad has one term per",
        "rollout.logp_old=trainer rollout.importance=mask loss=lad_theoretical": "loss=lad_theoretical has one term",
        "rollout.ahead=2": "which rollout=native cannot take. Pass rollout=ray, or rollout.ahead=1.",
        "rollout.ahead=2 cluster.gpus=1": "rollout=native needs the GPUs that train it. Pass rollout=ray",
        "rollout.ahead=2 rollout.logp_old=trainer": "would take responses of the policy up to 2 steps before for its",
        "rollout.ahead=2 rollout=vllm HERE rollout.logp_old=engine rollout.filter=greedy_fails": "Pass rollout.filter=",
        "rollout.ahead=1 cluster.gpus=1": "rollout=native needs the GPUs that train it. Pass rollout=ray",
        "rollout.ahead=1 rollout.logp_old=trainer": "Pass rollout.importance=truncate, which weighs them, or",
        "rollout.ahead=1 loss=gpg": "no ratio corrects for the policy that sampled. Pass rollout.logp_old=",
        "rollout.ahead=1 loss=pacs": "rollout.ahead=1 with loss=pacs: no ratio corrects",
        "rollout.top_p=0.9": "or rollout.truncation=ignored to train so nevertheless",
        "rollout=vllm HERE rollout.top_p=0.9 rollout.truncation=ignored rollout.logp_old=engine": (
            "rollout=vllm gives the log-probabilities of the truncated policy alone. Pass rollout.logp_old=trainer."
        ),
        "rollout=vllm HERE rollout.top_p=0.9 rollout.truncation=ignored rollout.logp_old=engine rollout.ahead=1": (
            "alone. Pass rollout.top_p=1."
        ),
    },
}


@pytest.mark.parametrize(("words", "more"), [(words, more) for words in REFUSED for more in REFUSED[words]])
def test_what_an_engine_cannot_do_is_refused_before_launch(words: str, more: str) -> None:
    assert REFUSED[words][more] in refused(*f"{words} {more}".replace("HERE", HERE).split())


def test_what_engines_can_do_is_accepted() -> None:
    """Of workers, ranks and nodes; weights of responses go with losses of one term per response."""
    for words in (
        "rollout=ray HERE cluster=slurm cluster.gpus=3",
        # One rank and two workers on each of two nodes.
        "rollout=ray HERE cluster=slurm cluster.nodes=2 cluster.ranks=2 cluster.gpus=3 rollout.engine.workers=4",
        "rollout=vllm HERE cluster=slurm cluster.nodes=2 cluster.ranks=2 cluster.gpus=3",
        # 4 ranks on one node of 8, 4 workers beside them, 8 on a node without ranks.
        "rollout=ray HERE cluster=slurm cluster.nodes=2 cluster.sampling_nodes=1 cluster.ranks=4 cluster.gpus=8 "
        "rollout.engine.workers=12",
        # Engines that take weights amid their requests sample several steps ahead.
        "rollout=vllm HERE rollout.logp_old=engine rollout.ahead=16",
        "rollout=ray HERE rollout.logp_old=engine rollout.ahead=16",
        "rollout=ray HERE rollout.importance=truncate rollout.ahead=2",
        "loss=reinforce rollout.logp_old=trainer rollout.importance=truncate rollout.ahead=1",
        "loss=gspo rollout.logp_old=trainer rollout.importance=clip rollout.importance_level=geometric",
        # Samples of a truncated policy, where that is allowed or none are learned from.
        "rollout.top_p=0.9 rollout.truncation=ignored",
        "rollout.top_p=0.9 rollout.truncation=ignored rollout.logp_old=trainer",
        "rollout.top_p=0.9 rollout.truncation=ignored rollout.ahead=1",
        "rollout.top_p=0.9 rollout.truncation=ignored rollout=vllm HERE",
        "loss=cross_entropy rollout.dynamic_sampling=none rollout.top_p=0.9",
    ):
        check(*words.replace("HERE", HERE).split())


def test_a_worker_on_several_gpus_needs_them_on_one_node() -> None:
    """Two GPUs each: 7 on a node are three beside a rank; 5 are one beside two ranks, and two where there are none."""
    several = ("rollout=ray", HERE, "cluster=slurm", "rollout.engine.tensor_parallel=2")
    check(*several, "cluster.gpus=7", "rollout.engine.workers=3")
    assert refused(*several, "cluster.gpus=6", "rollout.engine.workers=3") == (
        "rollout=ray takes a GPU for each of cluster.ranks=1 and rollout.engine.workers=3, "
        "rollout.engine.tensor_parallel=2 for each worker, and cluster.gpus=6. Pass cluster.gpus=7, or fewer workers."
    )
    apart = (*several, "cluster.nodes=2", "cluster.sampling_nodes=1", "cluster.ranks=2", "cluster.gpus=5")
    assert "Pass cluster.gpus=6, or fewer workers." in refused(*apart, "rollout.engine.workers=4")
    check(*apart, "rollout.engine.workers=2")
    assert gpus_of_workers({"workers": 3, "tensor_parallel": 2}) == 6


def test_the_gpus_of_an_engine_are_no_part_of_the_identity() -> None:
    several = "rollout.engine.tensor_parallel=2"
    check("rollout=vllm", HERE, "cluster=slurm", "cluster.ranks=2", "cluster.gpus=2", several)
    assert identity("rollout=vllm", several) == identity("rollout=vllm")
    assert ranks_per_engine({"tensor_parallel": 2}, ranks=4) == 2
    assert ranks_per_engine({"tensor_parallel": 2, "workers": 4}, ranks=4) == 1
    assert ranks_per_engine({"tensor_parallel": 2, "workers": 2}, ranks=8) == 4
    with pytest.raises(Exception, match="tensor_parallel"):
        composed("rollout=native", several)


def test_what_decides_a_sample_is_part_of_the_identity_and_where_it_is_drawn_is_not() -> None:
    vllm, truncated = "rollout=vllm", "rollout.logp_old=trainer rollout.importance=truncate"
    for one, other in (
        ("rollout=ray rollout.engine.workers=4", "rollout=ray"),
        (f"{vllm} {HERE} rollout.engine.canary=1 rollout.engine.timeout_s=9", vllm),
        ("rollout.ahead=0", ""),
        ("rollout.logp_old=engine rollout.importance=none rollout.importance_cap=2.0", ""),
        ("rollout.truncation=null", ""),
        (f"{truncated} rollout.importance_level=null", truncated),
    ):
        assert identity(*one.split()) == identity(*other.split()), one
    for one, other in (
        (vllm, ""),
        ("rollout.ahead=1", ""),
        ("rollout.logp_old=trainer", ""),
        (f"{vllm} rollout.logp_old=engine", vllm),
        (f"{truncated} rollout.importance_level=sequence", truncated),
    ):
        assert identity(*one.split()) != identity(*other.split()), one


def test_a_missing_ray_is_an_error_before_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)  # as if it were not installed
    assert "rollout=ray needs Ray, which this environment lacks: pip install 'rlvr[ray]'." in refused(
        "rollout=ray", HERE
    )


def test_the_path_of_an_interpreter_is_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    monkeypatch.chdir(tmp_path)
    config, choices = composed("rollout=vllm", "rollout.engine.python=bin/python")
    assert frozen_config(config, choices)["rollout"]["engine"]["python"] == str(tmp_path / "bin" / "python")


def test_packed_runs_cannot_share_a_gpu_whose_memory_vllm_releases() -> None:
    message = refused("rollout=vllm", HERE, "cluster=slurm", "cluster.gpus=1", "cluster.pack=2")
    assert "Pass cluster.pack=1, rollout=ray or rollout=native." in message
    check("rollout=vllm", HERE, "cluster=slurm", "cluster.gpus=0", "cluster.pack=2")


def test_the_engine_computes_as_the_trainer_does() -> None:
    assert composed("rollout=vllm", "trainer.dtype=bfloat16")[0].rollout.engine.dtype == "bfloat16"


@pytest.mark.parametrize(
    ("dtypes", "whose"), [(("float32", "float32"), "engine"), (("float32", "bfloat16"), "trainer")]
)
def test_in_half_precision_the_trainer_computes_the_old_log_probabilities(dtypes: tuple[str, str], whose: str) -> None:
    for engine, trainer in {dtypes, dtypes[::-1]}:
        words = (f"rollout.engine.dtype={engine}", f"trainer.dtype={trainer}")
        assert composed(*words)[0].rollout.logp_old == whose
        assert composed(*words, "rollout.logp_old=engine")[0].rollout.logp_old == "engine"


def test_answers_are_pre_sampled_by_one_vllm_in_place_of_several() -> None:
    """The job of a stage has one GPU. Its samples are those of either engine: one stage serves the runs of both."""
    words = ("loss=dph_js", HERE, "cluster=slurm", "cluster.gpus=3")
    check("rollout=ray", *words)
    of_ray, of_vllm = (frozen_config(*composed(f"rollout={option}", *words)) for option in ("ray", "vllm"))
    assert presample_settings(of_ray) == presample_settings(of_vllm)
    alone = presampling_engine(of_ray["rollout"]["engine"])
    assert alone == of_vllm["rollout"]["engine"]
    assert presampling_engine(alone) == alone
