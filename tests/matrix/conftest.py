"""One cache of latents and captions for all cells of a worker: what they train on is the same."""

import gc
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def matrix_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # A run collects garbage after each encoder; what the libraries made need not be looked through each time.
    gc.freeze()
    return tmp_path_factory.mktemp("matrix-cache")
