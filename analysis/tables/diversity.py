"""The table of what `python -m rlvr.diagnostics.diversity` measured of evaluations: words, embeddings, judges, cost."""

from analysis.frames.frames import Frames
from analysis.paper.printed import published
from analysis.report.cells import cells_frame, row_records
from analysis.report.table import Format, Table, interval_notes, seeds_of
from analysis.scores.arm import settings
from analysis.scores.policy_evaluations import diversity, evaluations, label
from analysis.scores.selection import ordered

QUESTION = "How different are the responses of each policy, and what does a right one cost?"
NEEDS = "policies of `python -m rlvr.evaluate`, measured by `python -m rlvr.diagnostics.diversity`"
SHARES = ("distinct-", "percentile")  # printed in percent
COSTS = "tokens"


def table(frames: Frames) -> Table | None:
    """None without NEEDS."""
    records = []
    names: dict[str, None] = {}
    for setting, of_setting in settings(evaluations(frames)).items():
        for arm in ordered(of_setting, frames.swept):
            for source, cells in diversity(frames, arm).items():
                names |= dict.fromkeys(cells)
                records += row_records(", ".join(p for p in (setting, source) if p), label(arm), cells)
    if not records:
        return None
    cells = cells_frame(records)
    better = {name: -1 if name.startswith(COSTS) else 1 for name in names}
    formats = {name: Format() if name.startswith(SHARES) else Format(1.0, None, "", better[name]) for name in names}
    notes = (
        "of 16: measured on the first 16 samples of each problem. S_div: 1 - mean cosine of all pairs of embeddings, "
        "averaged over problems (PACS, Eq. 13 and 14). Rule and judge: LAD's scale of 1 (one approach) to 5 (none "
        "dominates).",
        *interval_notes(seeds_of(cells)),
    )
    paper = (published("lad", 4), published("pacs", 3))
    return Table("diversity", "Diversity", QUESTION, cells, ("",), notes, paper, formats=formats)
