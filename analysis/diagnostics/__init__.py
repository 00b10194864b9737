"""Figures of what `rlvr.diagnostics` measured."""
