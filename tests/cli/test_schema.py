"""`foretune schema`."""

import json
from pathlib import Path

from foretune.config import experiment_schema
from foretune.config.reference import experiment_reference, reference_pages
from tests.cli.conftest import Foretune


def test_it_is_printed(foretune: Foretune) -> None:
    answer = foretune("schema")
    assert answer.returncode == 0
    assert json.loads(answer.stdout) == experiment_schema()


def test_it_is_written(foretune: Foretune, tmp_path: Path) -> None:
    answer = foretune("schema", "-o", "new/foretune.schema.json")
    assert (answer.returncode, answer.stdout) == (0, "Wrote new/foretune.schema.json.\n")
    assert json.loads((tmp_path / "new" / "foretune.schema.json").read_text()) == experiment_schema()


def test_a_place_that_cannot_be_written(foretune: Foretune, tmp_path: Path) -> None:
    answer = foretune("schema", "-o", ".")
    assert answer.returncode == 2
    assert answer.stderr == "Error: . cannot be written: Is a directory. Choose another place.\n"


def test_tables_for_people(foretune: Foretune) -> None:
    answer = foretune("schema", "--markdown")
    assert answer.stdout == experiment_reference()
    assert "](" not in answer.stdout, "links between pages lead nowhere in a terminal"


def test_a_page_for_each_section(foretune: Foretune, tmp_path: Path) -> None:
    answer = foretune("schema", "--pages", "keys")
    assert (answer.returncode, answer.stdout) == (0, f"Wrote {len(reference_pages())} pages to keys.\n")
    assert {path.name: path.read_text() for path in (tmp_path / "keys").iterdir()} == reference_pages()


def test_pages_are_a_folder_and_nothing_else(foretune: Foretune, tmp_path: Path) -> None:
    answer = foretune("schema", "--pages", "keys", "-o", "file.md")
    assert answer.returncode == 2
    assert answer.stderr == "Error: --pages writes a folder of Markdown pages. Leave out --markdown and --output.\n"
    assert not (tmp_path / "keys").exists()
