"""The loop around tinker of docs/programs.md, with tinker's own types and a stand-in for its service."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from rlvr.config.freeze import frozen_config
from rlvr.config.registry import Registry
from rlvr.job import process
from rlvr.ledger import layout
from rlvr.ledger.cause import Cause
from rlvr.ledger.runs import to_yaml, write_run
from rlvr.model.tokenizer import word_tokenizer
from tests.end_to_end.test_extending import written
from tests.job.test_trl import metrics

tinker = pytest.importorskip("tinker")
pytestmark = pytest.mark.slow  # tinker takes seconds to import

TASK = '''
from rlvr.records import Problem, binary


class Third:
    """Any prompt is answered by w3, whatever follows it."""

    name, max_tokens = "third", 2

    def size(self, split):
        return 8

    def problem(self, split, index):
        return Problem(f"{split}-{index}", f"w{index}", source="third")

    def reward(self, answers):
        return [binary("correct" if text.startswith("w3") else "wrong") for _, text in answers]

    def close(self): ...
'''
WORDS = ["program=tinker", "program.chat=false", "task=third", "steps=20", "lr=0.5", "checkpoint.every=4"]
WORDS += ["rollout.prompts=8", "rollout.samples=16", "rollout.max_tokens=2", "evaluation.samples=4"]
WORDS += ["evaluation.every=20", "evaluation.k=[1,4]"]


class Done:
    def __init__(self, value: Any) -> None:
        self.result = lambda: value


class Service:
    """Its policy is a table of logits of the next token by the last one. Its loss is importance_sampling's sum."""

    tokenizer = word_tokenizer([f"w{i}" for i in range(8)] + ["end"], "end")
    states: ClassVar = dict[str, Any]()

    def create_lora_training_client(self, base_model: str, *, rank: int, seed: int) -> Done:
        assert (base_model, rank, seed) == ("Qwen/Qwen3-4B-Instruct-2507", 32, 0)
        size = len(self.tokenizer)
        return Done(Client(torch.zeros(size, size, dtype=torch.float64)))

    def create_training_client_from_state_with_optimizer(self, path: str) -> Done:
        table, moments = self.states[path]
        return Done(Client(table.clone(), moments))


class Client:
    fails_at: ClassVar[int | None] = None

    def __init__(self, table: torch.Tensor, moments: Any = None) -> None:
        self.table = table.requires_grad_()
        self.optimiser = torch.optim.Adam([self.table])
        self.updates = 0
        if moments:
            self.optimiser.load_state_dict(moments)

    def get_tokenizer(self) -> Any:
        return Service.tokenizer

    def save_weights_and_get_sampling_client(self) -> Done:
        return Done(Sampler(self.table.detach().clone()))

    def forward_backward(self, data: Sequence[Any], loss_fn: str) -> Done:
        assert loss_fn == "importance_sampling"
        loss = torch.zeros((), dtype=torch.float64)
        for one in data:
            targets, old, advantage = (
                torch.tensor(one.loss_fn_inputs[name].tolist()) for name in ("target_tokens", "logprobs", "advantages")
            )
            logp = self.table[one.model_input.to_ints()].log_softmax(-1).gather(-1, targets[:, None]).squeeze(-1)
            assert torch.allclose(logp[advantage != 0], old[advantage != 0].double(), atol=1e-6)  # on policy
            loss = loss - ((logp - old).exp() * advantage).sum()
        loss.backward()
        return Done(tinker.types.ForwardBackwardOutput("", [], {"loss:sum": float(loss.detach())}))

    def optim_step(self, params: Any) -> Done:
        self.updates += 1
        if self.updates == self.fails_at:
            raise ConnectionError("the service fails")
        self.optimiser.param_groups[0].update(lr=params.learning_rate, betas=(params.beta1, params.beta2))
        self.optimiser.step()
        self.optimiser.zero_grad()
        return Done(None)

    def save_state(self, name: str, *, overwrite: bool) -> Done:
        assert overwrite
        moments = {**self.optimiser.state_dict()}
        moments["state"] = {0: {k: v.clone() for k, v in moments["state"][0].items()}} if moments["state"] else {}
        Service.states[f"tinker://{name}"] = (self.table.detach().clone(), moments)
        return Done(type("Saved", (), {"path": f"tinker://{name}"}))


class Sampler:
    def __init__(self, table: torch.Tensor) -> None:
        self.logp = table.log_softmax(-1)

    def sample(self, prompt: Any, count: int, params: Any) -> Done:
        dice, end = torch.Generator().manual_seed(params.seed), Service.tokenizer.eos_token_id
        sequences = list[Any]()
        for _ in range(count):
            ids = list(prompt.to_ints())
            begin = len(ids)
            while len(ids) < begin + params.max_tokens and (len(ids) == begin or ids[-1] != end):
                ids.append(int(torch.multinomial(self.logp[ids[-1]].exp(), 1, generator=dice)))
            logp = np.array([float(self.logp[a, b]) for a, b in zip(ids[begin - 1 :], ids[begin:], strict=False)])
            reason = "stop" if ids[-1] == end else "length"
            sequences.append(tinker.types.SampledSequence(reason, "", np.array(ids[begin:], np.int32), logp))
        return Done(tinker.types.SampleResponse(sequences))


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = written(tmp_path, "programs.md")
    (folder / "third.py").write_text(TASK)
    (folder / "task").mkdir()
    (folder / "task" / "third.yaml").write_text("_target_: third.Third\n")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(tinker, "ServiceClient", Service)
    yield folder
    for name in ("tinker_loop", "third"):
        sys.modules.pop(name, None)


def carried(mine: Path, name: str) -> Path:
    run_dir = mine.parent / "runs" / name
    run_dir.mkdir(parents=True)
    plain = frozen_config(*Registry([str(mine)]).compose(WORDS))
    write_run(run_dir, to_yaml(plain), {"name": name, "overrides": [], "import_paths": [str(mine)]})
    return run_dir


def test_a_response_is_shifted_by_one_and_its_prompt_has_no_advantage(mine: Path) -> None:
    import tinker_loop  # pyright: ignore[reportMissingImports]

    made = tinker_loop.datum([5, 6, 7], [8, 9], [-1.0, -2.0], 0.5)
    assert made.model_input.to_ints() == [5, 6, 7, 8]
    expected = {"target_tokens": [6, 7, 8, 9], "logprobs": [0, 0, -1, -2], "advantages": [0, 0, 0.5, 0.5]}
    assert {name: tensor.tolist() for name, tensor in made.loss_fn_inputs.items()} == expected


def test_the_loop_learns_and_goes_on_from_the_services_state(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, killed = carried(mine, "whole"), carried(mine, "killed")
    assert process.run(whole) == (Cause.OK, "")
    of_whole = metrics(whole)
    assert list(of_whole) == list(range(21))
    # Uniform over nine words, w3 is drawn in 11 %: of 32 samples 4 ± 2, within two deviations.
    assert of_whole[0]["evaluation/third/avg_at_4"] < 0.26
    assert of_whole[20]["evaluation/third/avg_at_4"] > 0.7

    monkeypatch.setattr(Client, "fails_at", 6)
    assert process.run(killed)[0] is not Cause.OK
    monkeypatch.setattr(Client, "fails_at", None)
    assert process.run(killed) == (Cause.OK, "")
    assert "resuming from step-00000004" in layout.log(layout.attempt(killed, 2)).read_text()
    assert metrics(killed) == of_whole
