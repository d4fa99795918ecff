"""Tiny pipelines on disk, each written once a session."""

from collections.abc import Callable
from pathlib import Path

import pytest

from foretune.models.tiny import write_tiny_pipeline


@pytest.fixture(scope="session")
def tiny_pipeline(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`tiny_pipeline("flux", "schnell")` is a directory with that pipeline at seed 0, for reading only."""
    written: dict[tuple[str, str | None], Path] = {}

    def write(family: str, variant: str | None = None) -> Path:
        key = (family, variant)
        if key not in written:
            directory = tmp_path_factory.mktemp(f"tiny-{family}-{variant}")
            written[key] = write_tiny_pipeline(family, directory, variant=variant)
        return written[key]

    return write
