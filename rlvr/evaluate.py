"""Evaluate policies: any checkpoint, export, model or run, on any task, with any sampling and engine.

python -m rlvr.evaluate SOURCE... [KEY=VALUE ...]

  SOURCE   a run (id, name or directory), a study or sweep (its runs that are at their last step, without those of
           tune=), a checkpoint, an export, the directory of a model in Hugging Face format, or its name on the hub,
           OWNER/MODEL

Task, engine, length and evaluation are those with which the run was trained, unless others are typed:

  python -m rlvr.evaluate lad-js-eta1-s0 evaluation.samples=1024
  python -m rlvr.evaluate eta --with-base evaluation.temperature=0.6,1.0     a study and its base, two temperatures
  python -m rlvr.evaluate eta evaluation.temperature=0                       greedy
  python -m rlvr.evaluate eta task=skills                                    out of distribution
  python -m rlvr.evaluate Qwen/Qwen3-4B task=math task.test=math500.jsonl policy.chat=true rollout=vllm
                          evaluation.samples=64 evaluation.temperature=0.6 evaluation.top_p=0.95

Samples are kept and used again: 1024 samples after 8 draw only 1016, and an interrupted evaluation goes on.
Evaluations are runs on the ledger: `python -m sweeps status`, `logs` and `retry` work on them, cluster=slurm runs
them on SLURM, cluster.ranks shares one among processes. `python -m analysis --study evaluation` shows them.
  python -m rlvr.evaluate eta --final          on problems that no evaluation of training has seen, once

All knobs: docs/evaluate.md.
"""

import argparse
import copy
import functools
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlvr import run as runs
from rlvr.config import targets
from rlvr.config.compose import Composed
from rlvr.config.evaluation_config import check_words, evaluation_point
from rlvr.config.final_points import FinalQuery, ordinary_points
from rlvr.config.freeze import BEST, frozen_config
from rlvr.config.overrides import as_text, key_of, with_home
from rlvr.config.registry import Registry
from rlvr.ledger import gguf, layout, state, terminal
from rlvr.ledger.cause import State
from rlvr.ledger.checkpoints import best_checkpoint, checkpoints
from rlvr.ledger.identity import of_task, run_id
from rlvr.ledger.policies import HUB_NAME, digest_of, downloaded, is_checkpoint
from rlvr.ledger.runs import check_owner, read_config, read_info
from rlvr.ledger.stages import base_policy
from rlvr.ledger.sweeps import EVALUATION, TUNING, Ledger
from rlvr.ledger.tags import redact

NEWEST = "newest"  # --checkpoint by default
FINAL = "final"  # the study of evaluations on final splits
BASE = "base"  # name, in tables, of the policy that runs started from


@dataclass(frozen=True)
class EvaluatedPolicy:
    """A policy to evaluate. trained: the frozen config of the run that it comes from; None: a model from elsewhere."""

    path: Path
    name: str
    group: str
    step: int
    trained: Mapping[str, Any] | None = None
    import_paths: tuple[str, ...] = ()
    config_dirs: tuple[str, ...] = ()  # as import_paths, of that run

    @functools.cached_property
    def knobs(self) -> dict[str, Any]:
        """The knobs of conf/policy/evaluated.yaml."""
        return {
            "path": str(self.path),
            "digest": digest_of(self.path),
            "name": self.name,
            "group": self.group,
            "step": self.step,
        }


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit codes: 0 all finished, 1 an evaluation failed, 2 bad input, nothing launched, 130 interrupted."""
    terminal.set_up()
    words = [with_home(word) for word in (sys.argv[1:] if arguments is None else arguments)]
    options = _parser().parse_intermixed_args(words)
    overrides = [word for word in options.words if _is_override(word)]
    sources = [word for word in options.words if not _is_override(word)]
    flags = ["-m", *([f"--config-dir={options.config_dir}"] if options.config_dir is not None else [])]
    try:
        if options.final_budget and not options.final:
            raise ValueError(f"--final-budget {options.final_budget} allows queries of a final split. Add --final.")
        with runs.one_line_errors([*flags, *overrides]) as registry:
            check_words(overrides)
            policies = policies_of(sources, Ledger(layout.home()), options.checkpoint, with_base=options.with_base)
            policies = _with_distinct_names(policies, one_task="task" in map(key_of, overrides))
            overrides = _with_directories(policies, overrides, registry)
        with runs.one_line_errors([*flags, *overrides]) as registry:
            usual = _shared_options(policies, overrides, registry)
            study = options.study or (FINAL if options.final else EVALUATION)
            adapt = functools.partial(_points_of_policies, policies, usual=usual, study=study)
            about: dict[str, Any] = {"adapt": functools.partial(ordinary_points, adapt)}
            if options.final:
                trained = {policy.knobs["digest"]: policy.trained for policy in policies}
                command = redact(shlex.join(["python", "-m", "rlvr.evaluate", *words]))
                query = FinalQuery(trained, options.final_budget or 1, command)
                about = {"adapt": functools.partial(query.points, adapt), "record": query.record}
            typed = [word for word in words if not runs.OWN_FLAGS.fullmatch(word)]
            session = runs.carry_out(
                [*flags, *usual, *overrides],
                registry,
                dry_run=options.dry_run,
                as_json=options.json,
                show=runs.num_shown(words),
                typed=typed,
                program="rlvr.evaluate",
                **about,
            )
    except ValueError as error:
        if options.debug:
            raise
        print(f"rlvr.evaluate: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:  # before the launch, which handles signals itself
        return terminal.INTERRUPTED
    return max((launch.outcome.exit_code for launch in session.launches), default=0)


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is no number of queries: pass 1 or more")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = terminal.Parser("python -m rlvr.evaluate", description=__doc__)
    parser.add_argument("words", nargs="+", metavar="SOURCE | KEY=VALUE", help="as above; commas in a VALUE sweep")
    parser.add_argument(
        "--checkpoint",
        default=NEWEST,
        metavar="WHICH",
        help="of a run: newest (default), best (checkpoint.keep_best), all, base (its base policy), or a step",
    )
    parser.add_argument("--with-base", action="store_true", help="the base policies of the runs too, for comparison")
    parser.add_argument(
        "--study", help=f"the study that the evaluations belong to (default: {EVALUATION}, with --final {FINAL})"
    )
    parser.add_argument(
        "--final",
        action="store_true",
        help="on the final split: of generated tasks problems of their own, of data task.test=FILE; it is counted",
    )
    parser.add_argument(
        "--final-budget", type=_count, metavar="N", help="queries of a final split that are allowed (default: 1)"
    )
    parser.add_argument("--config-dir", help="a directory of further options, as for rlvr.run")
    parser.add_argument("--dry-run", action="store_true", help="show what would be evaluated, and stop")
    parser.add_argument(
        "--show", nargs="?", const=1, metavar="N", help="with --dry-run: N prompts as the model reads them"
    )
    parser.add_argument("--json", action="store_true", help="for programs: the evaluations, their directories, scores")
    parser.add_argument("--debug", action="store_true", help="the full traceback of an error")
    return parser


def _is_override(word: str) -> bool:
    return "=" in word and not _exists(word)


def _exists(word: str) -> bool:
    try:
        return Path(word).exists()
    except OSError:  # too long for a path
        return False


# --- which policies


def policies_of(
    sources: Sequence[str], ledger: Ledger, which: str, *, with_base: bool = False
) -> list[EvaluatedPolicy]:
    """The policies that sources name. Raises ValueError for a source that names none.

    which: checkpoints of runs, as for --checkpoint.
    """
    if not sources:
        raise ValueError("nothing to evaluate. Name a run, a study, a checkpoint, or a model by directory or hub name.")
    policies: list[EvaluatedPolicy] = []
    chosen = based = False  # whether some source has checkpoints to choose from; has a base policy
    for source in sources:
        path = Path(source).expanduser()
        exists = _exists(str(path))
        if exists and is_checkpoint(path):
            run_dir, based = layout.run_of(path.resolve()), True
            base = [_base(run_dir, read_config(run_dir))] if with_base else []
            policies += [_of_checkpoint(path.resolve()), *base]
        elif exists and (path / "config.json").is_file():
            policies.append(EvaluatedPolicy(path.resolve(), path.resolve().name, digest_of(path), 0))
        elif not exists and _is_hub_name(path):
            snapshot = downloaded(source)
            policies.append(EvaluatedPolicy(snapshot, path.name, digest_of(snapshot), 0))
        elif exists and path.suffix == gguf.SUFFIX:
            raise ValueError(
                f"{source} is no model in Hugging Face format until a run that trains on it (model.path={source}) has "
                "converted it. Name such a run, with --checkpoint base."
            )
        else:
            chosen = based = True
            if exists and layout.info(path).is_file():
                policies += _of_named_run(path.resolve(), which, with_base=with_base)
            else:
                policies += _of_name(source, ledger, which, with_base=with_base)
    if which != NEWEST and not chosen:
        raise ValueError(f"--checkpoint {which} chooses among the checkpoints of a run, and no run is named. Drop it.")
    if with_base and not based:
        raise ValueError("--with-base adds the base policies of runs, and no run is named. Name the base as a source.")
    return policies


def _is_hub_name(path: Path) -> bool:
    """Whether this is OWNER/MODEL, and not a mistyped path: OWNER is no existing directory and not that of runs."""
    is_path = path.parent.exists() or path.parent == layout.runs(Path())
    return len(path.parts) == 2 and HUB_NAME.fullmatch(str(path)) is not None and not is_path


def _of_name(source: str, ledger: Ledger, which: str, *, with_base: bool) -> list[EvaluatedPolicy]:
    """Policies of a run, or of all runs of a study or sweep that have the checkpoint; a message names the others.

    Runs that chose a value for others (`tune=`) are left out, as in the analysis, unless there are no others yet.
    """
    sweeps = ledger.resolve_sweeps(source)
    if not sweeps:
        return _of_named_run(ledger.run_dir(ledger.resolve_run(source)), which, with_base=with_base)
    policies: list[EvaluatedPolicy] = []
    reasons: list[str] = []
    lines = [line for sweep in sweeps for line in sweep.runs]
    lines = [line for line in lines if line.get("stage") != TUNING] or lines
    for run_dir in dict.fromkeys(ledger.run_dir(line["run_id"]) for line in lines):
        try:
            if unfinished := _unfinished(run_dir, which):
                raise ValueError(f"{unfinished} To evaluate it there, name the run itself.")
            policies += _of_run(run_dir, which, with_base=with_base)
        except ValueError as error:
            reasons.append(str(error))
    if not policies:
        raise ValueError(f"nothing of {source} can be evaluated: {reasons[0] if reasons else 'it has no runs.'}")
    for reason in reasons:
        print(f"left out: {reason}", file=sys.stderr)
    return policies


def _of_named_run(run_dir: Path, which: str, *, with_base: bool) -> list[EvaluatedPolicy]:
    """Policies of a run that is a source itself, with a message if it has not reached its last step."""
    if unfinished := _unfinished(run_dir, which):
        print(f"{unfinished} Its newest checkpoint is evaluated.", file=sys.stderr)
    return _of_run(run_dir, which, with_base=with_base)


def _unfinished(run_dir: Path, which: str) -> str:
    """A sentence if the newest checkpoint is to be evaluated and is not that of the last step; else ""."""
    kept = checkpoints(layout.checkpoints(run_dir))
    if which != NEWEST or not kept:
        return ""
    run = state.read(run_dir)
    if run.state is State.FINISHED:
        return ""
    step, steps = layout.step_of(kept[-1]) or 0, read_config(run_dir).get("steps") or 0
    return f"{run.name} ({run.state}) is at step {step} of {steps}." if step < steps else ""


def _of_run(run_dir: Path, which: str, *, with_base: bool) -> list[EvaluatedPolicy]:
    config = read_config(run_dir)
    if config.get("policy"):
        raise ValueError(f"{read_info(run_dir).name} is an evaluation itself. Name the run that it evaluated.")
    if config.get("program"):
        raise ValueError(
            f"{read_info(run_dir).name} was trained by another program, in whose checkpoints is no policy that we can "
            "read. Name the directory of a policy that it wrote."
        )
    kept = {str(layout.step_of(path)): path for path in checkpoints(layout.checkpoints(run_dir))}
    best = best_checkpoint(layout.checkpoints(run_dir))
    choices = {NEWEST: list(kept.values())[-1:], "all": list(kept.values()), "best": [best] if best else [], "base": []}
    if which not in choices and not which.isdigit():
        raise ValueError(f"--checkpoint {which}: pass newest, best, all, base or the number of a step.")
    chosen = choices.get(which, [kept[which]] if which in kept else [])
    if not chosen and which != "base":
        steps = f"steps {', '.join(kept)}" if kept else "none"
        raise ValueError(f"{read_info(run_dir).name} has no such checkpoint ({which}). It has: {steps}.")
    policies = [_of_checkpoint(path, BEST if which == "best" else "") for path in chosen]
    return policies + ([_base(run_dir, config)] if with_base or which == "base" else [])


def _of_checkpoint(path: Path, suffix: str = "") -> EvaluatedPolicy:
    """suffix: of name and group, instead of `@STEP`: BEST if each run of an arm is taken at a step of its own."""
    run_dir, step = layout.run_of(path), layout.step_of(path) or 0
    check_owner(run_dir)
    info = read_info(run_dir)
    suffix = suffix or f"@{step}"
    return EvaluatedPolicy(
        path, info.arm + suffix, info.group_id + suffix, step, read_config(run_dir), info.import_paths, info.config_dirs
    )


def _base(run_dir: Path, config: Mapping[str, Any]) -> EvaluatedPolicy:
    """The policy that a run started from: a stage, the directory of its `model.path`, or a model on the hub."""
    check_owner(run_dir)
    info, model_path = read_info(run_dir), str(config["model"].get("path") or "")
    path = base_policy(run_dir, model_path)
    if path is None and HUB_NAME.fullmatch(model_path):
        path = downloaded(model_path)
    if path is None:
        raise ValueError(f"the base policy of {info.name} is not on this machine. Name its directory as a source.")
    return EvaluatedPolicy(path.resolve(), BASE, digest_of(path), 0, config, info.import_paths, info.config_dirs)


def _with_distinct_names(policies: Sequence[EvaluatedPolicy], *, one_task: bool) -> list[EvaluatedPolicy]:
    """The policies, with a part of the group appended to names that several groups share.

    Base policies of different tasks may share the name `base`: tables compare each with the policies of its own task
    alone. one_task: all policies are evaluated on the same task.
    """
    groups: dict[tuple[str, str], set[str]] = {}
    for policy in policies:
        groups.setdefault(_name_and_task(policy, one_task), set()).add(policy.group)
    ambiguous = {name_and_task for name_and_task, sharing in groups.items() if len(sharing) > 1}
    if any(name == BASE for name, _ in ambiguous):
        print(
            "These policies started from several base policies of one task: tables compare them with none of these. "
            "Evaluate the policies of each base policy under a --study of their own.",
            file=sys.stderr,
        )
    return [
        replace(policy, name=f"{policy.name}-{policy.group[:4]}")
        if _name_and_task(policy, one_task) in ambiguous
        else policy
        for policy in policies
    ]


def _name_and_task(policy: EvaluatedPolicy, one_task: bool) -> tuple[str, str]:
    """A policy's name, and the task of a base policy if tasks differ; else ""."""
    if one_task or policy.name != BASE or policy.trained is None:
        return policy.name, ""
    return policy.name, repr(of_task(policy.trained["task"]))


# --- from sources and words to runs


def _with_directories(policies: Sequence[EvaluatedPolicy], overrides: Sequence[str], registry: Registry) -> list[str]:
    """The overrides, with the config directories of the runs' launches added to the search path, after the typed ones.

    registry: of the typed command.
    """
    recorded = dict.fromkeys(folder for policy in policies for folder in policy.config_dirs)
    added = [folder for folder in recorded if folder not in registry.folders]
    added = [folder for folder in added if "://" in folder or Path(folder).is_dir()]
    if not added:
        return list(overrides)
    quoted = ",".join(map(as_text, dict.fromkeys([*registry.folders, *added])))
    return [f"hydra.searchpath=[{quoted}]", *(word for word in overrides if key_of(word) != "hydra.searchpath")]


def _shared_options(policies: Sequence[EvaluatedPolicy], overrides: Sequence[str], registry: Registry) -> list[str]:
    """`task=` and `rollout=` where all runs share the option: typed knobs of these groups are composed with it."""
    keys = set(map(key_of, overrides))
    if any(policy.trained is None for policy in policies) and "task" not in keys:
        raise ValueError("a model that was not trained here has no task of its own. Pass task=...")
    words = ["policy=evaluated"]
    for group in ("task", "rollout"):
        options = {str((policy.trained or {}).get("choices", {}).get(group)) for policy in policies}
        if group not in keys and len(options) == 1 and (option := options.pop()) in registry.options(group):
            words.append(f"{group}={option}")
    return words


def _points_of_policies(
    policies: Sequence[EvaluatedPolicy], points: Sequence[Composed], *, usual: Sequence[str], study: str
) -> list[Composed]:
    """Every point of the sweep for every policy. A policy that two sources name is evaluated once."""
    adapted: list[Composed] = []
    first_policy: dict[str, int] = {}  # run id -> index of the first policy that has it
    baseline = f"policy={BASE}" if BASE in {policy.name for policy in policies} else None
    for index, policy in enumerate(policies):
        targets.make_importable(policy.import_paths, dict(policy.trained or {}))
        for overrides, config, choices in points:
            typed = [word for word in overrides if word not in usual]
            check_words([word for word in typed if key_of(word) != "policy"])
            if policy.trained is not None and "seed" in map(key_of, typed):
                raise ValueError("seed: the evaluation of a run has the seed of the run. Drop it.")
            composed = (list(typed), copy.deepcopy(config), choices)
            point = evaluation_point(composed, policy.knobs, policy.trained, typed)
            _, point_config, point_choices = point
            point_choices["study"] = study
            point_config.baseline = baseline
            if first_policy.setdefault(run_id(frozen_config(point_config, point_choices)), index) == index:
                adapted.append(point)
    return adapted


if __name__ == "__main__":
    sys.exit(main())
