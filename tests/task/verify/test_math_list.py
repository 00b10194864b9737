import pytest

from rlvr.task.verify.math_list import elements, names, product


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a, b;c", ["a", " b", "c"]),
        ("(1,2), [3,4)", ["(1,2)", " [3,4)"]),
        (r"1 \text{ and } 2", ["1 ", " 2"]),
        (r"\{1, 2\}", [r"\{1, 2\}"]),
    ],
)
def test_a_comma_in_brackets_separates_no_elements(text: str, expected: list[str]) -> None:
    assert elements(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("(C)", ["c"]), (r"\text{B}, A", ["a", "b"]), ("Yes", ["yes"]), ("R, r", None), ("(A,B)", None), ("2a", None)],
)
def test_names_are_words_and_single_letters(text: str, expected: list[str] | None) -> None:
    assert names(text) == expected


def test_a_run_of_letters_is_a_product_or_a_word() -> None:
    products, words = ["xyz", "mgh", "lwh", "abc", "abd"], ["cab", "act", "acb", "BADC", "listen", "xyy", "DNE"]
    assert [product(text) for text in products + words] == [True] * 5 + [False] * 7
