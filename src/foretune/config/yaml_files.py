"""YAML as experiments are written in it: read safely, nothing lost, nothing turned into something else."""

import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from foretune.core.errors import UserError


def load_mapping(path: Path) -> dict[str, Any]:
    """The mapping a YAML file holds."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"{path} does not exist. Run: foretune init {path}") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not text in UTF-8 ({error.reason} at byte {error.start}).") from error
    try:
        mapping = parse(text)
    except yaml.YAMLError as error:
        raise UserError(f"{path} cannot be read as YAML: {what_is_wrong(error)}") from error
    if not isinstance(mapping, dict):
        raise UserError(f"{path} should hold keys and values, such as `model: flux.1-dev`. Run: foretune init --help")
    return mapping


def parse(text: str) -> Any:
    """What a YAML text says; raises `yaml.YAMLError`."""
    return yaml.load(text, Loader=_Loader)  # noqa: S506 - a SafeLoader


def what_is_wrong(error: yaml.YAMLError) -> str:
    """One line: where, and what."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        context = f" ({error.context})" if error.context else ""
        return f"line {error.problem_mark.line + 1}, column {error.problem_mark.column + 1}: {error.problem}{context}"
    return " ".join(str(error).split())


class _Loader(yaml.SafeLoader):
    """Refuses a key that stands twice, because one of the two would be lost.

    Plain words mean what YAML 1.2 says, as in editors: `off` is a word and 1e-4 a number. PyYAML's own YAML 1.1 makes
    them false and a text; it also makes dates.
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
_REPLACED = (f"{_TAG}bool", f"{_TAG}float", f"{_TAG}timestamp")
_NUMBER = r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"

_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in _REPLACED]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(f"{_TAG}bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))
_Loader.add_implicit_resolver(
    f"{_TAG}float",
    re.compile(rf"^(?:{_NUMBER}|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"),
    list("-+.0123456789"),
)
