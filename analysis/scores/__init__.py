"""From frames to arms, cells and intervals."""
