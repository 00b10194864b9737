"""Names: the name and the tags of a sweep, and names of runs that are unique on the ledger."""

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from rlvr.config.overrides import key_of
from rlvr.ledger import layout
from rlvr.ledger.identity import NAMING
from rlvr.ledger.sweeps import OWN_STUDIES, Ledger
from sweeps.planned import PlannedRun

READ_BY_REPORTS = ("bundle", "import", "findings", "paper", "meta", "audit")  # commands of `python -m analysis`
OF_REPORTS = (".rlvr", layout.OF_PARTS, layout.OF_BUNDLES)  # ends of its files, and of folders
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,59}")
_ALLOWED = "1 to 60 letters, digits, '.', '_' and '-', a letter or digit first"


def is_naming(override: str) -> bool:
    """Whether an override only names the launch (`name`, `tags`) and does not change its runs."""
    return key_of(override) in NAMING


def check_words(config: Mapping[str, Any]) -> None:
    """ValueError for a name or a tag that is not one word: it is used in commands, addresses and names of folders."""
    name, tags = config.get("name"), config.get("tags")
    if name is not None and not _WORD.fullmatch(str(name)):
        raise ValueError(f"name={name} is not allowed. A name has {_ALLOWED}, as in name=first-try.")
    for tag in str(tags).split(",") if tags is not None else []:
        if not _WORD.fullmatch(tag.strip()):
            raise ValueError(f"tags={tags} is not allowed. Each tag has {_ALLOWED}, as in tags=pilot,gpu.")


def check_free(
    name: str, sweep_id: str, run_ids: Collection[str], ledger: Ledger, studies: Collection[str] = ()
) -> None:
    """ValueError for a name that something else has. A sweep that has all runs of another may take over its name.

    studies: the names of all studies that can be launched.
    """
    if name in (*OWN_STUDIES, *studies):
        raise ValueError(f"name={name} is the name of a study. Type another one.")
    if name in READ_BY_REPORTS or name.endswith(OF_REPORTS):
        raise ValueError(f"name={name} means something else to `python -m analysis`. Type another one.")
    for other in ledger.sweeps():
        if other.sweep_id == sweep_id or name not in (other.name, other.study):
            continue
        if name != other.name:
            raise ValueError(f"name={name} is the name of a study in {ledger.root}. Type another one.")
        if not set(other.run_ids) <= set(run_ids):
            raise ValueError(
                f"name={name} is taken by sweep {other.sweep_id} ({other.command}), which has other runs. Type another "
                "name, or a sweep that has those runs too."
            )


class RunNames:
    """Unique names of runs: a run on the ledger keeps its name there; a new run gets its own name or, if that is taken,
    a longer one. Reads run.json of every run, once.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._of_run = ledger.names()
        self._owner = {name: run_id for run_id, name in self._of_run.items()}

    def give(self, run: PlannedRun) -> PlannedRun:
        if run.run_id not in self._of_run:
            owner = self._owner.get(run.name, run.run_id)
            name = run.name if owner == run.run_id else f"{run.name}-{run.run_id[:6]}"
            self._of_run[run.run_id] = name
            self._owner[name] = run.run_id
        return replace(run, name=self._of_run[run.run_id])
