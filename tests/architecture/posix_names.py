"""Names of the standard library that Windows does not have, and where the package uses them without asking first."""

import ast
import functools
import importlib.util
from collections.abc import Iterator
from pathlib import Path

from tests.architecture.source_tree import read_tree

MODULES = ("os", "select", "signal", "socket", "sys", "time")
"""Modules of which Windows has a part."""

NOT_ON_WINDOWS = {
    "src/foretune/executors/local_server.py": "executors are refused",
    "src/foretune/executors/node_program.py": "executors are refused",
    "src/foretune/executors/watching.py": "executors are refused",
    "src/foretune/training/launching.py": "several processes are refused",
    "src/foretune/training/memory_now.py": "its method reads a file that only Linux has opened",
}
"""Files whose code never runs on Windows, and why."""

_QUESTIONS = ("os.name", "sys.platform", "platform.system", "hasattr", "getattr", "ModuleNotFoundError")


def posix_names(source: Path, allowed: frozenset[str] = frozenset(NOT_ON_WINDOWS)) -> list[str]:
    """Uses of names that only POSIX systems have, in functions that do not ask on which system they are."""
    missing, modules_missing = windows_lacks()
    violations = []
    for module in read_tree(source):
        if module.shown in allowed:
            continue
        for scope in _scopes(module.tree):
            used = [(node, name) for node in _own_nodes(scope) if (name := _used_name(node)) is not None]
            lacking = [(n, name) for n, name in used if name in missing or name.partition(".")[0] in modules_missing]
            if lacking and not _asks(scope):
                violations += [f"{module.at(node.lineno)}: {name}" for node, name in lacking]
    return sorted(set(violations))


@functools.cache
def windows_lacks() -> tuple[frozenset[str], frozenset[str]]:
    """Names such as `signal.SIGKILL`, and whole modules such as fcntl, by the type stubs that mypy ships."""
    spec = importlib.util.find_spec("mypy")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    stubs = Path(spec.submodule_search_locations[0]) / "typeshed/stdlib"
    names = set()
    for module in MODULES:
        path = stubs / f"{module}.pyi"
        elsewhere, windows = _names(path if path.exists() else stubs / module / "__init__.pyi")
        names |= {f"{module}.{name}" for name in elsewhere - windows}
    modules = set()
    for path in stubs.glob("*.pyi"):
        elsewhere, windows = _names(path)
        if not {name for name in windows if not name.startswith("_")} and "sys.platform" in path.read_text():
            modules.add(path.stem)
    return frozenset(names), frozenset(modules)


def _asks(scope: ast.Module | ast.FunctionDef) -> bool:
    """Whether a function asks on which system it is, or whether a name exists."""
    text = ast.unparse(scope)
    return isinstance(scope, ast.FunctionDef) and any(question in text for question in _QUESTIONS)


def _names(stub: Path) -> tuple[set[str], set[str]]:
    """What a stub defines on other systems than Windows, and what it defines on Windows."""
    elsewhere: set[str] = set()
    windows: set[str] = set()

    def walk(statements: list[ast.stmt], *, on_windows: bool, on_others: bool) -> None:
        for statement in statements:
            if isinstance(statement, ast.If):
                test = ast.unparse(statement.test)
                if "sys.platform == 'win32'" in test:
                    walk(statement.body, on_windows=on_windows, on_others=False)
                    walk(statement.orelse, on_windows=False, on_others=on_others)
                elif "sys.platform" in test:
                    walk(statement.body, on_windows=False, on_others=on_others)
                    is_windows = on_windows and "!= 'win32'" in test
                    walk(statement.orelse, on_windows=is_windows, on_others=on_others and not is_windows)
                else:  # Python's version
                    walk(statement.body, on_windows=on_windows, on_others=on_others)
                    walk(statement.orelse, on_windows=on_windows, on_others=on_others)
            elif isinstance(statement, ast.ClassDef) and statement.name == "Signals":
                walk(statement.body, on_windows=on_windows, on_others=on_others)
            elif not isinstance(statement, (ast.Import, ast.ImportFrom)):
                for name in _defined(statement):
                    if on_windows:
                        windows.add(name)
                    if on_others:
                        elsewhere.add(name)

    walk(ast.parse(stub.read_text(encoding="utf-8")).body, on_windows=True, on_others=True)
    return elsewhere, windows


def _defined(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
        yield statement.name
    elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        yield statement.target.id
    elif isinstance(statement, ast.Assign):
        yield from (target.id for target in statement.targets if isinstance(target, ast.Name))


def _scopes(tree: ast.Module) -> Iterator[ast.Module | ast.FunctionDef]:
    yield tree
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            yield node


def _own_nodes(scope: ast.AST) -> Iterator[ast.expr | ast.stmt]:
    """The nodes of a scope without those of functions in it."""
    for child in ast.iter_child_nodes(scope):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        if isinstance(child, (ast.expr, ast.stmt)):
            yield child
        yield from _own_nodes(child)


def _used_name(node: ast.expr | ast.stmt) -> str | None:
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return f"{node.value.id}.{node.attr}"
    if isinstance(node, ast.Import):
        return node.names[0].name
    return f"{node.module}.{node.names[0].name}" if isinstance(node, ast.ImportFrom) and node.module else None
