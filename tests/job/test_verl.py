"""verl's command, of which no run was tried: its words, its reward function, and what becomes of what it records."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from rlvr.job import command, verl
from rlvr.records import NotAvailable, Problem
from tests.job.test_program import Carried, carried
from tests.support.composed import REGISTRY, checked

__all__ = ["carried"]  # a fixture

WORDS = ["program=verl", "task=digits", "model=hf", "model.path=/m", "model.chat=true", "rollout.max_tokens=4"]
# Of verl 0.9.1, verl/trainer/config/_generated_ppo_trainer.yaml: the keys that are set here, by section.
KNOWN = {
    "data": "train_files val_files shuffle seed train_batch_size max_response_length max_prompt_length",
    "actor_rollout_ref.model": "path",
    "actor_rollout_ref.actor": "ppo_mini_batch_size ppo_micro_batch_size_per_gpu",
    "actor_rollout_ref.actor.optim": "lr",
    "actor_rollout_ref.rollout": "name n seed temperature top_p log_prob_micro_batch_size_per_gpu "
    "tensor_model_parallel_size",
    "actor_rollout_ref.rollout.val_kwargs": "n do_sample temperature top_p",
    "algorithm": "adv_estimator",
    "reward.custom_reward_function": "path",
    "trainer": "total_epochs total_training_steps test_freq save_freq n_gpus_per_node logger validation_data_dir "
    "default_local_dir",
}


def frozen(monkeypatch: pytest.MonkeyPatch, *typed: str) -> dict[str, Any]:
    monkeypatch.setattr(verl, "find_spec", lambda _: True)
    return checked(REGISTRY, *WORDS, "cluster.gpus=2", *typed)


def test_every_word_is_one_of_verls(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = frozen(monkeypatch, "rollout.prompts=6", "steps=9", "+program.args.data.max_prompt_length=7")
    composed = verl.words(plain, Path("/c"), "/base", Path("/f")) | verl.own_words(plain)
    assert composed.keys() == {f"{section}.{name}" for section, names in KNOWN.items() for name in names.split()}
    values = {"data.train_batch_size": 6, "trainer.total_training_steps": 9, "trainer.n_gpus_per_node": 2}
    values |= {"data.max_prompt_length": 7, "algorithm.adv_estimator": "grpo", "data.max_response_length": 4}
    assert values.items() <= composed.items()


REFUSED = {
    "model.chat=false": "model=hf model.path=... model.chat=true",
    "cluster.gpus=0": "program=verl needs GPUs, here or with cluster=slurm .cluster.gpus=1 or more",
    "rollout.max_tokens=null": "rollout.max_tokens=N",
    "+program.args.data.shuffle=true": "program.args: data.shuffle has no effect",
    "loss=dapo": "loss has no effect with program=verl",
}


@pytest.mark.parametrize("word", REFUSED)
def test_what_verl_would_not_carry_out_is_refused(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=REFUSED[word].replace("+", r"\+")):
        frozen(monkeypatch, word)


def test_an_environment_without_verl_is_named() -> None:
    with pytest.raises(NotAvailable, match=r"program=verl needs verl 0\.9"):
        checked(REGISTRY, *WORDS, "cluster.gpus=1")


def test_lines_are_those_of_a_dump_by_hand(tmp_path: Path) -> None:
    """One problem, two samples: of four words, cut, and of two. The dump of step 2 is complete with its second line."""
    about = {"steps": 3, "held_out": [{}], "config": {"evaluation": {"every": 2, "samples": 2}}}
    about["config"]["rollout"] = {"max_tokens": 4}
    record = {"step": 2, "data": {"actor/pg_loss": 0.5, "critic/score/mean": 0.25, "perf/mfu": 0.1}}
    metrics = {"step": 2, "metrics": {"loss/total": 0.5, "reward/mean": 0.25}}

    def lines() -> Any:
        return verl.lines_of(record, about, tmp_path, lambda text: len(text.split()))

    assert verl.lines_of({**record, "step": 1}, about, tmp_path, len) == [{**metrics, "step": 1}]
    assert lines() is None
    (tmp_path / "validation").mkdir()
    gts = json.dumps({"id": "p7", "prompt": "x", "answer": "1", "source": "s"})
    rows = [{"input": "x", "output": "a b\u2028c d", "gts": gts, "score": 0.0, "step": 2, "outcome": "wrong"}]
    rows += [{"input": "x", "output": "a b", "gts": gts, "score": 1.0, "step": 2, "outcome": "correct"}]
    texts = [json.dumps(row, ensure_ascii=False) for row in rows]  # as verl does: U+2028 ends no line
    (tmp_path / "validation" / "2.jsonl").write_text("\n".join(texts))
    assert lines() is None
    (tmp_path / "validation" / "2.jsonl").write_text("\n".join([*texts, ""]))
    first = {
        "problem": "p7",
        "response": "a b\u2028c d",
        "num_tokens": 4,
        "finished": False,
        "outcome": "wrong",
        "reward": 0,
    }
    second = {"problem": "p7", "response": "a b", "num_tokens": 2, "finished": True, "outcome": "correct", "reward": 1}
    assert lines() == [{"step": 2, "samples": [first, second]}, metrics]


def test_the_reward_is_the_tasks(carried: Carried, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And verl's rows name problem and run. The command is not started."""
    monkeypatch.setattr(command, "train", lambda config, run: seen.append(config.program.argv))
    seen = list[list[str]]()

    def train(config: Any, run: Any) -> None:
        monkeypatch.setattr(run, "base_policy", lambda: Path("/base"))
        own = {"algorithm": {"adv_estimator": "rloo"}, "actor_rollout_ref": {}, "args": {}}
        own = {**config, "program": own, "lr": 0.1, "model": {"system": "Be brief."}, "cluster": {"gpus": 1}}
        own["rollout"] = {**config.rollout, "samples": 2, "temperature": 1.0, "top_p": 1.0, "max_tokens": 4}
        verl.train(type(config)(own), run)
        about = run.attempt_dir / "about.json"
        about.write_text(json.dumps({"config": config}))
        rows = pq.read_table(run.attempt_dir / "verl" / "train.parquet").to_pylist()
        assert [json.loads(row["reward_model"]["ground_truth"])["id"] for row in rows] == [
            problem.id for step in range(1, 5) for problem in run.problems(step)
        ]
        problem = Problem(**json.loads(rows[0]["reward_model"]["ground_truth"]))
        assert rows[0]["prompt"] == [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": problem.prompt},
        ]
        for text, value, outcome in ((problem.answer, 1.0, "correct"), ("PAD", 0.0, "unparsable")):
            truth = rows[0]["reward_model"]["ground_truth"]
            given = {"data_source": "digits", "ground_truth": truth, "extra_info": {"run": str(about)}}
            assert verl.compute_score(solution_str=text, **given) == {"score": value, "outcome": outcome}

    carried.attempt(train)
    assert seen[0][1:3] == ["-m", "rlvr.job.verl"]
    assert 'algorithm.adv_estimator="rloo"' in seen[0]


def test_planning_imports_no_torch() -> None:
    code = "import sys, rlvr.job.verl; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
