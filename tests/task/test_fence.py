import time

import pytest

from rlvr.task.fence import last_block, last_tagged, marked, requests


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("```python\na\nb\n```", "a\nb"),
        ("```py\na\n```\nno:\n```python\nb\n```\nend", "b"),
        ("```\na\n```", "a"),
        ("```python\na\n```\n```text\nb\n```", "a"),
        ("```python\na", None),  # cut off
        ("```python\na\n```python\nb\n```", "b"),  # the first was left open
        ("```python\n\n```", None),
        ("```python\na\n```\nIt prints:\n```\n1\n```", "a"),
        ("```\n1\n```\n```python\na\n```\n```\n2\n```\n```text\n3\n```", "a"),
        ("```\na\n```\n```\nb\n```", "b"),
        ("1. So:\n   ```python\n   if a:\n       b\n\n   c\n   ```", "if a:\n    b\n\nc"),
        ("  ```python\nif a:\n  b\n  ```", "if a:\n  b"),  # less indented than its fence
        ("```python\na\n`````", "a"),  # longer than the one that opens
        ("````python\n```\na\n````", "```\na"),
        ("~~~python\n```\n~~~", "```"),
        ("````python\n```\n````", "```"),
        ('```python\nd = """\n    ```\n    1\n    ```\n"""\n   ```', 'd = """\n    ```\n    1\n    ```\n"""'),
        ("  ```python\n     ```py\na\n  ```", "a"),  # three spaces more
        ("print(1)", None),
        ("", None),
    ],
)
def test_the_last_closed_block_of_python_is_the_program(text: str, expected: str | None) -> None:
    assert last_block(text, ("python", "py", "")) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *(("<answer>1</answer> no: <answer>2</answer>", "2"), ("<answer>1</answer> no: <answer>2", "1")),
        *(("<answer>a<answer>b\n</answer></answer>", "a<answer>b\n"), ("</answer><answer>", None)),
        *(("<answer></answer>", ""), ("", None)),
    ],
)
def test_the_last_closed_tag_holds_the_answer(text: str, expected: str | None) -> None:
    assert last_tagged(text) == expected


def test_a_degenerate_response_is_read_at_once() -> None:
    # 40,000 tags: each of them searched to the end of the text would be a minute.
    start = time.process_time()
    assert last_tagged("<answer>1</answer>" + "<answer>" * 40_000) == "1"
    assert marked("#### **1** \n#### *" + " " * 40_000, "hashes") == "1"
    assert time.process_time() - start < 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *(
            ("Answer:\n\\[\n\\frac{1}{2}\n\\]", "\\frac{1}{2}"),
            ("Answer: $$\n7\n$$", "7"),
            ("Answer: \\[7\\]", "\\[7\\]"),
        ),
        *(("Answer: 34", "34"), ("so x = 3.\n\nAnswer: $\\frac{1}{2}$\n", "$\\frac{1}{2}$")),
        *(("Answer: 12\nNo:\nanswer : 13", "13"), ("**Answer:** 34", "34")),
        *(("**Final Answer**: \\boxed{34}.", "34"), ("Answer:\n\n34", "34"), ("The answer is 34", None)),
        ("Answer:", None),
    ],
)
def test_an_answer_is_what_follows_the_last_word_for_it(text: str, expected: str | None) -> None:
    assert marked(text, "answer") == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *(("a chance of .5", ".5"), ("it costs $-.25.", "-.25"), ("version 1.2.5", None)),
        *(("The answer is -25.", "-25"), ("12 -5", "5"), ("12-5", "5"), ("(3) -5", "5"), ("It is 30!", "30")),
        *(("1/30", None), ("It is 7, not 1 / 30.", "7"), ("1,234/5", None), ("5 km/h", "5"), ("-1,234.5.", "-1,234.5")),
    ],
)
def test_the_last_number_has_its_sign_and_is_no_part_of_a_quotient(text: str, expected: str | None) -> None:
    assert marked(text, "last_number") == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The last line of your response should be of the form Answer: $Answer (without quotes)", {"answer"}),
        ('Remember to put your answer on its own line after "Answer:".', {"answer"}),
        ("should be of the following format: 'Answer: $LETTER' (without quotes)", {"answer"}),
        ("Put your final answer within \\boxed{}.", {"box"}),
        ("Give it in <answer></answer> tags, in a \\boxed{}.", {"tag", "box"}),
        ("Question: what is 1 + 1?\nAnswer:", set()),
        ("If the answer is 3, what is the question?", set()),
    ],
)
def test_what_a_prompt_asks_for_is_known(text: str, expected: set[str]) -> None:
    assert requests(text) == expected
