"""Where the Hub's cache is, by the same variables that huggingface_hub reads."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from foretune.hub.surroundings import cache_folder, free_bytes, has_stored_token

ASK = "from huggingface_hub import constants; print(constants.HF_HUB_CACHE); print(constants.HF_TOKEN_PATH)"


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"XDG_CACHE_HOME": "/somewhere/cache"},
        {"HF_HOME": "/somewhere/home"},
        {"HF_HOME": "~/home", "XDG_CACHE_HOME": "/somewhere/cache"},
        {"HF_HUB_CACHE": "$HOME/hub", "HF_HOME": "/somewhere/home"},
        {"HUGGINGFACE_HUB_CACHE": "/somewhere/older", "HF_HOME": "/somewhere/home"},
        {"HF_TOKEN_PATH": "~/secret", "HF_HOME": "/somewhere/home"},
    ],
    ids=str,
)
def test_cache_is_where_huggingface_hub_has_it(
    variables: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith(("HF_", "HUGGING", "XDG_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name, value in variables.items():
        monkeypatch.setenv(name, value.replace("/somewhere", str(tmp_path)))
    found = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True, check=True)
    cache, token = found.stdout.split()
    assert str(cache_folder()) == cache
    assert not has_stored_token()
    Path(token).parent.mkdir(parents=True, exist_ok=True)
    Path(token).write_text("hf_x")
    assert has_stored_token()


def test_free_space_of_a_folder_that_is_not_there_yet(tmp_path: Path) -> None:
    usage = os.statvfs(tmp_path)
    block = usage.f_frsize
    # Others write to the same disk.
    assert abs(free_bytes(tmp_path / "not" / "there") - usage.f_bavail * block) < 2**30
