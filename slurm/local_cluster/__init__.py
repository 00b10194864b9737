"""A real SLURM on one machine: controller, several virtual nodes, fake GPUs, accounting. All files in one directory.

`python -m slurm.local_cluster up | down | status`. Standard library only.
"""
