"""The pages of docs/, which messages name: `rlvr docs [NAME]`. A wheel has them beside this file (pyproject.toml)."""

import sys
from collections.abc import Sequence
from pathlib import Path

from rlvr.ledger import terminal

FOLDERS = (Path(__file__).with_name("docs"), Path(__file__).parents[2] / "docs")


def pages() -> dict[str, Path]:
    """By name: {"optuna": .../docs/optuna.md, ...}."""
    folder = next(folder for folder in FOLDERS if folder.is_dir())
    return {path.stem: path for path in sorted(folder.glob("*.md"))}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a page, or the names of all. Exit code 2 for a name that no page has."""
    typed = list(sys.argv[1:] if arguments is None else arguments)
    name = Path(typed[0]).stem if typed else ""
    if name and name not in pages():
        print(f"error: no page {typed[0]}.{terminal.near(name, pages())} Pages: {', '.join(pages())}.", file=sys.stderr)
        return 2
    print(pages()[name].read_text(encoding="utf-8") if name else "\n".join(pages()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
