"""Which modules of Foretune the page needs: what its Python imports, also inside functions, as far as it runs there."""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
ENTRY = "tools.browser_planner.answering"
_OURS = ("foretune", "tools")
SERVED = frozenset({"annotated_types", "pydantic", "pydantic_core", "typing_extensions", "typing_inspection", "yaml"})
"""Packages beside the standard library."""
# Configurations of other trainers and pages of runs: nothing of it can be asked on the page.
_LEFT_OUT = ("foretune.config.from_trainers.", "foretune.config.from_accelerate.", "foretune.analyse.")


@dataclass(frozen=True)
class _Imports:
    eager: set[str] = field(default_factory=set)
    lazy: set[str] = field(default_factory=set)
    """Inside functions."""


def needed_modules() -> dict[str, Path]:
    """The file of each needed module, by its name; packages that contain them are among them."""
    needed: dict[str, Path] = {}
    waiting = [ENTRY]
    while waiting:
        name = waiting.pop()
        if name in needed or name.startswith(_LEFT_OUT):
            continue
        eager = _eager_closure(name)
        if eager is None:
            continue
        for module in sorted(eager - set(needed)):
            path = _file_of(module)
            assert path is not None, f"{module} is imported, and is no module"
            needed[module] = path
            waiting += sorted(_imports_of(path).lazy)
    return dict(sorted(needed.items()))


def _eager_closure(name: str) -> set[str] | None:
    """All modules of ours that importing this one imports; None if something is among them that is not served."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        module = waiting.pop()
        if module in found:
            continue
        if module.partition(".")[0] not in _OURS:
            if module.partition(".")[0] not in SERVED | sys.stdlib_module_names:
                return None
            continue
        path = _file_of(module)
        if path is None:
            # A name that is imported from a module is no module itself.
            continue
        found.add(module)
        waiting += _imports_of(path).eager
        waiting += [module.rpartition(".")[0]] if "." in module else []
    return found


def _file_of(module: str) -> Path | None:
    base = (ROOT if module.startswith("tools") else ROOT / "src") / module.replace(".", "/")
    return next((path for path in (base / "__init__.py", base.with_suffix(".py")) if path.is_file()), None)


@cache
def _imports_of(path: Path) -> _Imports:
    found = _Imports()
    tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    for node, is_lazy in _walk(tree, is_lazy=False):
        target = found.lazy if is_lazy else found.eager
        if isinstance(node, ast.Import):
            target.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None, "there are no relative imports"
            target.add(node.module)
            target.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def _walk(node: ast.AST, *, is_lazy: bool) -> Iterator[tuple[ast.AST, bool]]:
    for child in ast.iter_child_nodes(node):
        yield child, is_lazy
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            continue
        is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        yield from _walk(child, is_lazy=is_lazy or is_function)
