"""Tab completion: `eval "$(rlvr completion)"` in bash or zsh, in ~/.bashrc or ~/.zshrc.

It completes `rlvr ...`, and `python -m rlvr.run ...`, `sweeps`, `analysis`: groups, options, knobs, and names of runs,
sweeps and studies. The shell asks this module at each tab, which takes half a second.
"""

import contextlib
import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from rlvr.config import schema
from rlvr.config.commands import COMMANDS
from rlvr.config.registry import Registry
from rlvr.ledger import terminal
from rlvr.ledger.pages import pages
from rlvr.ledger.sweeps import Ledger

OF_SWEEPS = tuple(name for name, command in COMMANDS.items() if command.first)
OF_RUNS = ("logs", "cancel", "retry", "evaluate", "export")  # commands that take a run
OF_STUDIES = ("status", "watch", "logs", "cancel", "retry", "report")  # and those that take a sweep or a study
FLAGS = ("-m", "--dry-run", "--json", "--cfg", "--config-dir", "--help")
# bash splits words at `=`: of `loss=gr` it replaces `gr` alone. zsh replaces the whole word. What is no command of ours
# is left to the shell: bash completes files, zsh what it knows of python.
SCRIPT = """\
if [ -n "$ZSH_VERSION" ]; then
    _rlvr() {{
        local found
        found=(${{(f)"$({python} -P -m sweeps.completion "${{words[1,CURRENT-1]}} $PREFIX" 2>/dev/null)"}})
        [[ $found[1] == *= ]] && compadd -S '' -- $found && return
        compadd -- $found || {{ [[ $service == python* ]] && _python || _files; }}
    }}
    (( $+functions[compdef] )) || {{ autoload -Uz compinit && compinit -u; }}
    compdef _rlvr rlvr python python3
else
    _rlvr() {{
        local word="${{COMP_LINE:0:$COMP_POINT}}"; word="${{word##* }}"
        local IFS=$'\\n'
        COMPREPLY=($({python} -P -m sweeps.completion "${{COMP_LINE:0:$COMP_POINT}}" 2>/dev/null))
        if [[ $word == *=* && $COMP_WORDBREAKS == *=* ]]; then
            COMPREPLY=("${{COMPREPLY[@]#"${{word%"${{word##*=}}"}}"}}")
        fi
        [[ ${{COMPREPLY[0]}} == *= ]] && compopt -o nospace
    }}
    complete -o default -F _rlvr rlvr python python3
fi"""


def words(line: str) -> list[str]:
    """What the last word of a line may become, whole words; [] for what is no command of ours."""
    *before, word = line.split(" ")
    before = [typed for typed in before if typed]
    names = {name: name for name in COMMANDS}
    if before and before[0].startswith("python"):  # `python -m MODULE`
        if before[1:2] != ["-m"]:
            return []
        names = {command.module: name for name, command in COMMANDS.items() if not command.first} | {"sweeps": "sweeps"}
        before = before[1:]
    of_command = _of_command(names.get(before[1], ""), before[2:], word) if before[1:] else names
    return sorted({candidate for candidate in of_command if candidate.startswith(word)})


def _of_command(name: str, before: Sequence[str], word: str) -> Iterable[str]:
    if name == "sweeps":
        if not before:
            return OF_SWEEPS
        name, before = before[0], before[1:]
    if name == "run" or (name == "evaluate" and "=" in word):
        return _of_run(before, word)
    if name == "docs":
        return pages()
    ledger, names = Ledger(terminal.home(None)), list[str]()
    if name in OF_RUNS:
        names += ledger.names().values()
    if name in OF_STUDIES:
        names += [text for sweep in ledger.sweeps() for text in (sweep.name or sweep.sweep_id, sweep.study) if text]
    return names


def _of_run(before: Sequence[str], word: str) -> Iterable[str]:
    registry = Registry()
    with contextlib.suppress(ValueError):
        registry = Registry.of([typed for typed in before if typed.startswith(("--config-dir=", "hydra.searchpath="))])
    key, equals_sign, value = word.partition("=")
    group = key.lstrip("+~")
    if not equals_sign:
        names = [name for name in (*registry.groups(), *registry.names()) if "._" not in name]
        return [*FLAGS, *(f"{key[: len(key) - len(group)]}{name}=" for name in names)]
    kept = value.split(",")[:-1]
    folders = [Path(folder, group) for folder in (*registry.directories, schema.CONF) if group in registry.groups()]
    files = [file.relative_to(folder) for folder in folders for file in folder.rglob("*.yaml")]
    return [f"{key}={','.join([*kept, file.with_suffix('').as_posix()])}" for file in files]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = terminal.Parser("rlvr completion", description=f"Print a script for the shell. {__doc__}")
    parser.add_argument("line", nargs="?", help="what was typed: print what its last word may become")
    line = parser.parse_args(arguments).line
    print(SCRIPT.format(python=shlex.quote(sys.executable)) if line is None else "\n".join(words(line)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
