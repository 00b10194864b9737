"""`python -m analysis bundle` and `import`: a study as one file, and the samples of other trainers as such a file."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rlvr.ledger import layout, terminal
from rlvr.ledger.sweeps import Ledger

if TYPE_CHECKING:
    from analysis.frames.frames import Frames
    from analysis.frames.samples import Response

BUNDLE_EXAMPLES = """\
examples:
  python -m analysis bundle                                 the newest study, to <study>.rlvr
  python -m analysis bundle study=eta --out eta.rlvr        one study
  python -m analysis bundle sweep=first-try                 one sweep, to <study>@first-try.rlvr
  python -m analysis bundle grpo-s0 lad-hd-eta0.5-s0        these runs, by name or id
  python -m analysis eta.rlvr                               its tables and page, anywhere, without the runs
"""
IMPORT_EXAMPLES = """\
examples:
  python -m analysis import val_dumps/ --format verl --arm grpo --seed 0 --out grpo-0.rlvr
  python -m analysis import completions/ --format trl --arm 'loss=dapo lr=1e-6' --reward accuracy_reward
  python -m analysis grpo-0.rlvr dapo-0.rlvr                compares them, paired by problem
"""


MIXED_CODE_HELP = "average the runs of an arm even if their code was not the same"


def bundle(arguments: Sequence[str]) -> None:
    """Run `python -m analysis bundle`. Raises LookupError if there is no such study, sweep or run."""
    parser = terminal.Parser(
        "python -m analysis bundle",
        description="Write one file from which anyone rebuilds a study's tables and page, without its runs.",
        epilog=BUNDLE_EXAMPLES,
    )
    parser.add_argument(
        "what", nargs="*", help="a study, a sweep, or runs; study=NAME, sweep=ID (default: newest study)"
    )
    parser.add_argument("--home", type=Path, help=terminal.HOME_HELP)
    parser.add_argument("--out", type=Path, help="the file (default: as in the examples, here)")
    parser.add_argument("--mixed-code", action="store_true", help=MIXED_CODE_HELP)
    options = parser.parse_args(arguments)
    frames, name = chosen(home(options.home), options.what, mixed_code=options.mixed_code)
    _write(frames, _file(options.out or Path(folder_name(name))), " --mixed-code" if options.mixed_code else "")


def import_dump(arguments: Sequence[str]) -> None:
    """Run `python -m analysis import`. Raises LookupError for a dump that cannot be read."""
    from analysis.frames import dumps

    parser = terminal.Parser(
        "python -m analysis import",
        description="Make a bundle of the evaluation samples of one run of another trainer (docs/analysis.md).",
        epilog=IMPORT_EXAMPLES,
    )
    parser.add_argument("dump", type=Path, help="a .jsonl or .parquet file, or a folder of them")
    parser.add_argument(
        "--format", required=True, choices=dumps.FORMATS, help="the trainer of the dump; rlvr: our own schema"
    )
    parser.add_argument(
        "--arm", required=True, help="a name, or knobs as in 'loss=grpo lr=1e-6': runs of one arm agree"
    )
    parser.add_argument("--seed", type=int, default=0, help="of this run (default: 0)")
    parser.add_argument("--source", default="", help="the benchmark, where the rows do not name theirs")
    parser.add_argument("--reward", default="", metavar="NAME", help="the column that judges (default: the format's)")
    parser.add_argument("--correct-from", type=float, metavar="X", help="the reward from which on an answer is right")
    parser.add_argument("--out", type=Path, help="the file (default: <arm>-s<seed>.rlvr, here)")
    options = parser.parse_args(arguments)
    if not options.arm.strip():
        raise LookupError("--arm is empty. Pass a name, or knobs as in 'loss=grpo lr=1e-6'.")
    if options.seed < 0:
        raise LookupError(f"--seed {options.seed}: a seed is a whole number from 0.")
    if options.correct_from is not None and not math.isfinite(options.correct_from):
        raise LookupError(f"--correct-from {options.correct_from}: no reward can be compared to it. Pass a number.")
    arm = _as_typed(options.arm) if "=" in options.arm else options.arm
    dump = dumps.Dump(
        options.dump, options.format, arm, options.seed, options.source, options.reward, options.correct_from
    )
    frames = dumps.frames(dump)
    file = _file(options.out or Path(folder_name(frames.rows[0].name)))
    if file.exists():
        raise LookupError(f"{file} exists already. Pass another name with --out, or remove it.")
    _write(frames, file)


def home(typed: Path | None) -> Path:
    """The directory of runs/, of `--home` if that was typed. Raises LookupError if it does not exist."""
    try:
        return terminal.home(typed)
    except ValueError as error:
        raise LookupError(str(error)) from None


def _as_typed(arm: str) -> str:
    """The knobs of an arm as they are typed, `lr=1e-6`, from these or from a label, `lr = 1e-6`."""
    from analysis.scores import labels

    try:
        knobs = labels.parse(arm)
    except ValueError as error:
        raise LookupError(f"--arm: {error}") from None
    if "seed" in knobs:
        raise LookupError(f"--arm {arm!r}: the seed goes in --seed. With one in --arm, each seed would be another arm.")
    return " ".join(f"{key}={value.replace(' ', '_')}" for key, value in knobs.items())


def chosen(root: Path, what: Sequence[str], *, mixed_code: bool) -> tuple[Frames, str]:
    """(the frames of these words, newest study without any; a title). Raises LookupError if there are none."""
    from analysis.frames import load

    listing, ledger = load.catalogue(root), Ledger(root)
    frames = partial(load.frames, listing, mixed_code=mixed_code)
    word = what[0] if len(what) == 1 else ""
    key, _, name = word.partition("=")
    if not what or word in listing.studies():
        found = frames(study=word or None)
    elif key == "study":
        found = frames(study=name)
    elif key == "sweep" or ledger.resolve_sweeps(word):
        found = frames(sweep=name or word)
    else:
        try:
            found = frames(runs=[ledger.resolve_run(run) for run in what])
        except ValueError as error:
            known = ", ".join(listing.studies()) or "none"
            raise LookupError(
                f"{error} Studies here: {known} (bundle study=NAME; of a sweep, bundle sweep=ID)."
            ) from None
        return found, joined([run.name for run in found.rows])
    return found, found.title


def _write(frames: Frames, file: Path, needed: str = "") -> None:
    from analysis.frames.bundle import write

    write(frames, file, _shown(frames))
    size = file.stat().st_size
    printed = f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.1f} kB"
    print(f"{file} ({printed}). For anyone who has it: python -m analysis {file}{needed}")


def _shown(frames: Frames) -> dict[tuple[str, int], list[Response]]:
    """By run and step, the samples that the page shows."""
    from analysis.scores.excerpt import excerpts

    shown: dict[tuple[str, int], list[Response]] = {}
    for excerpt in excerpts(frames):
        for of_run in excerpt.shown:
            for evaluation in of_run.evaluations:
                for responses in evaluation.responses.values():
                    shown.setdefault((of_run.run_id, evaluation.step), []).extend(responses)
    return shown


def _file(out: Path) -> Path:
    out = out.expanduser()
    return out if out.suffix == layout.BUNDLE else out.with_name(out.name + layout.BUNDLE)


# --- names of the folders of reports and of the files of bundles


def folder_name(title: str) -> str:
    """The title of a study, or of one of its sweeps, as the name of a folder: no two titles have the same."""
    from rlvr.records import name_part  # not above: it imports NumPy

    return "@".join(map(name_part, title.split(", sweep ", 1)))


def joined(names: Sequence[str]) -> str:
    """Names joined for a file name. Of more than three: the first, the number of the others, and a hash of all."""
    if len(names) <= 3:
        return "-".join(names)
    return f"{names[0]}-and-{len(names) - 1}-more-{hashlib.sha256(repr(list(names)).encode()).hexdigest()[:8]}"
