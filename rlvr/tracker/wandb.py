"""The journals of runs as runs of Weights & Biases: `python -m rlvr.tracker.wandb [--out DIR] [--sweep ID ...]`.

A study is a project, a run a run with its own id. Where W&B is online, steps that it has are not sent again. Offline
(WANDB_MODE=offline), every call writes each run anew, in the place of what it wrote before; `wandb sync` uploads it.
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
from rlvr.tracker.copies import Copied

MAX_TAG = 64  # characters that W&B takes


def write(run: Copied, options: argparse.Namespace) -> None:
    """Write a run: to W&B, or to a folder below `options.out`/wandb where W&B is offline.

    Raises ValueError if W&B refuses, for want of a key for instance.
    """
    import wandb

    try:
        _write(run, options)
    except wandb.Error as error:
        raise ValueError(f"W&B: {error}") from error


def _write(run: Copied, options: argparse.Namespace) -> None:
    import wandb

    options.out.mkdir(parents=True, exist_ok=True)
    for earlier in (options.out / "wandb").glob(f"offline-run-*-{run.run_id}"):
        shutil.rmtree(earlier)
    # What W&B finds out by itself is of the machine that ships, not of the one that trained.
    quiet: dict[str, Any] = {f"x_disable_{each}": True for each in ("stats", "meta", "machine_info")}
    quiet |= {"x_save_requirements": False, "disable_git": True, "save_code": False, "console": "off", "silent": True}
    there = wandb.init(
        project=run.study,
        id=run.run_id,
        name=run.name,
        group=run.arm,
        tags=[tag[:MAX_TAG] for tag in run.tags],
        config=run.config,
        dir=options.out,
        resume="allow",
        settings=wandb.Settings(**quiet),
    )
    try:
        for record in run.records:
            if record.step >= there.starting_step:  # 0 of a run that is new there, else the one after its last
                there.log({**record.metrics, "_timestamp": record.time}, step=record.step)
    finally:
        there.finish()


def _told(options: argparse.Namespace) -> str:
    if os.environ.get("WANDB_MODE") == "offline":
        return f"wandb sync {options.out / 'wandb'}/offline-run-*"
    return "https://wandb.ai, or your own server"


TARGET = copies.Target(
    name="wandb",
    about="Send the journals of runs to Weights & Biases (WANDB_API_KEY), or with WANDB_MODE=offline to a folder.",
    write=write,
    told=_told,
    out="the folder of W&B's files (default: $WANDB_DIR, else here)",
    usual_out=Path(os.environ.get("WANDB_DIR") or "."),
)


def main(arguments: Sequence[str] | None = None) -> int:
    return copies.main(TARGET, arguments)


if __name__ == "__main__":
    sys.exit(main())
