"""Reinforcement learning with verifiable rewards, as sweeps."""

__version__ = "0.1.0"
