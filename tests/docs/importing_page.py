"""Writes the tables of docs/importing.md from those that the import uses: `python -m tests.docs.importing_page`."""

import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

from foretune.config.from_trainers.importing import TRANSLATORS
from foretune.config.from_trainers.programs import PROGRAMS

PAGE = Path(__file__).parents[2] / "docs" / "importing.md"
_PART = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def written(page: str) -> str:
    """The page with its tables filled in."""
    return _PART.sub(lambda found: f"{found[1]}{_PARTS[found[2]]()}\n{found[3]}", page)


def _table(*rows: Iterable[str]) -> str:
    first, *others = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join([first, "|---|---|", *others])


def _code(names: str, separator: str) -> str:
    return ", ".join(f"`{name}`" for name in names.split(separator))


def _programs() -> str:
    return _table(("program", "file"), *((program.title, program.file) for program in PROGRAMS.values()))


def _unlike() -> str:
    return _table(
        ("program", "not imitated"), *((program.title, "; ".join(program.unlike())) for program in PROGRAMS.values())
    )


def _keys(program: str) -> str:
    """Keys that are read together first; then those with one setting of the same meaning."""
    translator = TRANSLATORS[program]
    return _table(
        ("in the file", "here"),
        *(
            (_code(theirs, " "), ours if " " in ours and "," not in ours else _code(ours, ", "))
            for theirs, ours in translator.OTHERS
        ),
        *((f"`{rule.key}`", f"`{rule.setting}`") for rule in translator.RULES),
    )


_PARTS: Mapping[str, Callable[[], str]] = {
    "programs": _programs,
    "unlike": _unlike,
    **{program.replace("-", "_"): partial(_keys, program) for program in PROGRAMS},
}
PARTS = frozenset(_PARTS)

if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
