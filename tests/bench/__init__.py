"""Speed beside named peers. `python -m tests.bench` runs every file here that defines `rows(*, quick: bool)`.

A row is a dict: name, value and unit of our measurement; peer, the name of what it is compared with, and peer_value;
ratio, by which factor ours is better; target, the ratio to reach. Without a peer or a target the field is None. A file
that prints lines of another form has a function of its name in `adapt.py`.
"""
