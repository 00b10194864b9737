"""Everything under `runs/`: one reader and one writer.

From the ground up: layout (every path), files (whole or not at all), lock (who holds a run), cause (the table of ends),
identity (what makes two runs the same), runs (what a run is: run.json, config.yaml), attempt (a process at work on it),
state (how it stands), journal, samples, rollouts, checkpoints, stages (what it leaves and starts from), sweeps (plans,
and the door for all who ask), tags (the same in MLflow's words). Importing any of them imports no Hydra and no torch.
"""
