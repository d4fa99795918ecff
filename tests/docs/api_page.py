"""The reference of the Python API in docs/python.md, from docstrings: `python -m tests.docs.api_page`."""

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import foretune

PAGE = Path(__file__).parents[2] / "docs" / "python.md"
_PART = re.compile(r"(<!-- reference -->\n).*?(<!-- end -->)", re.DOTALL)
_PARAMETER = re.compile(r"^(\w+): (.*)$")


def reference() -> Iterator[str]:
    """Each name that the package offers: its signature, what it does, what its parameters mean."""
    functions = [name for name in foretune.__all__ if inspect.isfunction(getattr(foretune, name))]
    values = [name for name in foretune.__all__ if name not in functions]
    for title, names in (("Functions", functions), ("Values", values)):
        yield f"### {title}\n"
        for name in names:
            yield from _entry(name)


def _entry(name: str) -> Iterator[str]:
    found = getattr(foretune, name)
    text = inspect.getdoc(found) or ""
    yield f"#### `{name}`\n"
    if inspect.isfunction(found):
        yield f"```text\n{_signature(name)}\n```\n"
    lead, *sections = re.split(r"\n(?=Args:|Raises:)", text)
    yield f"{lead.strip()}\n"
    for section in sections:
        heading, _, body = section.partition(":\n")
        yield f"{ {'Args': 'Parameters', 'Raises': 'Raises'}[heading] }:\n"
        yield from _rows(body)
        yield ""


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


def _signature(name: str) -> str:
    """As it is called: names and defaults. The types are in the package, for editors and type checkers."""
    parts, is_keyword = [], False
    for parameter in inspect.signature(getattr(foretune, name)).parameters.values():
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and not is_keyword:
            parts.append("*")
            is_keyword = True
        default = "" if parameter.default is inspect.Parameter.empty else f"={parameter.default!r}"
        parts.append(f"{parameter.name}{default}")
    return f"foretune.{name}({', '.join(parts)})"


def page() -> str:
    """The page with its reference as it is now."""
    made = "\n".join(reference()).rstrip() + "\n"
    return _PART.sub(lambda match: f"{match[1]}\n{made}\n{match[2]}", PAGE.read_text(encoding="utf-8"))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
