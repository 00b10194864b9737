"""How fast, beside whom. `python -m tests.bench` runs every file here that defines `rows(*, quick: bool)`.

A row is a dict: name, value and unit of ours; peer, what it is compared with, and peer_value; ratio, how many times
better ours is; target, what the ratio should reach. What has no peer or no target says None. A file that prints lines
of its own shape has a function of its name in `adapt.py`.
"""
