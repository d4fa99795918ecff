"""The reference of the Python API in docs/api.md, from docstrings: `python -m tests.docs.api_page`."""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import foretune

PAGE = Path(__file__).parents[2] / "docs" / "api.md"
_PART = re.compile(r"(<!-- reference -->\n).*?(<!-- end -->)", re.DOTALL)
_PARAMETER = re.compile(r"^(\w+): (.*)$")


def reference() -> Iterator[str]:
    """Each name that the package offers: its signature, what it does, what its parameters mean."""
    functions = [name for name in foretune.__all__ if inspect.isfunction(getattr(foretune, name))]
    values = [name for name in foretune.__all__ if name not in functions]
    for title, names in (("Functions", functions), ("Values", values)):
        yield f"## {title}\n"
        for name in names:
            yield from _entry(name)


def _entry(name: str) -> Iterator[str]:
    found = getattr(foretune, name)
    text = inspect.getdoc(found) or ""
    yield f"### `{name}`\n"
    if inspect.isfunction(found):
        yield f"```text\n{_signature(found, f'foretune.{name}')}\n```\n"
    lead, *sections = re.split(r"\n(?=Args:|Raises:)", text)
    yield f"{lead.strip()}\n"
    for section in sections:
        heading, _, body = section.partition(":\n")
        yield f"{ {'Args': 'Parameters', 'Raises': 'Raises'}[heading] }:\n"
        yield from _rows(body)
        yield ""
    if inspect.isclass(found) and (parts := [*_attributes(found), *_methods(found)]):
        yield from parts
        yield ""


def _attributes(found: type) -> Iterator[str]:
    """Fields and properties with what stands under them; those without a sentence are named."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(found))).body
    assert isinstance(tree, ast.ClassDef)
    for node, following in zip(tree.body, [*tree.body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id[0] != "_":
            yield _attribute(node.target.id, _text_of(following))
        if isinstance(node, ast.FunctionDef) and _is_property(node) and node.name[0] != "_":
            yield _attribute(node.name, ast.get_docstring(node) or "")


def _attribute(name: str, text: str) -> str:
    return f"- `{name}`: {_first_sentences(text)}" if text else f"- `{name}`"


def _methods(found: type) -> Iterator[str]:
    for name, member in vars(found).items():
        if inspect.isfunction(member) and name[0] != "_":
            lead = _first_sentences(inspect.getdoc(member) or "")
            yield f"- `{_signature(member, name)}`{': ' if lead else ''}{lead}"


def _is_property(node: ast.FunctionDef) -> bool:
    names = {decorator.id for decorator in node.decorator_list if isinstance(decorator, ast.Name)}
    return bool(names & {"property", "cached_property"})


def _text_of(node: Any) -> str:
    """The sentence under an attribute, where there is one."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return inspect.cleandoc(node.value.value)
    return ""


def _first_sentences(text: str) -> str:
    """The first paragraph on one line."""
    return " ".join(text.split("\n\n", maxsplit=1)[0].split("\nArgs:", maxsplit=1)[0].split())


def _rows(body: str) -> Iterator[str]:
    joined: list[str] = []
    for line in inspect.cleandoc(body).splitlines():
        if line.startswith(" "):
            joined[-1] += f" {line.strip()}"
        elif line.strip():
            joined.append(line)
    for line in joined:
        found = _PARAMETER.match(line)
        assert found is not None, f"no parameter: {line}"
        yield f"- `{found[1]}`: {found[2]}"


def _signature(function: Any, name: str) -> str:
    """As it is called: names and defaults. The types are in the package, for editors and type checkers."""
    parts, is_keyword = [], False
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and not is_keyword:
            parts.append("*")
            is_keyword = True
        default = "" if parameter.default is inspect.Parameter.empty else f"={parameter.default!r}"
        parts.append(f"{parameter.name}{default}")
    return f"{name}({', '.join(parts)})"


def page() -> str:
    """The page with its reference as it is now."""
    made = "\n".join(reference()).rstrip() + "\n"
    return _PART.sub(lambda match: f"{match[1]}\n{made}\n{match[2]}", PAGE.read_text(encoding="utf-8"))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
