"""Writes the tables about other trainers from those that the import uses: `python -m tests.docs.importing_page`."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from foretune.config.from_trainers import diffusers_keys, kohya_keys
from foretune.config.from_trainers.importing import TRANSLATORS
from foretune.config.from_trainers.programs import PROGRAMS

DOCS = Path(__file__).parents[2] / "docs"
IMPORTING = DOCS / "importing.md"
PAGES = {program: DOCS / "coming-from" / f"{program}.md" for program in PROGRAMS}
_PART = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
_UNEXPLAINED = "it is not supported"
"""What is answered for keys that nothing else can be said about."""


def written(page: str, program: str | None) -> str:
    """The page with its tables filled in: that of a program, or the one on all of them."""
    return _PART.sub(lambda found: f"{found[1]}{_table(*PARTS[found[2]](program))}\n{found[3]}", page)


def parts(page: str) -> list[str]:
    """The names of the tables in a page."""
    return [name for _, name, _ in _PART.findall(page)]


def _table(*rows: Iterable[str]) -> str:
    first, *others = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join([first, "|---|---|", *others])


def _code(names: str, separator: str) -> str:
    return ", ".join(f"`{name}`" for name in names.split(separator))


def _programs(_: str | None) -> Iterator[tuple[str, str]]:
    yield "program", "file"
    for program in PROGRAMS.values():
        yield program.title, program.file


def _unlike(_: str | None) -> Iterator[tuple[str, str]]:
    yield "program", "not imitated"
    for program in PROGRAMS.values():
        yield program.title, "; ".join(program.unlike())


def _keys(program: str | None) -> Iterator[tuple[str, str]]:
    """Keys that are read together first; then those with one setting of the same meaning."""
    assert program is not None
    yield "in the file", "here"
    for theirs, ours in TRANSLATORS[program].OTHERS:
        yield _code(theirs, " "), ours if " " in ours and "," not in ours else _code(ours, ", ")
    for rule in TRANSLATORS[program].RULES:
        yield f"`{rule.key}`", f"`{rule.setting}`"


def _missing(program: str | None) -> Iterator[tuple[str, str]]:
    """Keys with an answer first, then how many there are without one; `foretune import` names those of a file."""
    assert program is not None
    yield "in the file", "here"
    unexplained: list[str] = []
    for known in TRANSLATORS[program].KNOWN:
        if known.outcome == "not supported" and known.text != _UNEXPLAINED:
            yield _code(known.names, " "), known.text
        elif known.outcome == "not supported":
            unexplained += known.names.split()
    first = ", ".join(f"`{name}`" for name in unexplained[:8])
    yield f"{first} and {len(unexplained) - 8} more", "not supported; `foretune import` names those in your file"


def _scripts(program: str | None) -> Iterator[tuple[str, str]]:
    yield "script", "trains"
    if program == "diffusers":
        for name, script in diffusers_keys.SCRIPTS.items():
            yield f"`{name}.py`", f"{script.model or 'the model that it names'}, `method.kind={script.method}`"
    else:
        methods = {"network": "an adapter: `network_module` says which", "full": "`method.kind=full`"}
        for name, (method, model) in kohya_keys.SCRIPTS.items():
            yield (
                f"`{name}.py`",
                f"{model}, {methods[method]}" if model else "refused: its model is not in the catalogue",
            )


PARTS: Mapping[str, Callable[[str | None], Iterator[tuple[str, str]]]] = {
    "programs": _programs,
    "unlike": _unlike,
    "keys": _keys,
    "missing": _missing,
    "scripts": _scripts,
}

if __name__ == "__main__":
    for program, path in [(None, IMPORTING), *PAGES.items()]:
        path.write_text(written(path.read_text(encoding="utf-8"), program), encoding="utf-8")
