"""One run: its parts, the training loop, and how its process starts and ends. Only this package joins the others."""
