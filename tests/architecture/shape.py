"""The size of files and functions, and names that say nothing."""

import ast
from pathlib import Path

from foretune.core.vocabulary import MemoryPart, RunPhase
from tests.architecture.source_tree import read_tree

MOST_FILE_LINES = 400
MOST_FUNCTION_LINES = 60
VAGUE_NAMES = frozenset({"utils", "util", "helpers", "helper", "common", "misc"})
# Folders of tests that mirror no layer.
TEST_TOPICS = frozenset(
    {"tools", "architecture", "matrix", "cli", "docs", "examples", "mutants", "packaging", "proofs", "simulated"}
)

_NAMES_OTHER_THINGS = ("core.vocabulary", "choices.matrix")
"""The names themselves; and levers of the capability matrix."""


def long_files(source: Path) -> list[str]:
    """Files that tell two stories."""
    lengths = {module.shown: len(module.text.splitlines()) for module in read_tree(source)}
    return [f"{shown} has {lines} lines" for shown, lines in lengths.items() if lines > MOST_FILE_LINES]


def long_functions(source: Path) -> list[str]:
    """Functions that do not fit a screen, docstring included, decorators not.

    Of the API's functions the body alone counts: what each parameter means is the reference that users read.
    """
    violations = []
    for module in read_tree(source):
        for node in ast.walk(module.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                first = node.body[1:2] if module.layer == "api" and ast.get_docstring(node) is not None else []
                lines = node.end_lineno - (first[0].lineno if first else node.lineno) + 1
                if lines > MOST_FUNCTION_LINES:
                    violations.append(f"{module.at(node.lineno)}: {node.name} has {lines} lines")
    return violations


def types_defined_twice(source: Path) -> list[str]:
    """Names of public classes that two modules define: a reader who meets one must know which it is."""
    places: dict[str, list[str]] = {}
    for module in read_tree(source):
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(module.at(node.lineno))
    return [f"{name}: {', '.join(found)}" for name, found in sorted(places.items()) if len(found) > 1]


def vague_names(source: Path) -> list[str]:
    """Modules and folders that could hold anything."""
    return [
        f"{module.shown}: {part!r} says nothing"
        for module in read_tree(source)
        for part in module.name.split(".")
        if part.strip("_") in VAGUE_NAMES
    ]


def stray_test_folders(tests: Path, layers: tuple[str, ...]) -> list[str]:
    """Folders of tests that mirror no layer and are no known topic."""
    allowed = TEST_TOPICS | set(layers)
    return [
        f"{folder} mirrors no layer and is no topic"
        for folder in sorted(tests.iterdir())
        if folder.is_dir() and folder.name not in allowed and not folder.name.startswith(("_", "."))
    ]


def repeated_vocabulary(source: Path) -> list[str]:
    """Names of phases and parts of memory that stand as text where `core/vocabulary.py` has a member for them.

    Single words mean other things, too; those of several words do not.
    """
    names = {str(member) for kind in (RunPhase, MemoryPart) for member in kind if " " in member}
    return [
        f"{module.at(node.lineno)}: {node.value!r}"
        for module in read_tree(source)
        if not module.name.endswith(_NAMES_OTHER_THINGS)
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Constant) and node.value in names
    ]
