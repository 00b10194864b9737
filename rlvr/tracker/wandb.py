"""Send journals of runs to Weights & Biases: `python -m rlvr.tracker.wandb [--out DIR] [--sweep ID ...]`.

A study becomes a project, and a run keeps its id. Online, steps that W&B has are not sent again. Offline
(WANDB_MODE=offline), every call replaces the files of each run that an earlier call wrote; `wandb sync` uploads them.
Needs `pip install 'rlvr[wandb]'`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlvr.tracker import copies
from rlvr.tracker.copies import CopiedRun

MAX_TAG = 64  # characters that W&B allows


def write(run: CopiedRun, options: argparse.Namespace) -> None:
    """Write a run to W&B, or, if W&B is offline, to a folder below `options.out`/wandb.

    Raises ValueError if W&B rejects it, for example without a key.
    """
    import wandb

    try:
        _write(run, options)
    except wandb.Error as error:
        raise ValueError(f"W&B: {error}") from error


def _write(run: CopiedRun, options: argparse.Namespace) -> None:
    import wandb

    options.out.mkdir(parents=True, exist_ok=True)
    for earlier in (options.out / "wandb").glob(f"offline-run-*-{run.run_id}"):
        shutil.rmtree(earlier)
    # What W&B records by itself describes this machine, not the one that trained.
    settings: dict[str, Any] = {f"x_disable_{topic}": True for topic in ("stats", "meta", "machine_info")}
    settings |= {
        "x_save_requirements": False,
        "disable_git": True,
        "save_code": False,
        "console": "off",
        "silent": True,
    }
    wandb_run = wandb.init(
        project=run.study,
        id=run.run_id,
        name=run.name,
        group=run.arm,
        tags=[tag[:MAX_TAG] for tag in run.tags],
        config=run.config,
        dir=options.out,
        resume="allow",
        settings=wandb.Settings(**settings),
    )
    try:
        for record in run.records:
            if record.step >= wandb_run.starting_step:  # 0 for a new run, else the step after its last one
                wandb_run.log({**record.metrics, "_timestamp": record.time}, step=record.step)
    finally:
        wandb_run.finish()


def _view(options: argparse.Namespace) -> str:
    if os.environ.get("WANDB_MODE") == "offline":
        return f"wandb sync {options.out / 'wandb'}/offline-run-*"
    return "https://wandb.ai, or your own server"


TARGET = copies.Target(
    name="wandb",
    about="Send the journals of runs to Weights & Biases (WANDB_API_KEY), or with WANDB_MODE=offline to a folder.",
    write=write,
    view=_view,
    out="the folder of W&B's files (default: $WANDB_DIR, else here)",
    usual_out=Path(os.environ.get("WANDB_DIR") or "."),
)


def main(arguments: Sequence[str] | None = None) -> int:
    return copies.main(TARGET, arguments)


if __name__ == "__main__":
    sys.exit(main())
