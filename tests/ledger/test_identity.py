from typing import Any

import pytest

from rlvr.ledger.identity import identity, run_id

CONFIG: dict[str, Any] = {
    "seed": 0,
    "loss": {"_target_": "lad", "eta": 0.5},
    "rollout": {"samples": 8, "engine": {"_target_": "vllm", "dtype": "float32", "python": "/a", "canary": 0.1}},
    "trainer": {"lr": 1e-6, "betas": [0.9, None]},
    "cluster": {"ranks": 1},
    "choices": {"loss": "lad"},
}


def changed(**groups: Any) -> dict[str, Any]:
    merged = {k: {**CONFIG[k], **v} if isinstance(v, dict) and k in CONFIG else v for k, v in groups.items()}
    return {**CONFIG, **merged}


@pytest.mark.parametrize(
    "same",
    [
        changed(cluster={"ranks": 4}),
        changed(tracker={"uri": "http://there"}, checkpoint={"every": 9}, keep_rollouts=3, zip=["eta,lr"]),
        changed(presample=None, divergence=None),
        changed(trainer={"lora_rank": None, "reference": {"every": None}}),
        changed(rollout={"engine": {**CONFIG["rollout"]["engine"], "python": "/b", "timeout_s": 3, "seed": None}}),
    ],
    ids=["places", "what is kept", "groups not chosen", "knobs that are null", "places of the engine"],
)
def test_null_values_and_settings_without_effect_on_results_do_not_change_the_identity(same: dict[str, Any]) -> None:
    assert identity(same) == identity(CONFIG)
    assert run_id(same) == run_id(CONFIG)


@pytest.mark.parametrize(
    "other",
    [changed(seed=1), changed(trainer={"lora_rank": 8}), changed(trainer={"betas": [0.9, 0.99]}), changed(eta=0.0)],
)
def test_settings_that_may_change_a_result_change_the_identity(other: dict[str, Any]) -> None:
    assert run_id(other) != run_id(CONFIG)


def test_a_run_id_is_12_hexadecimal_digits_of_the_identity_and_not_of_the_order() -> None:
    plain = {"seed": 0, "loss": {"eta": 0.5, "mode": None}, "cluster": {"ranks": 1}}
    assert run_id(plain) == "9a91caedbee8"  # printf '{"loss": {"eta": 0.5}, "seed": 0}' | sha256sum
    assert run_id(dict(reversed(CONFIG.items()))) == run_id(CONFIG)
