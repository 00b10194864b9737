"""A search over swept keys instead of their grid: Hydra's `hydra/sweeper=optuna` (docs/optuna.md).

space.py: what is typed → what is searched · sampler.py, pruner.py: the options of the two groups · controller.py: asks,
starts, tells · runs.py: where runs are worked on · report.py: what was found · sweeper.py: checks first, joins the rest
"""
