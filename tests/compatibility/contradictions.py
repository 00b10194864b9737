"""Data and knobs that contradict each other, and what a launch and `--dry-run` say of them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlvr.config.look import look
from tests.support.tasks import make_task, write_jsonl

HEAD = ("in the data or typed", "what a launch says")
TEMPLATE = "{problem} Put it within \\boxed{}."
# (what it is, a problem, an answer and its column, the template)
CASES: list[tuple[str, str, str, str, str]] = [
    ("prose in the column of the answer", "{}", "We add them all and so we get {}", "solution", TEMPLATE),
    ("a worked solution that ends in `#### 3`", "{}", "We add them all. #### {}", "answer", TEMPLATE),
    ("a worked solution with a box", "{}", "We add and so we get \\boxed{{{}}}", "solution", TEMPLATE),
    ("problems that ask for `Answer: 3`", '{} Put it on its own line after "Answer:".', "{}", "answer", TEMPLATE),
    ("problems that ask for `#### 3`", '{} Output it after "####".', "{}", "answer", TEMPLATE),
    ("problems that ask for a box, too", "{} Put it in \\boxed{{}}.", "{}", "answer", TEMPLATE),
    ("a template that asks for no mark", "{}", "{}", "answer", "{problem}"),
    ("a line break typed as two characters", "{}", "{}", "answer", "{problem}\\nPut it within \\boxed{}."),
    ("two backslashes", "{}", "{}", "answer", "{problem} Put it within \\\\boxed{}."),
]


def rows(folder: Path) -> Iterator[tuple[str, str]]:
    for name, problem, answer, column, template in CASES:
        numbers: list[dict[str, Any]] = [
            {"problem": problem.format(f"{i} + 1?"), column: answer.format(i + 1)} for i in range(9)
        ]
        path = write_jsonl(folder / "x.jsonl", numbers)
        task = make_task("math", train=path, test=path, template=template)
        try:
            said = " ".join(look(task, {"task": {"template": template}, "model": {}}, 0).notable) or "nothing"
        except ValueError as error:
            said = f"refused: {error}"
        finally:
            task.close()
        yield name, said.replace(f"{folder}/", "")
