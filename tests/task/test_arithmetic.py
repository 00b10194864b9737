import pytest

from rlvr.task.arithmetic import canonical


def test_forms_of_one_expression_are_one() -> None:
    for forms in (
        ("3 * 8", "8*3", "((8) * 3)", "0x8 * 3", "-8 * -3", "8 * --3 # three"),
        ("4*6/(1*1)", "6 * 4 / 1 / 1", "4/1*(6/1)"),  # a / (b * c) is a / b / c
        ("9 - 3 + 4", "4 + 9 - 3", "4 - (3 - 9)", "(4 + 9) - 3", "-3 + 9 - -4", "-(3 - 9) + 4"),
        ("4 * ( 9 - 3 )", "(9-3)*4"),
    ):
        assert len({canonical(form) for form in forms}) == 1, forms


def test_other_expressions_of_the_same_value_are_others() -> None:
    forms = ["4 * ( 9 - 3 )", "3 * 8", "24", "4 * 9 - 4 * 3", "( 9 - 3 ) * 4 * 1", "3 * 8 + 0", "8 / ( 1 / 3 )"]
    assert (len({canonical(form) for form in forms}), canonical("(9-3)*4")) == (len(forms), "4 * ( 9 - 3 )")
    assert canonical("8 / ( 1 / 3 )") == "3 * 8 / 1"


def test_other_texts_are_refused() -> None:
    nested, long = "(" * 5000 + "1" + ")" * 5000, "1+" * 50_000 + "1"
    others = ("", "3 +", "3 4", "+3", "2 ** 3", "2 // 3", "3(4)", "08", "1.5", "x + 1", "٣ * 8", "()")
    for text in (*others, nested, long):
        with pytest.raises(ValueError, match="is not|has other things"):
            canonical(text)
