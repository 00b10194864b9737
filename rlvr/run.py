"""`python -m rlvr.run`: compose, check, plan, launch. `-m` sweeps; `--help` explains the knobs. No torch here.

From Python, with the words of the command line (docs/python.md): `rlvr.compose`, `rlvr.run`, `rlvr.sweep`, `rlvr.load`.
Importing this module sets the attribute `run` of the package to it, in place of the function `run`; therefore the
module itself can be called.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

from hydra._internal.utils import _run_hydra, get_args_parser
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.singleton import Singleton
from omegaconf import DictConfig, OmegaConf

from rlvr import __version__
from rlvr.config import imports, option_files, schema
from rlvr.config.explain import BAD_INPUT, MULTIRUN, explain
from rlvr.config.overrides import check, command_line, key_of, quoted, with_home
from rlvr.config.registry import Registry
from rlvr.ledger import layout, terminal
from rlvr.ledger.identity import ADDED_ARMS, GRID_KEYS, GROWTH
from rlvr.ledger.sweeps import Ledger

if TYPE_CHECKING:
    from analysis.frames.frames import Frames
    from rlvr.config.compose import Composed
    from sweeps.result import RunResult, SweepResult
    from sweeps.session import Session

OWN_FLAGS = re.compile(r"--debug|--dry-run|--json|--show(=(?P<number>\d+))?")


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit codes: 0 all finished, 1 a run failed, 2 bad input, nothing launched, 130 interrupted."""
    typed = [with_home(word) for word in (sys.argv[1:] if arguments is None else arguments)]
    if "--version" in typed:
        print(f"rlvr {__version__}")
        return 0
    words = [word for word in typed if not OWN_FLAGS.fullmatch(word)]
    terminal.set_up()
    try:
        with one_line_errors(words, f"add -m: {shlex.join(['python', '-m', 'rlvr.run', '-m', *words])}") as registry:
            if "--json" in typed and "--dry-run" not in typed:
                raise ValueError("--json describes a plan: add --dry-run. Of a launch: python -m sweeps status --json.")
            options = {"dry_run": "--dry-run" in typed, "as_json": "--json" in typed}
            session = carry_out(words, registry, **options, show=num_shown(typed))
    except ValueError as error:
        if "--debug" in typed:
            raise
        print(f"rlvr: {terminal.printable(str(error))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:  # before the launch, which handles signals itself
        return terminal.INTERRUPTED
    return max((launch.outcome.exit_code for launch in session.launches), default=0)


def num_shown(typed: Sequence[str]) -> int:
    """Number of prompts to show: N of --show=N, 1 of --show. Raises ValueError for --show without --dry-run."""
    matches = [match for match in map(OWN_FLAGS.fullmatch, typed) if match and match[0].startswith("--show")]
    if matches and "--dry-run" not in typed:
        raise ValueError(f"{matches[0][0]} shows prompts of a dry run: add --dry-run.")
    return int(matches[-1]["number"] or 1) if matches else 0


@contextlib.contextmanager
def one_line_errors(words: Sequence[str], sweep: str = "") -> Generator[Registry, None, None]:
    """Turns errors in a command into a ValueError of one line. Yields the registry of the command's search path.

    sweep: what to type for several values of a key, for the message.
    """
    _refuse_hidden_packages()
    layout.home()  # raises ValueError if RLVR_HOME is a file
    registry = None
    try:
        registry = Registry.of(words)
        option_files.check(words, registry)
        yield registry
    except BAD_INPUT as error:
        raise ValueError(explain(error, words, registry or Registry(), sweep)) from error


def _refuse_hidden_packages() -> None:
    if problem := imports.hidden_package_message():
        raise ValueError(problem)


def carry_out(
    words: Sequence[str],
    registry: Registry,
    *,
    dry_run: bool = False,
    one_run: bool = False,
    as_json: bool = False,
    **about: Any,
) -> Session:
    """Carries out a command line and returns its session. Errors in it are raised before anything is written.

    words: as typed, without OWN_FLAGS. dry_run: show launches, start nothing. one_run: raise ValueError for a sweep.
    as_json: print the launches as data; everything else that is printed goes to standard error. about: further fields
    of the session: `show`, and those of another program than this one.
    """
    from sweeps.session import Session

    options = command_line(quoted(words))
    check(options.overrides, registry.groups())
    for key in map(key_of, options.overrides):
        if "adapt" not in about and key.split(".")[0] == "policy":
            raise ValueError(
                f"{key} is a knob of evaluations, and this command trains. "
                "Evaluate by `python -m rlvr.evaluate SOURCE`."
            )
    session = Session(**{"typed": words, **about}, registry=registry, dry_run=dry_run, one_run=one_run)
    shown = contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext()
    with session.entered(), _separate_hydra(), terminal.unfailing_output(), shown:
        # As for a command of its own, Hydra composes and calls our sweeper, or the function of `_keep_single_point`.
        _run_hydra(
            args=command_line(deferred(quoted(words), registry)),
            args_parser=get_args_parser(),
            task_function=_keep_single_point(session),
            config_path=str(schema.CONF),
            config_name="run",
        )
        if session.single is not None:
            _launch_single(session, session.single)
        if not as_json:
            _show(session)
    if as_json:
        from sweeps.json_output import launches_as_data

        checker = session.checker if session.show else None
        print(json.dumps(launches_as_data(session.launches, Ledger(layout.home()), checker), indent=2))
    return session


def _show(session: Session) -> None:
    """Print what a dry run would have launched, and which checks could not be made here."""
    from sweeps.preview import look_lines, preview

    for launch in session.launches if session.dry_run else []:
        print(preview(launch.plan, Ledger(layout.home()), slurm=launch.on_slurm, checker=session.checker))
        print(*launch.forecast, sep="\n", end="\n" if launch.forecast else "")
        looks = dict.fromkeys(session.checker.look(run.config) for run in launch.plan.runs if session.show)
        for line in (line for look in looks for line in look_lines(look)):
            print(line)
    for line in session.checker.unchecked:
        print(f"Not checked here: {line}")


def _keep_single_point(session: Session) -> Callable[[DictConfig], None]:
    """The function that Hydra calls without -m. It only stores the config: Hydra would wrap the errors of a launch."""

    def keep(config: DictConfig) -> None:
        hydra_config = HydraConfig.get()
        choices = OmegaConf.to_container(hydra_config.runtime.choices)
        assert isinstance(choices, dict)
        typed = OmegaConf.to_container(hydra_config.overrides.task, resolve=False)
        assert isinstance(typed, list)
        overrides = [str(override) for override in typed]
        session.single = overrides, config, {str(key): value for key, value in choices.items()}
        session.axes = tuple(hydra_config.sweeper.get("params") or ())

    return keep


def _launch_single(session: Session, point: Composed) -> None:
    """Launch the run of a command without -m. Raises ValueError for overrides, or a study, that only sweep."""
    from sweeps import launcher
    from sweeps.plan import plan

    overrides, config, choices = point
    sweeping = (*GRID_KEYS, *GROWTH, *ADDED_ARMS)
    if (sweeper := choices.get("hydra/sweeper")) != "grid":
        raise ValueError(f"hydra/sweeper={sweeper} has no effect on a single run. Search with -m, or drop it.")
    for key in (key for key in map(key_of, overrides) if key in sweeping):
        raise ValueError(f"{key} has no effect on a single run. Sweep with -m, or drop it.")
    if (study := choices.get("study")) and (session.axes or any(config[key] for key in sweeping)):
        raise ValueError(f"study={study} sweeps: write `mode: MULTIRUN` under `hydra` in its file, or type -m.")
    launcher.launch(plan([point], command=session.command, checker=session.checker))


@contextlib.contextmanager
def _separate_hydra() -> Generator[None, None, None]:
    """Saves and restores Hydra's global state, such as a notebook's. Inside, Hydra raises errors and prints none."""
    globals_of_hydra = (GlobalHydra, HydraConfig)
    instances = Singleton._instances
    saved = {kind: instances.pop(kind) for kind in globals_of_hydra if kind in instances}
    os.environ["HYDRA_FULL_ERROR"] = "1"  # restored when the session ends
    try:
        yield
    finally:
        for kind in globals_of_hydra:
            instances.pop(kind, None)
        instances.update(saved)


# --- words


def deferred(words: Sequence[str], registry: Registry) -> list[str]:
    """Words in which knobs of a swept group are sweeps of one value: `loss.coef=0.1` in `-m loss=a,b loss.coef=0.1`.

    Otherwise Hydra would first compose the knob with the default loss, which may have neither the knob nor its group
    (`presample.*`). The same holds for a study without -m, because its file decides whether it sweeps.
    """
    values = dict(word.split("=", 1) for word in words if "=" in word)
    if not MULTIRUN & set(words) and "study" not in values:
        return list(words)
    swept = {key for key, value in values.items() if "," in value or value.startswith(("glob(", "choice("))}
    if "loss" in swept:
        groups = {key.split(".")[0] for key in values if "." in key}
        swept |= {group for group in groups if registry.losses_with(group)}
    return [_as_choice(word) if word.split(".")[0] in swept else word for word in words]


def _as_choice(word: str) -> str:
    key, equals_sign, value = word.partition("=")
    return f"{key}=choice({value})" if equals_sign and "." in key and "(" not in word else word


# --- from Python


def compose(words: Sequence[str] = ()) -> DictConfig:
    """The config of a run, as `--cfg job` shows it. Raises ValueError with the line that the command would print.

    Names and types of knobs are checked; whether they go together is checked by a launch or its dry run.
    """
    options, overrides = _split(words)
    with one_line_errors(words, _as_sweep(words)) as registry:
        if "--dry-run" in options or MULTIRUN & set(options):
            raise ValueError(f"{' '.join(options)}: rlvr.compose gives one config and launches nothing. Drop it.")
        return registry.compose(quoted(overrides))[0]


def run(words: Sequence[str] = ()) -> RunResult:
    """Train one run, or continue it, and return it when it has ended; on SLURM, when it is submitted.

    words: as on the command line: overrides, `--config-dir DIR`, `--dry-run`. Raises ValueError with the line that the
    command would print, and KeyboardInterrupt if the run was stopped: it has saved, and the same call continues it.
    """
    return _launched(words, one_run=True).runs[0]


def sweep(words: Sequence[str] = ()) -> SweepResult:
    """Train all runs of a sweep. As `run`, with several runs; `-m` need not be passed."""
    return _launched(words, one_run=False)


def load(
    study: str | None = None,
    *,
    sweep: str | SweepResult | None = None,
    home: Path | str | None = None,
    source: Literal["ledger", "mlflow"] = "ledger",
    uri: str | None = None,
    mixed_code: bool = False,
) -> Frames:
    """The tidy frames of a study or a sweep (default: the newest study), from which tables and figures are made.

    Raises ValueError if there is no such study or sweep and, unless `mixed_code`, if runs of one arm used different
    code: a mean of both belongs to neither.

    home: the directory that contains runs/; None: as for launches. uri: of MLflow, with source="mlflow".
    """
    _refuse_hidden_packages()
    from analysis.frames import load as frames

    sweep_id = sweep if sweep is None or isinstance(sweep, str) else sweep.sweep_id
    try:
        return frames.load(home, study=study, sweep=sweep_id, source=source, uri=uri, mixed_code=mixed_code)
    except LookupError as error:
        raise ValueError(str(error.args[0])) from error


def _launched(words: Sequence[str], *, one_run: bool) -> SweepResult:
    _refuse_hidden_packages()
    from sweeps.result import SweepResult

    options, overrides = _split(words)
    if threading.current_thread() is not threading.main_thread():
        raise ValueError("rlvr.run and rlvr.sweep must be called from the main thread: it receives the stop signals.")
    if one_run and MULTIRUN & set(options):
        raise ValueError("rlvr.run trains one run. A sweep: rlvr.sweep([...]).")
    multirun = [] if one_run or MULTIRUN & set(options) else ["-m"]
    typed = [*multirun, *(option for option in options if not OWN_FLAGS.fullmatch(option)), *overrides]
    with one_line_errors(typed, _as_sweep(words)) as registry:
        session = carry_out(typed, registry, dry_run="--dry-run" in options, one_run=one_run, show=num_shown(options))
    if any(launch.outcome.exit_code == terminal.INTERRUPTED for launch in session.launches):
        raise KeyboardInterrupt("runs have saved; the same call goes on with them")
    if len(session.launches) != 1:  # Hydra's own sweeper launches in batches, and others as they learn from results
        sweeps = ", ".join(launch.plan.sweep_id for launch in session.launches)
        raise ValueError(
            f"its sweeper made {len(session.launches)} launches ({sweeps}), and {_as_sweep(words)} returns one. "
            "Read each with rlvr.load(sweep=ID), or use hydra/sweeper=grid or optuna."
        )
    (launch,) = session.launches
    return SweepResult.of(launch, Ledger(layout.home()))


def _as_sweep(words: Sequence[str]) -> str:
    return f"rlvr.sweep({json.dumps(list(words))})"


def _split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """(options that are allowed from Python, overrides). Raises ValueError for other options and for a bare string."""
    if isinstance(words, str):
        raise ValueError(f'pass a list of words: ["{words}"].')
    unchecked: object = words
    if not isinstance(unchecked, Sequence) or not all(isinstance(word, str) for word in words):
        raise ValueError(f'{unchecked!r} is no list of words such as ["loss=grpo", "seed=1"].')
    options: list[str] = []
    overrides: list[str] = []
    remaining = iter(words)
    for word in remaining:
        if word in ("--config-dir", "-cd"):
            options += [word, next(remaining, "")]
        elif word in MULTIRUN or word == "--dry-run" or word.startswith(("--config-dir=", "--show")):
            options.append(word)
        elif word.startswith("-"):
            raise ValueError(
                f"{word} is for the command line. From Python: overrides, --config-dir DIR, --dry-run, --show."
            )
        else:
            overrides.append(with_home(word))
    return options, overrides


class _Callable(ModuleType):
    """The type of this module, which can be called like the function `run`."""

    def __call__(self, words: Sequence[str] = ()) -> RunResult:
        return run(words)


sys.modules[__name__].__class__ = _Callable


if __name__ == "__main__":
    sys.exit(main())
