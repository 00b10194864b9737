"""Verifiers that may hang, crash, or run what a model wrote: in processes of their own."""

OUT_OF_MEMORY = 77  # exit status of a verifying process (`child.py`), known to who starts it (`pool.py`)
