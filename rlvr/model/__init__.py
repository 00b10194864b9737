"""Base policies: loaded, downloaded, tabular or pre-trained on a task."""

from collections.abc import Callable
from typing import TypeVar

F = TypeVar("F", bound=Callable[..., object])


def native_only(function: F) -> F:
    """Declare that only the native engine can sample from a model: other engines are refused at launch."""
    function.marks = frozenset({"native_only"})  # type: ignore[attr-defined]
    return function
