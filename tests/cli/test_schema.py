"""`foretune schema`."""

import json
from pathlib import Path

from foretune.config import experiment_schema
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
