"""A real SLURM on one machine: controller, several virtual nodes, fake GPUs, accounting. All files in one directory.

`python -m tests.slurm.local_cluster up | down | status`. Beside the standard library it needs psutil alone.
"""
