"""The documentation site: every page is in the navigation once, and the landing page leads to each group of pages."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from foretune.choices.earlier_keys import RENAMED_KEYS
from foretune.config.reference import reference_pages

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
NAV: list[dict[str, list[Any]]] = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]["nav"]
LANDING = (DOCS / "index.md").read_text(encoding="utf-8")
PATHS = {"Does it fit?": "plan", "Tune it": "train", "Measure it": "report"}


def pages_in(entry: str | list[Any] | dict[str, Any]) -> list[str]:
    """The pages of an entry of the navigation: a page, a list of entries, or a titled page or list."""
    if isinstance(entry, str):
        return [entry]
    return [page for inner in (entry if isinstance(entry, list) else entry.values()) for page in pages_in(inner)]


def titles_in(entry: str | list[Any] | dict[str, Any]) -> list[str]:
    """What the navigation shows: a given title, or else the first heading of the page."""
    if isinstance(entry, str):
        return [(DOCS / entry).read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")]
    if isinstance(entry, list):
        return [title for inner in entry for title in titles_in(inner)]
    return [
        title for given, inner in entry.items() for title in ([given] if isinstance(inner, str) else titles_in(inner))
    ]


def landing_path(title: str) -> str:
    return LANDING.split(f"## {title}\n")[1].split("\n## ")[0]


def test_every_page_is_in_the_navigation_once() -> None:
    written = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))
    assert sorted(pages_in(NAV)) == written, "list each page of docs/ once in `nav` in zensical.toml"


def test_navigation_titles_differ() -> None:
    titles = titles_in(NAV)
    assert len(titles) == len(set(titles)) == len(pages_in(NAV))


def test_key_pages_are_generated() -> None:
    written = {path.name: path.read_text(encoding="utf-8") for path in (DOCS / "keys").iterdir()}
    assert written == reference_pages(), "docs/keys is out of date. Run: foretune schema --pages docs/keys"


def test_experiments_page_links_to_every_section() -> None:
    page = (DOCS / "experiments.md").read_text(encoding="utf-8")
    assert {f"keys/{name}" for name in reference_pages()} == set(re.findall(r"\((keys/\w+\.md)", page))


def test_experiments_page_lists_the_renamed_keys() -> None:
    page = (DOCS / "experiments.md").read_text(encoding="utf-8")
    table = page.split("## Keys of earlier versions\n")[1].split("\n## ")[0]
    assert dict(re.findall(r"^\| `([\w.]+)` \| `([\w.]+)` \|$", table, re.MULTILINE)) == RENAMED_KEYS


@pytest.mark.parametrize(("title", "verb"), PATHS.items())
def test_landing_page_has_a_command_and_leads_on(title: str, verb: str) -> None:
    text = landing_path(title)
    (command,) = re.findall(r"^```bash\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert command.splitlines()[-1].startswith(f"foretune {verb} ")
    (group,) = [entries for section in NAV for name, entries in section.items() if name == title]
    assert set(re.findall(r"\]\(([\w-]+\.md)\)", text)) & set(pages_in(group))


def test_landing_page_has_one_picture() -> None:
    assert len(re.findall(r"!\[", LANDING)) == 1
