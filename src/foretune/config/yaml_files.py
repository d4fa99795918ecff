"""YAML as experiments are written in it: read safely, nothing lost, nothing turned into something else."""

import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from foretune.core.errors import UserError
from foretune.core.input_files import read_text

_MOST_BYTES = 2**20
"""Of a file of choices; reading one takes seconds."""
_MOST_EXPANDED = 2**22
"""Letters and values of a file, with a copy of what an alias (`*name`) stands for wherever it stands."""
_MOST_DEEP = 100


def load_mapping(path: Path) -> dict[str, Any]:
    """The mapping that a YAML file of choices holds."""
    return load_foreign_mapping(
        path,
        if_missing=f"Run: foretune init {path}",
        example="`model: flux.1-dev`. Run: foretune init --help",
    )


def load_foreign_mapping(path: Path, *, if_missing: str, example: str) -> dict[str, Any]:
    """The mapping that a YAML file holds; the sentences say how one gets such a file, and what it looks like."""
    try:
        text = read_text(path, _MOST_BYTES)
    except FileNotFoundError:
        raise UserError(f"{path} does not exist. {if_missing}") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from error
    try:
        mapping = parse(text)
    except yaml.YAMLError as error:
        raise UserError(f"{path} cannot be read as YAML: {what_is_wrong(error)}") from error
    if not isinstance(mapping, dict):
        raise UserError(f"{path} should hold keys and values, such as {example}")
    return mapping


def parse(text: str) -> Any:
    """What a YAML text says; raises `yaml.YAMLError`."""
    try:
        return yaml.load(text, Loader=_Loader)  # noqa: S506 - a SafeLoader
    except RecursionError:
        raise yaml.YAMLError("it is nested too deeply") from None


def parse_written(text: str) -> Any:
    """What a YAML text says that a run wrote; raises `yaml.YAMLError`.

    By the reader in C, where the library was built with it: ten times as fast, which counts for many runs.
    """
    depth = 0
    # The reader in C calls itself for each level, and would end the process.
    for event in yaml.parse(text, Loader=_WrittenLoader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _MOST_DEEP:
            raise yaml.YAMLError("it is nested too deeply")
    return yaml.load(text, Loader=_WrittenLoader)  # noqa: S506 - a SafeLoader


def typed(value: Any) -> str:
    """A value as one types it in YAML, on one line."""
    return (
        yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10_000)
        .removesuffix("\n")
        .removesuffix("\n...")
    )


def what_is_wrong(error: yaml.YAMLError) -> str:
    """One line: where, and what."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        context = f" ({error.context})" if error.context else ""
        return f"line {error.problem_mark.line + 1}, column {error.problem_mark.column + 1}: {error.problem}{context}"
    return " ".join(str(error).split())


class _Bounded:
    """Refuses what grows beyond all measure when it is used: aliases of aliases, and aliases of themselves."""

    def get_single_node(self) -> Any:
        node = super().get_single_node()  # type: ignore[misc]
        if node is not None and _expanded(node, {}) > _MOST_EXPANDED:
            raise yaml.YAMLError(f"its aliases make more than {_MOST_EXPANDED:,} letters and values of it")
        return node


def _expanded(node: Any, known: dict[int, int | None]) -> int:
    """Letters and values of a node; `known` holds those of nodes seen before, and None while one is counted."""
    if id(node) in known:
        total = known[id(node)]
        if total is None:
            raise yaml.YAMLError("an alias stands in what it stands for")
        return total
    known[id(node)] = None
    if isinstance(node, yaml.ScalarNode):
        if any("\ud800" <= letter <= "\udfff" for letter in node.value):
            raise yaml.YAMLError("it has half of a character in it (an escape from \\ud800 to \\udfff)")
        total = 1 + len(node.value)
    elif isinstance(node, yaml.MappingNode):
        total = 1 + sum(_expanded(inner, known) for pair in node.value for inner in pair)
    else:
        total = 1 + sum(_expanded(inner, known) for inner in node.value)
    known[id(node)] = total
    return total


if yaml.__with_libyaml__:

    class _WrittenLoader(_Bounded, yaml.CSafeLoader):
        """For files of runs, which `yaml.safe_dump` wrote."""

else:

    class _WrittenLoader(_Bounded, yaml.SafeLoader):  # type: ignore[no-redef]
        """For files of runs, where the library has no reader in C."""


class _Loader(_Bounded, yaml.SafeLoader):
    """Refuses a key that stands twice, because one of the two would be lost.

    Plain words mean what YAML 1.2 says, as in editors: `off` is a word and 1e-4 a number. PyYAML's own YAML 1.1 makes
    them false and a text; it also makes dates, and 7200 of 2:00:00.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = (key_node.tag, key_node.value) if isinstance(key_node, yaml.ScalarNode) else None
            if key in seen:
                problem = f"the key {key_node.value!r} stands twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
            if key is not None:
                seen.add(key)
        return super().construct_mapping(node, deep)


_TAG = "tag:yaml.org,2002:"
_REPLACED = (f"{_TAG}bool", f"{_TAG}float", f"{_TAG}int", f"{_TAG}timestamp")
_NUMBER = r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"

_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in _REPLACED]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(f"{_TAG}bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))
# Before real numbers, which are also written so: the first one that fits is taken.
_Loader.add_implicit_resolver(
    f"{_TAG}int",
    re.compile(r"^[-+]?(?:0b[01_]+|0[0-7_]+|0|[1-9][0-9_]*|0x[0-9a-fA-F_]+)$"),
    list("-+0123456789"),
)
_Loader.add_implicit_resolver(
    f"{_TAG}float",
    re.compile(rf"^(?:{_NUMBER}|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"),
    list("-+.0123456789"),
)
