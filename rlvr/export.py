"""A checkpoint of a run as a directory in Hugging Face format, for transformers, vLLM or `model=hf model.path=…`.

python -m rlvr.export RUN DIRECTORY                                  the newest checkpoint; RUN: a run's id or name
python -m rlvr.export RUN DIRECTORY --best --dtype bfloat16          the best one (checkpoint.keep_best)
python -m rlvr.export runs/RUN_ID/checkpoints/step-00000040 DIRECTORY
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from rlvr.ledger import layout, terminal
from rlvr.ledger.checkpoints import best_checkpoint, checkpoints
from rlvr.ledger.sweeps import Ledger


def checkpoint_of(source: str, *, best: bool) -> Path:
    """The checkpoint at a path, or of a run by its directory, id or name. Raises ValueError if there is none.

    best: of a run, that of its best evaluation, not the newest.
    """
    path = Path(source).expanduser()
    if not path.exists():
        ledger = Ledger(layout.home())
        path = ledger.run_dir(ledger.resolve_run(source))
    if layout.trainer_state(path).is_file():
        if best:
            raise ValueError(
                f"--best chooses among a run's checkpoints, and {path} is one. Drop --best, or name its run."
            )
        return path
    directory = layout.checkpoints(path)
    checkpoint = best_checkpoint(directory) if best else (checkpoints(directory) or [None])[-1]
    if checkpoint is None:
        kind = "checkpoint of a best evaluation (checkpoint.keep_best=true keeps it)" if best else "checkpoint"
        raise ValueError(f"{path} is no checkpoint, and no run with a {kind}. Pass the id or the name of a run.")
    return checkpoint


def main(arguments: Sequence[str] | None = None) -> int:
    parser = terminal.Parser(prog="python -m rlvr.export", description=__doc__)
    parser.add_argument("source", metavar="RUN", help="id or name of a run, or the directory of a run or checkpoint")
    parser.add_argument("directory", type=Path, metavar="DIRECTORY", help="where to write; must not exist yet")
    parser.add_argument("--best", action="store_true", help="the checkpoint of the best evaluation, not the newest")
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], default="float32")
    options = parser.parse_args(arguments)
    try:
        checkpoint = checkpoint_of(options.source, best=options.best)
        from rlvr.job.policy import export  # imports torch, which an error of the typed words does not need

        export(checkpoint, options.directory, dtype=options.dtype)
    except (ValueError, OSError) as error:
        print(f"rlvr.export: {terminal.one_line(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return terminal.INTERRUPTED
    print(f"{checkpoint} is now a model: {options.directory}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
