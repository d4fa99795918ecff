"""A source tree as the rules see it: each module parsed once, each import with where it points."""

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
SOURCE = REPOSITORY / "src"
PACKAGE = "foretune"

# Writes a small package, paths to texts, and returns its source folder: what controls are made of.
Plant = Callable[[Mapping[str, str]], Path]

# What a registry holds for an object that it imports when asked: "foretune.models.flux:FAMILY".
_REGISTRY_TARGET = re.compile(rf"({PACKAGE}(?:\.\w+)+):\w+")
_IMPORTING_CALLS = {"import_module", "__import__"}


@dataclass(frozen=True, kw_only=True)
class Module:
    """One parsed file of the package."""

    name: str
    path: Path
    shown: str
    """The path from the root of the repository."""
    text: str
    tree: ast.Module

    @property
    def layer(self) -> str:
        """The folder under the package, or "" for a module that lies in the package itself."""
        parts = self.name.split(".")
        in_folder = len(parts) > 2 or (len(parts) == 2 and self.path.name == "__init__.py")
        return parts[1] if in_folder else ""

    def at(self, line: int) -> str:
        """Where something is, as editors understand it."""
        return f"{self.shown}:{line}"


@dataclass(frozen=True, kw_only=True)
class Import:
    """One name that a module imports, by whichever means."""

    target: str
    """The dotted module: `a.b` for `import a.b`, and for `from a import b` where b is itself a module."""

    line: int

    when_loaded: bool
    """Executed as soon as the importing module is: not inside a function, not only for the type checker."""


def read_tree(source: Path) -> list[Module]:
    """All modules of the package under `source`, by name."""
    modules = []
    for path in sorted((source / PACKAGE).rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        text = path.read_text(encoding="utf-8")
        shown = str(path.relative_to(source.parent))
        modules.append(Module(name=name, path=path, shown=shown, text=text, tree=ast.parse(text, filename=shown)))
    assert modules, f"there is no package {PACKAGE} in {source}"
    return modules


def by_name(modules: list[Module]) -> Mapping[str, Module]:
    """The modules by their dotted names."""
    return {module.name: module for module in modules}


def imports_of(module: Module, known: Mapping[str, Module]) -> list[Import]:
    """Everything the module imports: statements at any depth, import calls and registry targets."""
    return list(_walk(module.tree, module, known, when_loaded=True))


def _walk(node: ast.AST, module: Module, known: Mapping[str, Module], *, when_loaded: bool) -> Iterator[Import]:
    for target in _targets(node, module, known):
        # A registry's string imports when it is asked for, an import statement when it is reached.
        is_string = isinstance(node, ast.Constant)
        yield Import(target=target, line=_line(node), when_loaded=when_loaded and not is_string)
    if isinstance(node, ast.If) and _is_type_checking(node.test):
        for statement in node.body:
            yield from _walk(statement, module, known, when_loaded=False)
        for statement in node.orelse:
            yield from _walk(statement, module, known, when_loaded=when_loaded)
        return
    inside_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    for child in ast.iter_child_nodes(node):
        yield from _walk(child, module, known, when_loaded=when_loaded and not inside_function)


def _targets(node: ast.AST, module: Module, known: Mapping[str, Module]) -> Iterator[str]:
    match node:
        case ast.Import():
            yield from (alias.name for alias in node.names)
        case ast.ImportFrom():
            origin = _origin(node, module)
            for alias in node.names:
                submodule = f"{origin}.{alias.name}"
                yield submodule if submodule in known else origin
        case ast.Call(func=ast.Name(id=called) | ast.Attribute(attr=called), args=[ast.Constant(value=str(name)), *_]):
            if called in _IMPORTING_CALLS:
                yield name
        case ast.Constant(value=str(text)):
            if found := _REGISTRY_TARGET.fullmatch(text):
                yield found.group(1)


def _origin(node: ast.ImportFrom, module: Module) -> str:
    """The module that a `from` names, relative ones made absolute."""
    if node.level == 0:
        assert node.module is not None
        return node.module
    package = module.name.split(".")
    is_package = module.path.name == "__init__.py"
    parents = package[: len(package) - node.level + is_package]
    return ".".join([*parents, *([node.module] if node.module else [])])


def _is_type_checking(test: ast.expr) -> bool:
    name = test.attr if isinstance(test, ast.Attribute) else test.id if isinstance(test, ast.Name) else ""
    return name == "TYPE_CHECKING"


def _line(node: ast.AST) -> int:
    line = getattr(node, "lineno", 0)
    assert isinstance(line, int)
    return line
