"""A search over swept keys instead of their grid: Hydra's `hydra/sweeper=optuna` (docs/optuna.md).

space.py: the search space, from the typed sweep · sampler.py: the options of this config group · study.py: the Optuna
study · controller.py: the loop over trials · runs.py: runs on this machine and on SLURM · report.py: the results ·
sweeper.py: Hydra's entry point, which checks everything first
"""
