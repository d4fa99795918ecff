"""No page shows a command, an option or a key that does not exist, whether or not the command can run here."""

import re
from pathlib import Path

import pytest

from tests.docs.command_lines import commands, is_key, mistakes

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), ROOT / "examples" / "README.md")


def test_every_command_on_a_page_exists() -> None:
    texts = {page.relative_to(ROOT): page.read_text(encoding="utf-8") for page in PAGES}
    read = [(page, command) for page, text in texts.items() for command in commands(text)]
    assert len(read) > 300, "the commands are not found any more"
    wrong = [f"{page}: {command}: {'; '.join(found)}" for page, command in read if (found := mistakes(command))]
    assert wrong == []


@pytest.mark.parametrize(
    ("command", "mistake"),
    [
        ("foretune plot runs", "there is no command plot"),
        ("foretune plan flux.1-dev --card rtx-4090", "there is no option --card"),
        ("foretune train a.yaml train.batch=2", "there is no key train.batch"),
        ("foretune data unpack a.zip", "there is no command unpack"),
        ("foretune train experiment.yaml train.batch_size=2 --runs there", None),
        ("foretune resume RUN levers.gradient_checkpointing=1", None),
    ],
)
def test_control_planted_mistakes_are_found(command: str, mistake: str | None) -> None:
    assert mistakes(command) == ([mistake] if mistake else [])


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "coming-from").glob("*.md")), ids=lambda page: page.stem)
def test_keys_that_other_trainers_keys_become_exist(page: Path) -> None:
    rows = re.findall(r"^\| (.+?) \| (.+) \|$", page.read_text(encoding="utf-8"), re.MULTILINE)
    ours = {name for _, cell in rows for name in re.findall(r"`([a-z_]+\.[a-z_]+)`", cell)}
    assert len(ours) > 20
    assert {name for name in ours if not is_key(name)} == set()
