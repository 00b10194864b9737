"""Runs on SLURM; `slurm` itself (the scheduler's commands, scripts, signals) knows nothing of runs.

Where the command is typed: launch (what is handed in, and cancel), stages (what runs start from, built before them),
jobs (what every job asks for), submissions (what was handed in, and what the queue says of it), follow (live table).
On a node: job_of_runs, job_of_stage and job_of_report, a module per kind of job; supervised_run and nodes are parts of
the first.
"""
