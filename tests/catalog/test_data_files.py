"""The data files as files: small, free of machine paths, quick to load, without torch."""

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from foretune.catalog.devices import read_devices
from foretune.catalog.models import read_components
from foretune.catalog.rows import DATA_DIR

FILES = sorted(path for path in DATA_DIR.rglob("*") if path.is_file() and path.suffix != ".xz")
MACHINE_PATH = re.compile(r"(?<![\w.:/-])/(work|tmp|home|root|Users|mnt|scratch|venv)/|[A-Z]:\\\\")


def test_the_files_are_the_expected_ones() -> None:
    assert [path.relative_to(DATA_DIR).as_posix() for path in FILES] == [
        "CORRECTIONS.md",
        "backtest_record.json",
        "datasets.json",
        "devices.csv",
        "flops.json",
        "kernels/README.md",
        "kernels/best_rates.csv",
        "kernels/caches.csv",
        "kernels/estimates.json",
        "licences.json",
        "lora_counts.json",
        "measurement_words.json",
        "models.json",
        "overheads.csv",
        "published_measurements.csv",
        "speed_record.json",
    ]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_files_are_small_and_name_no_machine(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.encode()) < 5 * 10**6
    assert text.endswith("\n")
    assert "\r" not in text
    assert not MACHINE_PATH.search(text)


def test_a_machine_path_would_be_seen() -> None:
    assert MACHINE_PATH.search("read from /home/someone/models")
    assert not MACHINE_PATH.search("github:owner/name:docs/work/page.md")


def test_devices_and_models_load_in_under_50_ms_of_processor_time() -> None:
    used_s = []
    for _ in range(5):
        start_s = time.thread_time()
        read_devices(DATA_DIR / "devices.csv")
        read_components(DATA_DIR / "models.json")
        used_s.append(time.thread_time() - start_s)
    assert min(used_s) < 0.05


def test_loading_everything_imports_neither_torch_nor_pandas() -> None:
    code = (
        "import sys, foretune.catalog as c\n"
        "c.devices(), c.components(), c.measurements(), c.flop_counts(), c.lora_counts()\n"
        "heavy = {'torch', 'pandas', 'numpy', 'diffusers', 'transformers'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
