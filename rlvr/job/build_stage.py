"""Builds one stage that a run starts from, before the run itself: a base policy, or its pre-sampled answers.

`python -m rlvr.job.build_stage RUN_DIR STAGE` builds the stage, and the stages that it needs, and exits. If there are
several ranks (rlvr/job/ranks.py), their engines divide the problems of pre-sampled answers.
"""

import contextlib
import logging
import os
import signal
import sys
from pathlib import Path

from omegaconf import OmegaConf

from rlvr.config import schema, targets
from rlvr.config.checks import component_error
from rlvr.job.cause import cause_of
from rlvr.job.parts import Parts
from rlvr.job.policy import base_policy
from rlvr.ledger import layout
from rlvr.ledger.runs import check_owner, read_config, read_info
from rlvr.ledger.stages import presampling_engine
from rlvr.trainer import distributed


def build(run_dir: Path, stage_id: str) -> None:
    """Build a stage of a run. Raises ValueError if the run does not start from that stage, and errors of the build."""
    schema.register()
    check_owner(run_dir)
    plain = schema.with_null_knobs(read_config(run_dir))
    targets.make_importable(read_info(run_dir).import_paths, plain)
    config = OmegaConf.create(plain)
    config.rollout.engine = presampling_engine(plain["rollout"]["engine"])
    store = layout.stages_beside(run_dir)
    is_one_of_several_ranks = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if is_one_of_several_ranks or base_policy(config, store).name != stage_id:
        with contextlib.closing(Parts(config, store)) as parts:
            parts.samples()
    if not (store / stage_id).is_dir():
        raise ValueError(f"run {run_dir.name} does not start from stage {stage_id}: was the code changed meanwhile?")


def main() -> None:
    """Exit codes: those of rlvr/ledger/cause.py. The last line of the output is the error."""
    if len(sys.argv) != 3:
        print(__doc__)
        sys.exit(2)
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # warning of the time limit: the stage may still be ready in time
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stdout)
    try:
        build(Path(sys.argv[1]), sys.argv[2])
    except Exception as error:  # broad as in rlvr/job/process.py: every end gets a cause
        logging.exception("the stage failed")
        cause = component_error(error)
        print(" ".join(f"{type(cause).__name__}: {cause}".split()), flush=True)
        distributed.end_process(cause_of(cause).code, alone=True)
    distributed.end_process(0)


if __name__ == "__main__":
    main()
