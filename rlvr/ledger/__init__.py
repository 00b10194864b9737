"""Everything under `runs/`: one reader and one writer."""
