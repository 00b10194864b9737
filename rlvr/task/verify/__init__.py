"""Verifiers that may hang, crash, or run a model's code, each in a child process."""

OUT_OF_MEMORY = 77  # exit status of a verifying process (`child.py`), which its parent (`pool.py`) recognises
