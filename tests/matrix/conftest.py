"""One cache of latents and captions for all cells of a worker, and the page that a run of all cells writes."""

from pathlib import Path

import pytest

from tests.matrix.page import MatrixPage, is_full_run


def pytest_configure(config: pytest.Config) -> None:
    if is_full_run():
        config.pluginmanager.register(MatrixPage(), "foretune-matrix-page")


@pytest.fixture(scope="session")
def matrix_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("matrix-cache")
