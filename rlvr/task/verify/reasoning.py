"""What reasoning-gym's own verifier says of an answer. Imported by a verifying child process only.

Some of its verifiers evaluate what they read (sympy, expressions): the process runs in `rlvr.task.verify.sandbox`.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

import reasoning_gym

CHUNK = 500  # items that share a seed
SOLVED = 1 - 1e-9  # a score that counts as right


def judge(request: dict[str, Any]) -> dict[str, Any]:
    """{"generator", "knobs" (JSON), "seed", "index", "answer"} -> {"outcome", "score"}, score in [0, 1].

    `wrong` with score 0 where the verifier fails on this answer; `error` where it fails on the right one, too.
    """
    source = dataset(request["generator"], request["knobs"], request["seed"])
    item = source[request["index"]]
    try:
        score = float(source.score_answer(request["answer"], item))
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - a verifier may fail in any way on a text that it did not expect
        return {"outcome": "wrong" if _works(source, item) else "error", "score": 0.0}
    score = min(max(score, 0.0), 1.0)
    return {"outcome": "correct" if score >= SOLVED else "wrong", "score": score}


def _works(source: Any, item: dict[str, Any]) -> bool:
    try:
        source.score_answer(item["answer"], item)
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - as above
        return False
    return True


@lru_cache(maxsize=256)
def dataset(generator: str, knobs: str, seed: int) -> Any:
    """`CHUNK` items of a generator. knobs: a JSON object, the generator's own configuration."""
    return reasoning_gym.create_dataset(generator, seed=seed, size=CHUNK, **json.loads(knobs))
