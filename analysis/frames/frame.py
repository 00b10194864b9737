"""Frames are pandas DataFrames; the docstring of the function that returns one lists its columns."""

from __future__ import annotations

from typing import Any, cast

import pandas as pd


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows, each by column name."""
    return cast(list[dict[str, Any]], frame.to_dict("records"))
