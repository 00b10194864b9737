import json

import pytest
import torch
from transformers import Phi3Config, Phi3ForCausalLM, PreTrainedModel

from rlvr.task.prompt_length import context_in
from rlvr.trainer.packer import fitting
from tests.support.factories import make_batch
from tests.support.ranks import start
from tests.trainer.tiny import make_trainer, plain_logp

RANK = """
import json, logging, os, sys
import torch
from rlvr.trainer import distributed, packer
from rlvr.trainer.actor import Actor
from tests.trainer.test_gradient import shifting
from tests.trainer.tiny import make_knobs, qwen2

logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
rank, _, device = distributed.join_group()
result = [rank]
for failing in ([], [1], [0]):  # the ranks on which the model, packed, has other hidden states
    actor = Actor(shifting() if rank in failing else qwen2(), 1.0)
    choice = packer.choose(actor, actor, make_knobs(), 0, device)
    result.append([choice.packing, actor.model.config._attn_implementation])
os.write(1, f"{json.dumps(result)}\\n".encode())
distributed.barrier()
distributed.end_process(0)
"""


def test_a_micro_batch_on_a_cpu_is_limited_by_its_caches() -> None:
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert [fitting(tokens, cpu) for tokens in (100, 8192, 16384)] == [100, 8192, 8192]
    assert fitting(65536, gpu) == 65536


def phi3(short: float = 1.0) -> PreTrainedModel:
    """LongRoPE with factors `short` up to 16 positions and 8 beyond, of 64."""
    rope = {"type": "longrope", "short_factor": [short] * 4, "long_factor": [8.0] * 4}
    sizes = {"vocab_size": 16, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "head_dim": 8}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "pad_token_id": 0, "initializer_range": 0.3}
    positions = {"max_position_embeddings": 64, "original_max_position_embeddings": 16, "rope_scaling": rope}
    torch.manual_seed(0)
    return Phi3ForCausalLM(Phi3Config(**sizes, **heads, **positions)).eval()


@pytest.mark.parametrize("packing", [True, False])
def test_a_short_sequence_is_the_same_beside_a_long_one_up_to_the_length_that_is_allowed(packing: bool) -> None:
    """Prompts of 5 tokens, responses of 2 and n. The trainer's own log-probabilities are those of the short sequence
    alone, by the model's own logits, as long as no sequence exceeds the context that a launch allows."""
    limit = context_in(phi3().config.to_dict())
    assert limit == 16
    beside = dict[int, float]()
    for n in (limit - 5, 30):
        tokens = torch.randint(16, (2, n), generator=torch.Generator().manual_seed(1))
        rows = make_batch(num_groups=2, num_samples=1, num_tokens=n, lengths=[2, n], tokens=tokens)
        trainer = make_trainer(phi3(), max_tokens=n, packing=packing)
        assert trainer.packer.packing is packing
        alone = plain_logp(phi3(), rows.select_rows(torch.tensor([0])))[0]
        beside[n] = float((trainer.logp(rows)[0, :2] - alone.detach()).abs().max())
    assert beside[11] < 1e-5
    assert beside[30] > 0.01  # why a launch refuses what is longer


@pytest.mark.slow
def test_sequences_are_packed_if_they_can_be_on_all_ranks() -> None:
    process = start(2, "-c", RANK)
    output, errors = process.communicate(timeout=200)
    packed, padded = [True, "rlvr_packed"], [False, "sdpa"]
    results = sorted(json.loads(line) for line in output.splitlines())
    assert results == [[rank, packed, padded, padded] for rank in (0, 1)], errors[-4000:]
    warnings = [line for line in errors.splitlines() if "sequences are padded, not packed" in line]
    assert len(warnings) == 4
    assert len(set(warnings)) == 1  # both ranks log the same difference
