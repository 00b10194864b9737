"""Everything under `runs/`: only this package reads and writes it.

From the lowest module up: layout (every path), files (atomic writes), lock (which process holds a run), cause (the
causes of an attempt's end), identity (what makes two runs the same), runs (run.json and config.yaml), attempt (one
process that works on a run), state (the state of a run), journal, samples, rollouts, checkpoints and stages (what a run
writes and starts from), sweeps (sweeps, and the entry point `Ledger`), tags (runs and sweeps as MLflow tags and
params). Importing any of them imports neither Hydra nor torch.
"""
