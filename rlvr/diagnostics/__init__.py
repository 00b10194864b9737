"""Measurements without training. They write tables, of which `analysis` draws figures."""
