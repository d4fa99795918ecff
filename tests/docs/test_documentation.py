"""README and docs are part of the program: their commands run, their tables are true, their links lead somewhere."""

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from foretune.cli.main import app
from foretune.config.reading import understand
from tests.forked_python import ForkedPython

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), ROOT / "examples" / "README.md")
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)(?:#([\w-]+))?\)")


def blocks(page: Path, language: str) -> list[str]:
    return [body for name, body in FENCE.findall(page.read_text(encoding="utf-8")) if name == language]


STORY = tuple(ROOT / "docs" / f"{name}.md" for name in ("start", "tune", "measure", "sharing"))
"""Pages that continue with the run of the first one: they run in one folder, in this order."""


def lines(*pages: Path) -> list[str]:
    scripts = [script.replace("\\\n", " ") for page in pages for script in blocks(page, "bash")]
    return [line for script in scripts for line in script.splitlines()]


def is_run_alone(page: Path) -> bool:
    """Those of the page on claims are run by its own test, which looks at what they print; those that another page has
    as well run there.
    """
    commands = lines(page)
    return bool(commands) and page.stem != "claims" and page not in STORY and not set(commands) <= set(lines(*STORY))


def run(script: str, work: Path, variables: Mapping[str, str]) -> None:
    answer = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=work,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, f"{script}\n{answer.stdout}\n{answer.stderr}"
    assert "Traceback" not in answer.stderr


@pytest.mark.takes_turns
@pytest.mark.parametrize("page", [page for page in PAGES if is_run_alone(page)], ids=lambda page: page.stem)
def test_commands_run(page: Path, tmp_path: Path, forked_python: ForkedPython) -> None:
    work = tmp_path / "work"
    work.mkdir()
    # What is measured of this machine here must not be in the plans of other tests.
    own_cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")} if page.stem == "calibrating" else {}
    for script in blocks(page, "bash"):
        run(script, work, {**forked_python.variables, **own_cache})


@pytest.mark.every_run
def test_the_pages_of_the_tasks_run_one_after_another(tmp_path: Path, forked_python: ForkedPython) -> None:
    for page in STORY:
        for script in blocks(page, "bash"):
            run(script, tmp_path, forked_python.variables)
    assert (tmp_path / "report.html").stat().st_size > 10_000
    assert (tmp_path / "side-by-side.png").stat().st_size > 1000
    assert (tmp_path / "my-adapter" / "pytorch_lora_weights.safetensors").is_file()
    assert list(tmp_path.glob("runs/quick/*/publish/README.md"))


def test_readme_shows_the_commands_of_the_first_page() -> None:
    """In their order, so that they run as they stand there."""
    shown = lines(ROOT / "README.md")
    assert len(shown) >= 5
    assert [line for line in lines(STORY[0]) if line in shown] == shown


def test_readme_experiment_is_accepted() -> None:
    (text,) = blocks(ROOT / "README.md", "yaml")
    asked = understand(yaml.safe_load(text), source="README.md")
    assert asked.model.family == "flux"
    assert asked.experiment.validation.every == 250


def test_the_page_on_commands_names_every_command() -> None:
    named = set(re.findall(r"^\| `foretune ([\w-]+)", (ROOT / "docs" / "commands.md").read_text(), re.MULTILINE))
    assert named == {c.name for c in app.registered_commands} | {g.name for g in app.registered_groups}


def test_landing_page_shows_what_plan_prints(tmp_path: Path, forked_python: ForkedPython) -> None:
    page = ROOT / "docs" / "index.md"
    command = blocks(page, "bash")[0]
    (shown,) = re.findall(r"^> (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    answer = subprocess.run(
        ["bash", "-c", command],
        cwd=tmp_path,
        env={**os.environ, **forked_python.variables},
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown in answer.stdout.splitlines(), f"docs/index.md does not show what is printed now:\n{answer.stdout}"


def test_experiments_page_shows_a_valid_experiment() -> None:
    (text,) = blocks(ROOT / "docs" / "experiments.md", "yaml")
    assert understand(yaml.safe_load(text), source="docs/experiments.md").experiment.train.steps == 1000


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}-{page.stem}")
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in LINK.findall(page.read_text(encoding="utf-8")):
        path = (page.parent / target).resolve()
        assert path.exists(), f"{page.name} links to {target}"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
            slugs = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert anchor in slugs, f"{page.name} links to {target}#{anchor}"


def test_figures_were_filled_in() -> None:
    for page in PAGES:
        assert not re.search(r"\b[A-Z]+_FIGURES?\b", page.read_text(encoding="utf-8")), page
