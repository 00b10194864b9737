"""A sweep that grows: what it runs next hangs on what was measured (docs/deciding.md).

record.py: every run it may come to, and what was decided so far · stopping.py: `until=`: waves of seeds, looks, their
rule · tuning.py: `tune=`: values tried on the validation split, and the pick · planning.py: from what was typed to all
of it, before anything is written · forecast.py: what it is likely to cost · results.py: what it asks of `analysis` ·
controller.py: from one wave to the next
"""
