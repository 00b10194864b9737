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
    parser = terminal.Parser("rlvr docs", description="A page of the documentation, or the list of all.")
    parser.add_argument("name", nargs="?", default="", help="a page, such as optuna; without it, the list")
    typed = parser.parse_args(arguments).name
    name = Path(typed).stem
    if name and name not in pages():
        print(f"error: no page {typed}.{terminal.near(name, pages())} Pages: {', '.join(pages())}.", file=sys.stderr)
        return 2
    print(pages()[name].read_text(encoding="utf-8") if name else "\n".join(pages()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
