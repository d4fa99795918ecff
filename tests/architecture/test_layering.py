import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.layering import (
    LAYERS,
    WITHOUT_TORCH,
    import_circle,
    modules_without_torch,
    more_than_a_client,
    torch_imports,
    unknown_folders,
    upward_imports,
)
from tests.architecture.source_tree import SOURCE, Plant

_STOP_AT_TORCH = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
    if "torch" in sys.modules:
        sys.exit(f"{name} imports torch")
"""


def import_all(names: list[str], source: Path) -> str:
    """Import the modules in a fresh process; the text is what went wrong, or empty."""
    environment = {**os.environ, "PYTHONPATH": str(source)}
    command = [sys.executable, "-c", _STOP_AT_TORCH, *names]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False).stderr


def test_every_folder_is_a_layer() -> None:
    assert unknown_folders(SOURCE) == []


def test_imports_point_down() -> None:
    assert upward_imports(SOURCE) == []


def test_the_command_line_is_a_client_of_the_api() -> None:
    assert more_than_a_client(SOURCE) == []


def test_control_a_command_that_goes_past_the_api(plant: Plant) -> None:
    files = {
        "cli/a.py": "def verb():\n    from foretune.training.loop import Loop",
        "training/loop.py": "class Loop: ...",
    }
    (violation,) = more_than_a_client(plant(files))
    assert "foretune.cli.a imports foretune.training.loop" in violation


def test_no_circular_imports() -> None:
    assert import_circle(SOURCE) == []


def test_no_torch_below_the_surface_of_light_layers() -> None:
    assert set(LAYERS) >= WITHOUT_TORCH
    assert torch_imports(SOURCE) == []


def test_importing_light_layers_and_the_command_line_leaves_torch_alone() -> None:
    assert import_all(modules_without_torch(SOURCE), SOURCE) == ""


def test_control_unknown_folder(plant: Plant) -> None:
    assert unknown_folders(plant({"core/a.py": "", "tools/a.py": ""})) == ["src/foretune/tools/ is in no layer"]


@pytest.mark.parametrize(
    "text",
    [
        "from foretune.config.load import read",
        "import foretune.config",
        "from foretune import config",
        "from ..config import load",
        "def lazy():\n    from foretune.config import load",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import foretune.config.load",
        "import importlib\nimportlib.import_module('foretune.config.load')",
        "TARGETS = {'a': 'foretune.config.load:read'}",
    ],
)
def test_control_upward_import(plant: Plant, text: str) -> None:
    source = plant({"core/a.py": text, "config/__init__.py": "", "config/load.py": "def read(): ..."})
    (violation,) = upward_imports(source)
    assert "foretune.core.a imports foretune.config" in violation


def test_control_downward_and_level_imports_are_fine(plant: Plant) -> None:
    below = "from foretune.core import b\nfrom foretune import __version__"
    assert upward_imports(plant({"core/b.py": "", "core/a.py": below, "config/a.py": below})) == []


def test_control_the_package_itself_knows_the_api_alone(plant: Plant) -> None:
    api = {"__init__.py": "def f():\n    from foretune.api import a", "api/a.py": ""}
    assert upward_imports(plant(api)) == []
    (violation,) = upward_imports(plant({"__init__.py": "from foretune.training import a", "training/a.py": ""}))
    assert violation.startswith("src/foretune/__init__.py:1:")


def test_control_circle(plant: Plant) -> None:
    circle = {
        "core/a.py": "from foretune.core import b",
        "core/b.py": "try:\n    import foretune.core.c\nexcept ImportError: ...",
        "core/c.py": "class C:\n    from foretune.core.a import x",
    }
    (found,) = import_circle(plant(circle))
    assert found.count(" imports ") == 3
    assert "foretune.core.a imports foretune.core.b imports foretune.core.c" in f"{found} {found}"


def test_control_circle_through_a_package(plant: Plant) -> None:
    package = {
        "core/__init__.py": "from foretune.core.a import x",
        "core/a.py": "from foretune.core import y",
    }
    assert len(import_circle(plant(package))) == 1


def test_control_lazy_imports_and_re_exports_are_no_circle(plant: Plant) -> None:
    fine = {
        "core/__init__.py": "from foretune.core.a import x",
        "core/a.py": "from foretune.core.b import x",
        "core/b.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import foretune.core.a\n"
        "def f():\n    import foretune.core.a",
    }
    assert import_circle(plant(fine)) == []


@pytest.mark.parametrize(
    "text",
    [
        "import torch",
        "from torch.nn import functional",
        "def lazy():\n    import diffusers.models as m",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import peft",
        "__import__('transformers')",
    ],
)
@pytest.mark.parametrize("layer", sorted(WITHOUT_TORCH))
def test_control_torch(plant: Plant, layer: str, text: str) -> None:
    assert len(torch_imports(plant({f"{layer}/a.py": text, "step/a.py": text}))) == 1


def test_control_torch_at_run_time(plant: Plant) -> None:
    source = plant({"core/a.py": "import foretune.step.b", "step/b.py": "import torch", "step/torch.py": ""})
    (source / "torch.py").write_text("")
    assert "foretune.core.a imports torch" in import_all(modules_without_torch(source), source)
