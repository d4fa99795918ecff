"""Names of model families: code outside `models` asks the table of facts, so that a new family changes nothing else."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from foretune.catalog import FAMILY_FACTS

MAY_NAME_FAMILIES = {
    "src/foretune/models/": "a family's own module, and its tiny pipeline",
    "src/foretune/catalog/families.py": "the table of facts",
    "src/foretune/catalog/tool_names/": "what other programs call a family and its layers",
    "src/foretune/backtests/": "what published rows call a model",
    "src/foretune/config/from_trainers/": "what other trainers call a family, and their habits by family",
    "src/foretune/cli/tiny.py": "examples in the help text, which tests/cli/test_tiny_verb.py compares with the table",
}
"""Files and folders, and why each names families."""

# As a word: "flux", but not the checkpoint "flux.1-dev" nor the module "foretune.models.flux".
_NAME = re.compile(rf"(?<![\w.-])(?:{'|'.join(map(re.escape, FAMILY_FACTS))})(?![\w-]|\.\w)")


def named_families(folder: Path, repository: Path) -> list[str]:
    """Names of families in string literals other than docstrings, in files that may not have them."""
    return [
        f"{shown}:{line}: {text!r}"
        for path in sorted(folder.rglob("*.py"))
        if not (shown := path.relative_to(repository).as_posix()).startswith(tuple(MAY_NAME_FAMILIES))
        for line, text in _literals(path)
        if _NAME.search(text)
    ]


def needless_permissions(repository: Path) -> list[str]:
    """Places that may name families and do not."""
    found = []
    for place in MAY_NAME_FAMILIES:
        path = repository / place
        files = path.rglob("*.py") if path.is_dir() else [path]
        if not any(_NAME.search(text) for file in files for _, text in _literals(file)):
            found.append(place)
    return found


def _literals(path: Path) -> Iterator[tuple[int, str]]:
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.lineno, node.value
