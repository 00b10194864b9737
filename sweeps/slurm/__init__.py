"""Runs on SLURM. (The package `slurm` has the scheduler's commands, scripts and signals, and knows nothing of runs.)

On the login node: launch (submit and cancel), stages (jobs that build what runs start from), jobs (what all jobs have
in common), submissions (their records, and the state of their jobs in the queue), waves (what is left of a sweep that
is larger than the queue may be), report (the job at its end), ends (ends of jobs that only SLURM knows), follow (live
table). On a compute node: job_of_runs, job_of_stage and job_of_report, a module per kind of job;
supervised_run and nodes are parts of the first.
"""
