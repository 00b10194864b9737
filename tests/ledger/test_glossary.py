import re
from pathlib import Path

import pytest

from rlvr.ledger import glossary
from rlvr.metrics import EVALUATION

ROOT = Path(__file__).parents[2]
ENTRIES = glossary.entries()

BANDIT = ["task=bandit", "model=table", "rollout.prompts=1", "loss=grpo"]
CLASSES = ["task=classes", "model=table", "task.classes=4", "task.contexts=4", "rollout.prompts=4"]
COINS = ["task=coins", "model=coins_tiny", "model.steps=1", "model.held_out=0", "task.test_problems=2"]
STEP = ["steps=1", "rollout.samples=4", "rollout.dynamic_sampling=none", "trainer.updates=1"]
STEP += ["evaluation.every=1", "evaluation.samples=2", "evaluation.k=[1,2]"]
REHEARSED = ["presample.problems=4", "presample.samples=4", "presample.threshold=2", "presample.ratio=1"]
NEEDS = {
    "flowrl": [*COINS, "rollout.prompts=2"],
    "ppo": [*COINS, "rollout.prompts=2"],
    **{name: [*CLASSES, *REHEARSED] for name in ("dph_forward_kl", "dph_js", "dph_alpha", "dph_reverse_kl_pef")},
    **{name: [*CLASSES, *REHEARSED] for name in ("dph_js_definition", "dph_reverse_kl", "dph_none")},
}
LOSSES = sorted(path.stem for path in (ROOT / "conf/loss").glob("*.yaml"))
RUNS = {
    **{loss: [*NEEDS.get(loss, CLASSES), f"loss={loss}"] for loss in LOSSES},
    "two clips": [*CLASSES, "loss=grpo", "loss.dual_clip=3"],
    "a critic": [*COINS, "rollout.prompts=2", "loss=ppo", "trainer.critic=own"],
    "float16": [*CLASSES, "loss=grpo", "trainer.dtype=float16"],
    "a bandit": BANDIT,
    "several answers, both splits": [*COINS, "loss=grpo", "rollout.prompts=2", "evaluation.validation=2"],
    "weights of tokens": [*CLASSES, "loss=grpo", "rollout.logp_old=trainer", "rollout.importance=mask"],
    "weights of responses": [
        *[*CLASSES, "loss=gspo", "rollout.logp_old=trainer"],
        *["rollout.importance=truncate", "rollout.importance_level=sequence"],
    ],
}


def logged(folder: Path, overrides: list[str]) -> set[str]:
    """Names in the journal of a run of one step."""
    from hydra import compose
    from omegaconf import OmegaConf

    from rlvr.config.freeze import frozen_config
    from rlvr.job.loop import TrainingRun
    from rlvr.ledger import layout
    from rlvr.ledger.attempt import StopFlag
    from rlvr.ledger.cause import Cause
    from rlvr.ledger.journal import JournalWriter, read
    from tests.support.composing import composing

    with composing():
        config = OmegaConf.create(frozen_config(compose("run", [*STEP, *overrides]), {}))
    folder = folder / "runs" / re.sub(r"\W", "", "".join(overrides))
    run = TrainingRun(config, folder, None, JournalWriter(folder, 1))
    try:
        assert run.train(StopFlag()) is Cause.OK
    finally:
        run.close()
    return {name for record in read(layout.journal(folder)).records for name in record.metrics}


@pytest.mark.slow
def test_every_metric_of_runs_has_an_entry_and_every_entry_is_logged(tmp_path_factory: pytest.TempPathFactory) -> None:
    from rlvr.rollout.evaluation import Answers, complete_evaluation_metrics, evaluation_metrics
    from tests.rollout.scripted import ScriptedTask
    from tests.rollout.test_evaluation import PartialTask

    home = tmp_path_factory.mktemp("home")
    answers = {"coins": [Answers(("correct", "wrong"), ("5", "7"))]}
    names = {"of rlvr.evaluate": set(complete_evaluation_metrics(ScriptedTask([]), answers, samples=2, k=[1, 2]))}
    graded = {"coins": [Answers(("wrong",), ("5",), (0.25,), (3,), (True,))]}
    names["of a graded task"] = set(evaluation_metrics(PartialTask([]), graded, samples=1, k=[1], prefix=EVALUATION))
    for kind, overrides in RUNS.items():
        names[kind] = logged(home, overrides)
    unexplained = {name: kind for kind, of_kind in names.items() for name in of_kind if glossary.entry(name) is None}
    assert not unexplained, "add these metrics to docs/metrics.md"
    all_names = set().union(*names.values())
    unused = [e.name for e in ENTRIES if not any(glossary.entry(name) is e for name in all_names)]
    assert unused == []


def test_every_row_of_the_page_is_an_entry_and_no_name_has_two() -> None:
    assert len(ENTRIES) == len(re.findall(r"^\| `", glossary.page(), re.MULTILINE))
    names = [re.sub(r"<\w+>", "1", entry.name) for entry in ENTRIES]
    assert [sum(entry.describes(name) for entry in ENTRIES) for name in names] == [1] * len(names)
    assert glossary.entry("evaluation/maze_7x7/avg_at_x") is None


def test_the_command_explains_metrics_and_refuses_what_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert glossary.main(["policy/entropy", "evaluation/maze_7x7/avg_at_8"]) == 0
    names = [line.split(": ")[0] for line in capsys.readouterr().out.splitlines()]
    assert names == ["policy/entropy", "evaluation/maze_7x7/avg_at_8"]
    assert glossary.main(["policy/entropi"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == "policy/entropi: no metric of this name is logged. Did you mean policy/entropy?\n"
    with pytest.raises(SystemExit, match="0"):
        glossary.main(["--help"])
    assert "usage: python -m rlvr.ledger.glossary" in capsys.readouterr().out
