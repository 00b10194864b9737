import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
MEANT = {
    # A fork may come at any time after the import, and a lock that two processes believe theirs is lost data.
    "rlvr/ledger/lock.py": ["os.register_at_fork(after_in_child=_drop_inherited_locks)"],
    # pyarrow asks which packages there are at its first array, wherever that is.
    "rlvr/ledger/samples.py": [
        "if 'pandas' not in sys.modules:\n    sys.meta_path.insert(0, _NoPandas)\n    pa.array([])\n"
        "    sys.meta_path.remove(_NoPandas)"
    ],
    # transformers asks which optional packages it may import as soon as its first model is imported.
    "rlvr/model/hugging_face.py": [
        "import_utils._is_package_available = _is_available",
        "for _package in NOT_USED:\n    getattr(import_utils, f'is_{_package}_available').cache_clear()",
    ],
    # Imported under this name it is a process of vLLM's own, which must end with the one that started it.
    "rlvr/rollout/vllm_server.py": ["if __name__ == '__mp_main__':\n    end_with_parent()"],
    # `rlvr.run` is the module of `python -m rlvr.run` and the function of docs/python.md.
    "rlvr/run.py": ["sys.modules[__name__].__class__ = _Callable"],
}
# Programs of verifier processes: they are run, not imported by what trains.
PROGRAMS = "rlvr/task/verify/"


def modules() -> Iterator[str]:
    for file in sorted((ROOT / "rlvr").rglob("*.py")):
        name = file.relative_to(ROOT).as_posix()
        if not name.startswith(PROGRAMS):
            yield name


def effects(source: str) -> list[str]:
    """Statements of a module that do something: neither an import, a definition, a docstring nor a name's value."""
    return [ast.unparse(statement) for statement in ast.parse(source).body if not _defines(statement)]


def _defines(statement: ast.stmt) -> bool:
    match statement:
        case ast.Import() | ast.ImportFrom() | ast.FunctionDef() | ast.ClassDef() | ast.AnnAssign(target=ast.Name()):
            return True
        case ast.Expr(value=ast.Constant()):
            return True
        case ast.Assign(targets=targets):
            return all(isinstance(target, ast.Name | ast.Tuple) for target in targets)
        case ast.If(test=test):
            return ast.unparse(test) in ("TYPE_CHECKING", "__name__ == '__main__'")
    return False


def test_importing_has_no_side_effect() -> None:
    of_modules = {name: effects((ROOT / name).read_text()) for name in modules()}
    assert {name: found for name, found in of_modules.items() if found} == MEANT


def test_an_effect_is_seen() -> None:
    for source in (
        "os.environ['RAY_AUTH_MODE'] = 'token'",
        "warnings.filterwarnings('ignore')",
        "AttentionInterface.register(NAME, attend)",
        "nn.Module.forward = mine",
        "for name in names:\n    register(name)",
    ):
        assert effects(f'"""A module."""\nimport os\nNAME = "a"\n\n{source}') == [source]
