"""Growing sweeps: which runs come next depends on what was measured (docs/deciding.md).

record.py: every run that the sweep may need, and its decisions so far · stopping.py: `until=`: waves of seeds, and the
rule by which they end · tuning.py: `tune=`: values tried on the validation split, and the choice among them ·
planning.py: composes and checks all of it before anything is written, and its likely cost · launch.py:
launches and continues · controller.py: from one wave to the next
"""
