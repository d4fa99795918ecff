from pathlib import Path

import pytest

from tests.architecture.layering import LAYERS
from tests.architecture.shape import (
    MOST_FILE_LINES,
    MOST_FUNCTION_LINES,
    long_files,
    long_functions,
    repeated_vocabulary,
    stray_test_folders,
    types_defined_twice,
    vague_names,
)
from tests.architecture.source_tree import REPOSITORY, SOURCE, Plant


def test_files_tell_one_story() -> None:
    assert long_files(SOURCE) == []


def test_functions_fit_a_screen() -> None:
    assert long_functions(SOURCE) == []


def test_names_say_something() -> None:
    assert vague_names(SOURCE) == []


def test_folders_of_tests_mirror_the_source() -> None:
    assert stray_test_folders(REPOSITORY / "tests", LAYERS) == []


def test_a_type_has_its_name_alone() -> None:
    assert types_defined_twice(SOURCE) == []


def test_phases_and_parts_of_memory_are_named_once() -> None:
    assert repeated_vocabulary(SOURCE) == []


def test_control_a_part_of_memory_as_text(plant: Plant) -> None:
    planted = plant({"core/a.py": 'parts["frozen weights"] = 1', "core/b.py": 'print("frozen weights: none")'})
    assert repeated_vocabulary(planted) == ["src/foretune/core/a.py:1: 'frozen weights'"]


def test_control_a_type_defined_twice(plant: Plant) -> None:
    twice = plant(
        {"core/a.py": "class Finding: ...\nclass _Own: ...", "run/b.py": "class Finding: ...\nclass _Own: ..."}
    )
    assert types_defined_twice(twice) == ["Finding: src/foretune/core/a.py:1, src/foretune/run/b.py:1"]


def test_control_long_file(plant: Plant) -> None:
    source = plant({"core/a.py": "x = 1\n" * MOST_FILE_LINES, "core/b.py": "x = 1\n" * (MOST_FILE_LINES + 1)})
    assert long_files(source) == ["src/foretune/core/b.py has 401 lines"]


@pytest.mark.parametrize("head", ["def f():", "async def f():"])
def test_control_long_function(plant: Plant, head: str) -> None:
    fits = f"{head}\n" + "    x = 1\n" * (MOST_FUNCTION_LINES - 1)
    source = plant({"core/a.py": fits, "core/b.py": f"class C:\n{fits}    x = 1\n".replace("\n", "\n  ").rstrip()})
    assert long_functions(source) == ["src/foretune/core/b.py:2: f has 61 lines"]


@pytest.mark.parametrize("name", ["core/utils.py", "core/helpers/a.py", "core/_common.py"])
def test_control_vague_name(plant: Plant, name: str) -> None:
    assert len(vague_names(plant({name: "", "core/uncommon.py": ""}))) == 1


def test_control_stray_test_folder(tmp_path: Path) -> None:
    for name in ("core", "proofs", "__pycache__", "unit"):
        (tmp_path / name).mkdir()
    (violation,) = stray_test_folders(tmp_path, LAYERS)
    assert violation.startswith(str(tmp_path / "unit"))
