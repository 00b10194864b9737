"""Counted by hand for a group of four."""

import pytest

from rlvr.objective.limits import orders, subset_sizes


def test_orders_are_those_below_the_size_of_the_group() -> None:
    assert (list(orders(4)), list(orders(1))) == ([1, 2, 3], [])


@pytest.mark.parametrize(
    ("form", "sizes"), [("plain", [1, 2, 3, 4]), ("sloo", [1, 2, 3]), ("sloo_minus_one", [2, 3, 4])]
)
def test_subsets_have_room_for_what_a_form_leaves_out(form: str, sizes: list[int]) -> None:
    assert list(subset_sizes(4, form)) == sizes
