"""Is this the right mathematical answer? math-verify on \\boxed{...}. Imported by a verifying child process only.

math-verify's own timeouts use signal.alarm, which needs the main thread and cannot interrupt one long integer
operation: they are off here, and `rlvr.task.verify.pool` kills the process instead.
"""

from __future__ import annotations

import logging
from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING, Any

from math_verify import parse, verify

if TYPE_CHECKING:
    from rlvr.records import Outcome

# It warns once in each process that its timeouts are off, and reports every parse failure.
logging.getLogger("math_verify").setLevel(logging.CRITICAL)
logging.getLogger("latex2sympy2_extended").setLevel(logging.CRITICAL)


def judge(request: dict[str, str]) -> dict[str, str]:
    """{"gold": right answer, "answer": text to be judged} -> {"outcome": ...}.

    `error`: the right answer itself cannot be parsed. `unparsable`: nothing to compare in the answer.
    """
    return {"outcome": _outcome(request["gold"], request["answer"])}


def _outcome(gold_text: str, answer_text: str) -> Outcome:
    gold = _gold(gold_text)
    if not gold:
        return "error"
    answer = _parse(answer_text)
    if any(_equal(g, a) for g, a in product(gold, answer)):
        return "correct"
    # What math-verify could not parse it returns as plain text, which equals equal text only.
    return "unparsable" if all(isinstance(a, str) for a in answer) else "wrong"


@lru_cache(maxsize=4096)
def _gold(text: str) -> list[Any]:
    return _parse(text if "\\boxed" in text else f"\\boxed{{{text}}}")


def _parse(text: str) -> list[Any]:
    """Sympy expressions, and text where that failed; nothing if there is nothing."""
    try:
        return parse(text, parsing_timeout=0, raise_on_error=True)
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - the grammar and sympy raise anything on malformed text: it is unparsable
        return []


def _equal(gold: Any, answer: Any) -> bool:
    try:
        return bool(verify(gold, answer, timeout_seconds=None, raise_on_error=True))
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - sympy raises anything on expressions that cannot be compared: they are unequal
        return False


judge({"gold": "1", "answer": "\\boxed{2}"})  # the first parse compiles the grammar: before the first clock starts
