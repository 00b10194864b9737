"""A row of the table, and how two sides are timed."""

import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def row(
    name: str,
    value: float,
    unit: str,
    peer: str | None = None,
    peer_value: float | None = None,
    *,
    smaller: bool = False,
    target: float | None = None,
) -> Row:
    """Our measurement beside its peer's. ratio: by which factor ours is better; target: the ratio to reach.

    smaller: whether the smaller of the two values is the better one."""
    ratio = None
    if peer_value is not None:
        ratio = peer_value / value if smaller else value / peer_value
    about = {"name": name, "value": value, "unit": unit, "peer": peer, "peer_value": peer_value}
    return {**about, "ratio": ratio, "target": target}


def timed(work: Callable[[], object]) -> Callable[[], float]:
    """`work`, as a function that returns the seconds that it took."""

    def seconds() -> float:
        began = time.perf_counter()
        work()
        return time.perf_counter() - began

    return seconds


def in_turn(sides: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """Median of the seconds that each side returns. The sides alternate, so that a busy machine slows all of them
    alike; a first round warms up."""
    turns = [{name: side() for name, side in sides.items()} for _ in range(1 + rounds)][1:]
    return {name: statistics.median(turn[name] for turn in turns) for name in sides}


def put_between(page: Path, begin: str, end: str, text: str) -> None:
    """Replace what a page has between two marks."""
    before, rest = page.read_text().split(begin, 1)
    page.write_text(f"{before}{begin}{text}{end}{rest.split(end, 1)[1]}")
