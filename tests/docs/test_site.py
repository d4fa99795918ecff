"""The documentation site: every page is in the navigation once, and the landing page leads to each group of pages."""

import re
import tomllib
from pathlib import Path
from typing import Any

from foretune.choices.earlier_keys import RENAMED_KEYS
from foretune.config.reference import reference_pages

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
NAV: list[dict[str, list[Any]]] = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]["nav"]
LANDING = (DOCS / "index.md").read_text(encoding="utf-8")


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


def test_landing_page_leads_to_every_task() -> None:
    (tasks,) = [entries for section in NAV for name, entries in section.items() if name == "Tasks"]
    rows = re.findall(r"^\| (\w+ it) \| .+ \| (.+) \|$", LANDING, re.MULTILINE)
    assert [title for title, _ in rows] == [title for entry in tasks for title in entry]
    for (_, links), entry in zip(rows, tasks, strict=True):
        assert set(re.findall(r"\]\(([\w/-]+\.md)\)", links)) >= set(entry.values())


def test_landing_page_leads_to_every_trainer() -> None:
    assert set(re.findall(r"\]\(coming-from/([\w-]+)\.md\)", LANDING)) == {
        path.stem for path in (DOCS / "coming-from").iterdir()
    }


def test_the_page_on_security_is_that_of_the_repository() -> None:
    """The first two lines of SECURITY.md are its title, which the page has itself."""
    (included,) = re.findall(r'^--8<-- "(.+):3:"$', (DOCS / "security.md").read_text(encoding="utf-8"), re.MULTILINE)
    lines = (ROOT / included).read_text(encoding="utf-8").splitlines()
    assert lines[:2] == ["# Security", ""]
    assert not re.search(r"\]\((?!https?:|#)", "\n".join(lines)), "a link to a file leads nowhere on the site"


def test_landing_page_has_one_picture() -> None:
    assert len(re.findall(r"!\[", LANDING)) == 1
