import pytest

from tests.architecture.hazards import hazards
from tests.architecture.source_tree import SOURCE, Plant


def test_nothing_runs_code_from_files_hubs_or_shells() -> None:
    assert hazards(SOURCE) == []


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "def f():\n    from pickle import loads",
        "import torch\ntorch.load('a')",
        "import torch\ntorch.load('a', weights_only=False)",
        "load(trust_remote_code=True)",
        "load(trust_remote_code=asked)",
        "load(**{'trust_remote_code': True})",
        "eval('1')",
        "exec('1')",
        "import subprocess\nsubprocess.run('ls', shell=True)",
        "import os\nos.system('ls')",
        "import yaml\nyaml.load(text)",
        "import yaml\nyaml.load(text, Loader=yaml.Loader)",
        "import numpy\nnumpy.load('a', allow_pickle=True)",
        "import joblib",
        "import shelve",
        "import marshal",
        "import dbm",
        "from torch.distributed.checkpoint.filesystem import SavedTensors",
        "from torch.distributed.checkpoint import filesystem",
        "dcp.FileSystemReader('a')",
        "import torch\ntorch.save({}, 'a')",
        "import torch\ntorch.jit.load('a')",
        "import torch\ntorch.hub.load('a', 'b')",
        "import yaml\nyaml.full_load(text)",
        "import yaml\nyaml.load_all(text)",
        "archive.extractall('a')",
        "import shutil\nshutil.unpack_archive('a')",
    ],
)
def test_control_hazard(plant: Plant, text: str) -> None:
    (violation,) = hazards(plant({"run/a.py": text}))
    assert violation.startswith("src/foretune/run/a.py:")


def test_control_safe_forms(plant: Plant) -> None:
    safe = """
import torch, yaml
torch.load("a", weights_only=True)
yaml.safe_load("a")
class Strict(yaml.SafeLoader): ...
yaml.load("a", Loader=Strict)
model.eval()
load(trust_remote_code=False)
subprocess.run(["ls"], shell=False)
"""
    assert hazards(plant({"run/a.py": safe})) == []
