"""The type of a table of data in this package."""

from __future__ import annotations

from typing import Any, TypeAlias

# A pandas DataFrame. pandas' own annotations answer "Series | DataFrame | ndarray | ..." to every index, which tells a
# type checker nothing and costs a cast per line; docstrings name the columns instead.
Frame: TypeAlias = Any
