from __future__ import annotations

import pytest

from rlvr.task.fence import last_block


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
        ("print(1)", None),
        ("", None),
    ],
)
def test_the_last_closed_block_of_python_is_the_program(text: str, expected: str | None) -> None:
    assert last_block(text, ("python", "py", "")) == expected
