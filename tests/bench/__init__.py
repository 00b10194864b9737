"""Speed beside named peers. `python -m tests.bench` runs every file here that defines `rows(*, quick)`: see row.py."""
