"""Prints the tables of docs/compatibility.md as they are now, or writes them: `--write [TABLE ...]`."""

import sys
import tempfile
from pathlib import Path

from tests import compatibility


def main(arguments: list[str]) -> None:
    makers, names = compatibility.tables(), [word for word in arguments if word != "--write"]
    for name in names or makers:
        with tempfile.TemporaryDirectory() as folder:
            table = makers[name](Path(folder))
        print(f"{name}\n{table}\n")
        if "--write" in arguments:
            compatibility.write(name, table)


if __name__ == "__main__":
    main(sys.argv[1:])
