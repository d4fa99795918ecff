"""`foretune tiny`: never over files that somebody may want."""

import re
from pathlib import Path
from typing import get_type_hints

from foretune import tiny as tiny_function
from foretune.choices.tiny import TINY_VARIANTS
from foretune.cli.tiny import tiny as tiny_verb
from tests.cli.conftest import Foretune


def test_a_folder_with_files_is_written_over_only_if_asked(tmp_path: Path, foretune: Foretune) -> None:
    (tmp_path / "model").mkdir()
    precious = tmp_path / "model" / "model_index.json"
    precious.write_text("{}")
    answer = foretune("tiny", "ddpm", "model")
    assert answer.returncode == 2
    assert answer.stderr == (
        "Error: model has files already. Choose another folder, or type --force to write over them\n"
    )
    assert precious.read_text() == "{}"
    answer = foretune("tiny", "ddpm", "model", "--force")
    assert answer.returncode == 0, answer.stderr
    assert "DDPMPipeline" in precious.read_text()
    (tmp_path / "empty").mkdir()
    assert foretune("tiny", "ddpm", "empty").returncode == 0


def test_examples_in_the_help_are_variants_of_their_families() -> None:
    shown = get_type_hints(tiny_verb, include_extras=True)["variant"].__metadata__[0].help
    examples = re.findall(r"(\S+) for (\w+)", shown)
    assert examples
    assert [(variant, family) for variant, family in examples if variant not in TINY_VARIANTS[family]] == []
    assert shown[1:] in (tiny_function.__doc__ or "")
