"""Speed as ratios against named peers; measurement and peer alternate in one run.

python -m tests.bench [NAMES] [--json FILE]     measure all or some; JSON lines, then a table
python -m tests.bench --from FILE --write-docs  put measured rows into docs/performance.md
"""

import argparse
import importlib
import importlib.metadata
import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from tests.bench.row import Row, put_between

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
DOCS = ROOT / "docs" / "performance.md"
BEGIN, END = "<!-- measured -->\n", "<!-- end -->"
COLUMNS = ("what", "ours", "peer", "peer's", "ratio", "target", "met")


def names() -> list[str]:
    """Files that define `rows(*, quick)`."""
    return sorted(path.stem for path in HERE.glob("[a-z]*.py") if "\ndef rows(*, quick" in path.read_text())


def machine() -> Row:
    """The machine on which the numbers were measured."""
    cpu = Path("/proc/cpuinfo")
    lines = cpu.read_text().splitlines() if cpu.exists() else []
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())
    memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    packages = {name: importlib.metadata.version(name) for name in ("torch", "transformers")}
    return {"cores": cores(), "cpu": model, "memory_gb": round(memory_gb), **packages}


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def measure(name: str, *, quick: bool) -> list[Row]:
    """Rows of one file, from a process of its own: no benchmark inherits another's threads, memory or caches."""
    # Waiting threads must not spin, since the two sides of a comparison alternate on the same cores.
    environment = os.environ | {"OMP_NUM_THREADS": str(cores()), "OMP_WAIT_POLICY": "passive"}
    command = [sys.executable, "-m", "tests.bench", "--child", name, *(["--quick"] if quick else [])]
    began, busy = time.perf_counter(), busy_elsewhere_s()
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise RuntimeError(f"the bench {name} ended with code {done.returncode}; its messages are above")
    elsewhere = (busy_elsewhere_s() - busy) / (time.perf_counter() - began)
    on = machine() | {"busy_elsewhere": round(max(elsewhere, 0.0), 2)}
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return [{"bench": name, **row, "met": met(row), "machine": on} for row in rows]


def met(row: Row) -> bool | None:
    return None if row["ratio"] is None or row["target"] is None else row["ratio"] >= row["target"]


def busy_elsewhere_s() -> float:
    """Seconds of processor time that this machine has spent so far, without those of our finished children."""
    times, children = psutil.cpu_times(), resource.getrusage(resource.RUSAGE_CHILDREN)
    return sum(times) - times.idle - getattr(times, "iowait", 0.0) - children.ru_utime - children.ru_stime


def child(name: str, *, quick: bool) -> None:
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # all else that is printed goes to standard error
    for row in importlib.import_module(f"tests.bench.{name}").rows(quick=quick):
        print(json.dumps(row), file=out)


def number(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _cells(row: Row) -> tuple[str, ...]:
    ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f}"
    met = {True: "yes", False: "no", None: ""}[row["met"]]
    value, peer_value = f"{number(row['value'])} {row['unit']}", number(row["peer_value"])
    return row["name"], value, row["peer"] or "", peer_value, ratio, number(row["target"]), met


def table(rows: Sequence[Row]) -> str:
    """Aligned Markdown."""
    cells = [COLUMNS, *map(_cells, rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(COLUMNS))]
    lines = ["| " + " | ".join(f"{c:<{w}}" for c, w in zip(row, widths, strict=True)) + " |" for row in cells]
    return "\n".join([lines[0], "|" + "|".join("-" * (w + 2) for w in widths) + "|", *lines[1:]])


def headline(rows: Sequence[Row]) -> str:
    on = rows[0]["machine"]
    elsewhere = max(row["machine"]["busy_elsewhere"] for row in rows)
    return (
        f"{on['cores']} cores of {on['cpu']}, {on['memory_gb']} GB, torch {on['torch']}, "
        f"transformers {on['transformers']}; other processes kept at most {elsewhere:.1f} cores busy"
    )


def write_docs(rows: Sequence[Row]) -> None:
    put_between(DOCS, BEGIN, END, f"{headline(rows)}\n\n{table(rows)}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAMES", help=f"some of: {', '.join(names())}")
    parser.add_argument("--list", action="store_true", help="list the names and stop")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, without TRL: shows only that all of it runs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there too, a JSON object a line")
    parser.add_argument("--from", type=Path, dest="source", metavar="FILE", help="read rows instead of measuring")
    parser.add_argument("--write-docs", action="store_true", help="replace the table of docs/performance.md")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        child(options.child, quick=options.quick)
        return 0
    if options.list:
        print("\n".join(names()))
        return 0
    unknown = sorted(set(options.names) - set(names()))
    if unknown:
        parser.error(f"there is no bench {', '.join(unknown)}. Type some of: {' '.join(names())}")
    if options.quick and options.write_docs:
        parser.error("--quick measures nothing worth writing down: drop it or drop --write-docs")
    if options.source:
        rows, failed = [json.loads(line) for line in options.source.read_text().splitlines()], []
    else:
        rows, failed = run(options.names or names(), quick=options.quick)
    if options.json:
        options.json.write_text("".join(json.dumps(row) + "\n" for row in rows))
    if rows:
        print(f"\n{headline(rows)}\n\n{table(rows)}")
    if rows and options.write_docs:
        write_docs(rows)
    for message in failed:
        print(message, file=sys.stderr)
    return 1 if failed else 0


def run(chosen: Sequence[str], *, quick: bool) -> tuple[list[Row], list[str]]:
    """(all rows, a message for each benchmark that failed; the others are run nevertheless)."""
    rows, failed = list[Row](), list[str]()
    for name in chosen:
        try:
            measured = measure(name, quick=quick)
        except RuntimeError as error:
            failed.append(str(error))
            continue
        print(*map(json.dumps, measured), sep="\n", flush=True)
        rows += measured
    return rows, failed


if __name__ == "__main__":
    sys.exit(main())
