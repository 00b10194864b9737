"""Every logged metric, as docs/metrics.md explains it: its name in `metrics.jsonl`, its unit and its meaning.

python -m rlvr.ledger.glossary [NAME...]     # prints the whole page, or the entries of some metrics
"""

import functools
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from rlvr.ledger import terminal
from rlvr.ledger.pages import pages
from rlvr.metrics import EVALUATION, VALIDATION

# Placeholders in names, written <like this>, and the pattern of the text that takes their place.
VARIABLE = {"benchmark": r"[\w.-]+", "n": r"\d+", "k": r"\d+"}


@dataclass(frozen=True)
class Entry:
    """One metric: a row of a table of the page. meaning: with the condition under which it is logged, if any."""

    name: str
    unit: str
    meaning: str

    def describes(self, name: str) -> bool:
        """Whether a logged name is this entry's name with its placeholders filled in."""
        parts = re.split(r"<(\w+)>", self.name)
        pattern = "".join(VARIABLE[part] if i % 2 else re.escape(part) for i, part in enumerate(parts))
        return bool(re.fullmatch(pattern, name))


def page() -> str:
    """The text of docs/metrics.md."""
    return pages()["metrics"].read_text(encoding="utf-8")


@functools.cache
def entries() -> tuple[Entry, ...]:
    """The rows of all tables of the page: | `name` | unit | meaning |."""
    rows = re.findall(r"^\| `([^`]+)` \| (.*?) \| (.*) \|$", page(), re.MULTILINE)
    return tuple(Entry(*(cell.replace("\\|", "|") for cell in row)) for row in rows)


def entry(name: str) -> Entry | None:
    """The entry that describes a logged name; None if there is none."""
    if name.startswith(VALIDATION):
        name = EVALUATION + name.removeprefix(VALIDATION)
    return next((entry for entry in entries() if entry.describes(name)), None)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit codes: 0, or 2 if a name is not that of a metric."""
    parser = terminal.Parser("python -m rlvr.ledger.glossary", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="of a metric, as in metrics.jsonl (default: the page)")
    names: list[str] = parser.parse_args(arguments).names
    if not names:
        print(page(), end="")
    code = 0
    for name in names:
        if described := entry(name):
            meaning = described.meaning.replace("*(", "(").replace(")*", ")")  # in italics: when it is logged
            print(f"{name}: {meaning} ({described.unit})")
            continue
        code, known = 2, [entry.name for entry in entries() if "<" not in entry.name]
        print(f"{name}: no metric of this name is logged.{terminal.near(name, known)}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
