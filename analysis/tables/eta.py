"""The η table: one block per divergence, one row per 1/η, beside the base policy and GRPO (LAD, table 6)."""

import shlex
from collections.abc import Iterable, Sequence

import pandas as pd

from analysis.frames.frames import Frames
from analysis.paper.printed import published
from analysis.report.cells import BASE, Block, Row, columns, fill
from analysis.report.table import Table, with_notes
from analysis.scores.arm import Arm
from analysis.scores.comparable import Comparable, lad_settings, shown
from analysis.scores.labels import inverse
from rlvr.ledger.tags import redact

QUESTION = "How does the temperature η of LAD's target e^{A/η} change accuracy (avg@k) and coverage (pass@k)?"
NEEDS = "two values of η of LAD, evaluated on problems"
OF_LAD = ("loss", "loss.", "divergence", "eta", "beta", "study")  # what typed words of LAD say of LAD alone
_LAUNCH = ("python", "-m", "rlvr.run")


def table(frames: Frames) -> Table | None:
    """None without NEEDS."""
    settings = lad_settings(frames, etas=2)
    if not settings:
        return None
    blocks = [fill(frames, _blocks(frames, s), columns(s.metrics, s.sources)) for s in settings]
    cells = pd.concat(blocks, ignore_index=True)
    paper = published("lad", 6)
    notes = ["Runs count at their last evaluation; no checkpoint is selected."]
    if all(len(s.sources) == 1 for s in settings):
        notes.append(f"One benchmark ({settings[0].sources[0]}): there is no average to take.")
    return with_notes(Table("eta", "η ablation", QUESTION, cells, shown(settings), tuple(notes), (paper,)), frames)


def _blocks(frames: Frames, setting: Comparable) -> Iterable[Block]:
    """A block per divergence of one setting. Every block repeats the reference rows, so that it can be read alone."""
    for divergence in dict.fromkeys(a.divergence for a in setting.lad):
        references = reference_rows(frames, setting)
        arms = sorted((a for a in setting.lad if a.divergence == divergence), key=lambda a: (1 / a.eta, a.variant))
        rows = [Row(a.named(f"1/η = {inverse(a.eta)}"), (a,), against=reference(setting)) for a in arms]
        yield Block(setting.titled(f"loss=lad divergence={divergence}"), (*references, *rows))


def reference_rows(frames: Frames, setting: Comparable) -> list[Row]:
    """The rows of the base policy and of GRPO; without a GRPO run, an empty row with the command that starts one."""
    grpo = [Row(arm.named(arm.loss), (arm,)) for arm in setting.grpo]
    absent = Row("grpo", hint=adding_command(frames, setting.lad, ["loss=grpo"], without=OF_LAD))
    return [Row(BASE, setting.arms, base=True), *(grpo or [absent])]


def reference(setting: Comparable) -> str:
    """The label of the GRPO row that others are compared to: the one without variants, else the only one, else ""."""
    names = [arm.named(arm.loss) for arm in setting.grpo]
    return "grpo" if "grpo" in names else names[0] if len(names) == 1 else ""


def adding_command(frames: Frames, to: Sequence[Arm], added: Sequence[str], *, without: Sequence[str]) -> str:
    """The command that adds runs to the study of these arms, in their settings and under their seeds.

    A study that is a name (`name=`) only takes sweeps that contain its earlier runs: its command, with further arms.
    added: words of the new runs. without: keys of words that they do not take over, or groups of keys (`loss.`).
    """
    runs = [run for arm in to for run in arm.runs]
    values = [dict(o.split("=", 1) for o in run.typed if "=" in o) for run in runs]
    typed = {key: list(dict.fromkeys(of_run.get(key) for of_run in values)) for key in (values[0] if values else {})}
    own = {*without, "seed"}
    names = {key: key.lstrip("+") for key in typed}
    general = [key for key, name in names.items() if own.isdisjoint((name, name.partition(".")[0] + "."))]
    named = next((s for s in reversed(frames.sweeps) if s.command and s.name == s.study != "" and not s.trials), None)
    if named is None or "study" in typed:
        words = [f"{key}={','.join(map(str, typed[key]))}" for key in general if None not in typed[key]]
        seeds = ",".join(map(str, sorted({run.seed for run in runs})))
        return shlex.join([*_LAUNCH, "-m", *words, *added, f"seed={seeds}"])
    words = [word for word in shlex.split(redact(named.command))[len(_LAUNCH) :] if word not in ("-m", "--multirun")]
    before = [word.removeprefix("also=[").removesuffix("]") for word in words if word.startswith("also=[")]
    further = ",".join(filter(None, [*before, f'"{" ".join(added)}"']))
    return shlex.join([*_LAUNCH, "-m", *(w for w in words if not w.startswith("also=")), f"also=[{further}]"])
