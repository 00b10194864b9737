"""Rows of the common table from benchmarks that print lines of another form: one function per file."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

Row = dict[str, Any]


def rollout(*, quick: bool) -> Iterator[Row]:
    """New tokens per second with log-probs, beside `generate`."""
    from tests.bench import rollout as bench

    if quick:
        bench.PROMPTS, bench.SAMPLES, bench.NEW_TOKENS = 2, 4, 8
    for dtype, speeds in bench.bench(1 if quick else 3).items():
        yield {
            "name": f"rollout, {dtype}",
            "value": speeds["native_tokens_per_s"],
            "unit": "tokens/s",
            "peer": "transformers generate",
            "peer_value": speeds["generate_tokens_per_s"],
            "ratio": speeds["ratio"],
            "target": 2.0,
        }


def train(*, quick: bool) -> Iterator[Row]:
    """Tokens per second of forward, backward and AdamW, beside padded rows; and its share of the GEMM rate."""
    from tests.bench import train as bench

    tiny = ["--repeats", "1", "--groups", "2", "--samples", "4", "--matrix", "64"] if quick else []
    lines = _printed(bench.main, *tiny)
    by_case = {(line["dtype"], line["lengths"], line["layout"]): line for line in lines if line["bench"] == "train"}
    for dtype in ("float32", "bfloat16"):
        for lengths in ("equal", "mixed"):
            ours, padded = by_case[dtype, lengths, "shared"], by_case[dtype, lengths, "rows"]
            yield {
                "name": f"training, {lengths} lengths, {dtype}",
                "value": ours["tokens_per_s"],
                "unit": "tokens/s",
                "peer": "a padded row per response",
                "peer_value": padded["tokens_per_s"],
                "ratio": padded["seconds"] / ours["seconds"],
                "target": None,
            }
        packed = by_case[dtype, "equal", "packed"]
        yield {
            "name": f"training, linear layers, {dtype}",
            "value": packed["gemm_share"] * packed["gemm_gflops"],
            "unit": "GFLOP/s",
            "peer": "square matrix product",
            "peer_value": packed["gemm_gflops"],
            "ratio": packed["gemm_share"],
            "target": 0.55 if dtype == "float32" else None,
        }


def tracker(*, quick: bool) -> Iterator[Row]:
    """Milliseconds that tracking costs a training step, beside its limit."""
    from tests.bench import tracker as bench

    if quick:
        bench.STEPS = 200
    (speeds,) = _printed(bench.main)
    yield {
        "name": "tracking 50 metrics",
        "value": speeds["median_ms"],
        "unit": "ms",
        "peer": "limit",
        "peer_value": speeds["target_ms"],
        "ratio": speeds["target_ms"] / speeds["median_ms"],
        "target": 1.0,
    }


def _printed(main: Callable[[], None], *arguments: str) -> list[Row]:
    """The JSON lines that a program prints."""
    sys.argv = [main.__module__, *arguments]
    with contextlib.redirect_stdout(io.StringIO()) as out:
        main()
    return [json.loads(line) for line in out.getvalue().splitlines()]
