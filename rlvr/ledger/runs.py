"""A run as its launch recorded it: its origin in run.json, and in config.yaml everything that decides its results.

run.json contains the number of its format. A run of another format was made by another version: it is reported, but
never read.
"""

import functools
import marshal
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from rlvr.ledger import layout
from rlvr.ledger.files import read_json, write_json, write_text
from rlvr.ledger.identity import run_id

# Format of run.json, sweep.json and submission.json, and of all files beside them. Raise it with any change that
# another version would misread: a file that moves, a value with a new meaning, a knob that every config must have.
FORMAT = 1
TRUST = "RLVR_TRUST"  # environment variable: whose code a run on disk may name, beside that of the launch
EVERYBODY = "1"  # value of $RLVR_TRUST that trusts every user
_ID = re.compile(r"[0-9a-f]{12}")  # of `identity.run_id`


class Unreadable(ValueError):
    """Raised for a run or sweep that is damaged, private to another user, or of another version. One line, with what
    to do.
    """

    def __init__(self, what: str, why: str) -> None:
        super().__init__(f"{what}: {why}")
        self.what, self.why = what, why


def read_private(path: Path, what: str) -> dict[str, Any] | None:
    """As `read_json`. Raises Unreadable for a file that this user may not read."""
    try:
        return read_json(path)
    except PermissionError:
        raise Unreadable(what, _forbidden(path)) from None


def _forbidden(path: Path) -> str:
    """Why this user may not read a file or directory."""
    try:
        is_own = path.stat().st_uid == os.geteuid()
    except OSError:  # its directory is closed, too
        is_own = False
    if is_own:
        return f"{path} is yours, but its permissions forbid you to read it: chmod u+rX {path}"
    return f"{path} belongs to another user, who alone may read it."


def _check_readable(run_dir: Path) -> None:
    """Raises Unreadable for a run of which this user may not read a part: one such run must not stop what all share."""
    for path in (run_dir, layout.attempts(run_dir), layout.config(run_dir), layout.journal(run_dir)):
        search = os.X_OK if path in (run_dir, layout.attempts(run_dir)) else 0
        if not os.access(path, os.R_OK | search, effective_ids=True) and path.exists():
            raise Unreadable(f"run {run_dir.name}", _forbidden(path))


def check_format(content: Mapping[str, Any] | None, what: str, path: Path) -> Mapping[str, Any]:
    """Returns `content`, that of a file of the ledger. Raises Unreadable if it is None, or has another format."""
    if content is None:
        raise Unreadable(what, f"{path} is missing or damaged. Put it back, or repeat the launch.")
    if content.get("format") != FORMAT:
        its_format = f"format {content['format']}" if "format" in content else "no number of a format"
        why = f"made by another version of rlvr ({its_format}; this one reads format {FORMAT}), and left alone"
        raise Unreadable(what, f"{why}. Use that version, or move it away.")
    return content


def lines_by_reason(errors: Iterable[Unreadable], shown: int = 3) -> list[str]:
    """One line for each reason, with the first `shown` runs or sweeps that have it."""
    by_reason: dict[str, list[str]] = {}
    for error in errors:
        by_reason.setdefault(error.why, []).append(error.what)
    lines: list[str] = []
    for why, names in by_reason.items():
        more = f" and {len(names) - shown} more" if len(names) > shown else ""
        lines.append(f"{', '.join(names[:shown])}{more}: {why}")
    return lines


# --- run.json


@dataclass(frozen=True)
class RunInfo:
    """run.json: the names of a run, and the launch that made it. `fields`: the whole content of the file."""

    run_id: str
    name: str  # such as `lad-js-eta0.5-s0`: a label, not an identity
    arm: str  # the name without the seed
    group_id: str = ""  # the same for runs that differ only in their seed
    study: str = ""
    created: float = 0.0  # seconds since the epoch
    git_sha: str = ""
    git_dirty: bool = False
    host: str = ""
    command: str = ""
    config_dirs: tuple[str, ...] = ()  # directories in which the launch found options, beside conf/
    import_paths: tuple[str, ...] = ()  # directories in which it found the code of the run's components
    fields: Mapping[str, Any] = field(default_factory=dict[str, Any])


def read_info(run_dir: Path) -> RunInfo:
    """The content of run.json. Raises Unreadable if it is missing, damaged, private, or of another format."""
    path, what = layout.info(run_dir), f"run {run_dir.name}"
    _check_readable(run_dir)
    content = check_format(read_private(path, what), what, path)
    text = {key: str(content.get(key) or "") for key in ("group_id", "study", "git_sha", "host", "command")}
    name = str(content.get("name") or run_dir.name)
    created = content.get("created")
    return RunInfo(
        run_id=run_dir.name,
        name=name,
        arm=str(content.get("arm") or name),
        created=float(created) if isinstance(created, int | float) else 0.0,
        git_dirty=bool(content.get("git_dirty")),
        config_dirs=tuple(map(str, content.get("config_dirs") or ())),
        import_paths=tuple(map(str, content.get("import_paths") or ())),
        fields=content,
        **text,
    )


def write_run(run_dir: Path, config_yaml: str, info: Mapping[str, Any], *, durable: bool = True) -> None:
    """Write both files into an existing directory. run.json contains `info` and the number of the format."""
    write_text(layout.config(run_dir), config_yaml, durable=durable, private=True)
    write_json(layout.info(run_dir), {**info, "format": FORMAT}, durable=durable, private=True)


# --- config.yaml


def read_verified_config(run_dir: Path) -> dict[str, Any]:
    """As `read_config`, for training: raises Unreadable, too, if the config's hash is not the run's id.

    A truncated file may still be valid YAML, and an edited one would train something else than the run's name says.
    """
    content = read_config(run_dir)
    if _ID.fullmatch(run_dir.name) and run_id(content) != run_dir.name:
        raise Unreadable(
            f"run {run_dir.name}",
            f"{layout.config(run_dir)} is not the config that the id names: it was cut or edited. Put it back, or "
            "delete it and repeat the launch.",
        )
    return content


def check_owner(directory: Path) -> None:
    """Raises Unreadable for the directory of a run or sweep that another user but root owns, unless $RLVR_TRUST=1:
    configs name code that is run. Also for its files that name code: where others may write, another user may have put
    them there.
    """
    files = (layout.config(directory), layout.info(directory), layout.sweep_info(directory), layout.manifest(directory))
    for path in (directory, *files):
        try:
            owner = path.stat().st_uid
        except (FileNotFoundError, NotADirectoryError, PermissionError):  # whoever reads it is told
            continue
        if owner not in (os.geteuid(), 0) and not trusted(EVERYBODY):
            why = (
                f"it belongs to user {owner}, and what it says is run as code. If you trust that user: "
                f"{TRUST}={EVERYBODY}"
            )
            raise Unreadable(str(path), why)


def trusted(whom: str) -> bool:
    """Whether $RLVR_TRUST, a list separated by commas, contains `whom` (the name of a package) or EVERYBODY."""
    return not {whom, EVERYBODY}.isdisjoint(os.environ.get(TRUST, "").split(","))


def read_config(run_dir: Path) -> dict[str, Any]:
    """The frozen config as plain data, with numbers as OmegaConf reads them: `1e-06` is one.

    Raises Unreadable if it is missing or damaged, or if the run has another format.
    """
    read_info(run_dir)
    path = layout.config(run_dir)
    what = f"run {run_dir.name}"
    try:
        content = _parse_groups(path.read_bytes())
    except FileNotFoundError:
        raise Unreadable(what, f"{path} is missing. Put it back, or repeat the launch.") from None
    except ValueError as error:
        fault = " ".join(str(error).split())
        raise Unreadable(what, f"{path} is no YAML ({fault}). Put it back, or repeat the launch.") from None
    if not isinstance(content, dict):
        raise Unreadable(what, f"{path} holds no settings. Put it back, or repeat the launch.")
    return {str(key): value for key, value in cast("dict[object, Any]", content).items()}


def parse_yaml(text: str | bytes) -> Any:
    """The content of a YAML document. Raises ValueError if it is no YAML."""
    import yaml  # here, because the states of runs are shown without it, which has to be quick

    try:
        return yaml.load(text, Loader=_loader())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(str(error)) from error


def _parse_groups(text: bytes) -> Any:
    """As `parse_yaml`, but what is parsed of a group is cached: the runs of a sweep share most of their configs."""
    try:
        groups: list[Any] = [marshal.loads(_parsed_group(group)) for group in _GROUP.split(text) if group]  # noqa: S302
    except ValueError:  # its message is to count lines of the whole text
        groups = [None]
    if not groups or not all(isinstance(group, dict) for group in groups):
        return parse_yaml(text)
    return {key: value for group in groups for key, value in group.items()}


_GROUP = re.compile(rb"^(?=\w)", re.MULTILINE)  # where a key begins that is in no other


@functools.lru_cache(4096)
def _parsed_group(text: bytes) -> bytes:
    """The content of this YAML, marshalled, as others may change what they get."""
    return marshal.dumps(parse_yaml(text))


def to_yaml(config: Mapping[str, Any]) -> str:
    """The YAML text of a config, for `parse_yaml`. The text of a group is cached: the runs of a sweep share most."""
    return "".join(_group_yaml(name, marshal.dumps(value, 2)) for name, value in config.items())


@functools.lru_cache(4096)
def _group_yaml(name: str, value: bytes) -> str:
    """YAML of one group. value: its marshalled content, which can be a key of the cache."""
    import yaml

    return yaml.dump({name: marshal.loads(value)}, Dumper=_dumper(), sort_keys=False, allow_unicode=True)  # noqa: S302


@functools.cache
def _loader() -> Any:
    """Loader of OmegaConf's dialect of YAML, with the parser in C if there is one: it is ten times as fast."""
    import yaml

    return _in_our_dialect(getattr(yaml, "CSafeLoader", yaml.SafeLoader))


@functools.cache
def _dumper() -> Any:
    """Dumper that quotes text which `_loader` would read as a number."""
    import yaml

    return _in_our_dialect(getattr(yaml, "CSafeDumper", yaml.SafeDumper))


def _in_our_dialect(safe: Any) -> Any:
    """A subclass of a safe loader or dumper that knows more forms of numbers, and no dates."""

    class Ours(safe):
        yaml_implicit_resolvers = {  # noqa: RUF012 - an attribute of the library
            first: [(tag, regexp) for tag, regexp in resolvers if not tag.endswith(":timestamp")]
            for first, resolvers in safe.yaml_implicit_resolvers.items()
        }

    Ours.add_implicit_resolver("tag:yaml.org,2002:float", _NUMBER, list("-+0123456789."))
    return Ours


_NUMBER = re.compile(
    r"""^(?:[-+]?[0-9]+(_[0-9]+)*\.[0-9_]*([eE][-+]?[0-9]+)?
           |[-+]?[0-9]+(_[0-9]+)*[eE][-+]?[0-9]+
           |\.[0-9]+(_[0-9]+)*([eE][-+][0-9]+)?
           |[-+]?[0-9]+(_[0-9]+)*(:[0-5]?[0-9])+\.[0-9_]*
           |[-+]?\.(inf|Inf|INF)
           |\.(nan|NaN|NAN))$""",
    re.VERBOSE,
)


def flatten(tree: Mapping[str, Any], key: Callable[[str], str] = str) -> dict[str, Any]:
    """{"a": {"b": 1}} -> {"a.b": 1}. Lists and empty mappings are values. key: how a key is written."""
    flat: dict[str, Any] = {}

    def walk(prefix: str, node: Mapping[str, Any]) -> None:
        for name, value in node.items():
            dotted = prefix + key(str(name))
            if type(value) not in _LEAVES and isinstance(value, Mapping) and value:
                walk(f"{dotted}.", cast("Mapping[str, Any]", value))
            else:
                flat[dotted] = value

    walk("", tree)
    return flat


# Tested first: that takes a tenth of the time of isinstance(value, Mapping).
_LEAVES = (str, int, float, bool, type(None), list)


def choices(config: Mapping[str, Any]) -> dict[str, str]:
    """{group: chosen option}. A group that another file selects, in Hydra `group@package`, is called `group`."""
    chosen: Mapping[str, object] = config.get("choices") or {}
    return {str(group).partition("@")[0]: str(option) for group, option in chosen.items() if option is not None}
