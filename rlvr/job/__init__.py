"""One run: the loop, its parts, and how its process starts and ends. The only room that joins the others."""
