"""A full disk or a folder that may not be written is reported in a sentence."""

import errno

import pytest

from foretune.core.disk_faults import disk_fault


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (
            OSError(errno.ENOSPC, "No space left on device", "runs/a/x.json"),
            "runs/a/x.json cannot be written: No space left on device. Make room there, or choose another place.",
        ),
        (
            RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)"),
            "A file cannot be written: No space left on device. Make room there, or choose another place.",
        ),
        (
            PermissionError(errno.EACCES, "Permission denied", "/there"),
            "/there cannot be read or written: Permission denied. Choose another place.",
        ),
        (OSError(errno.EROFS, "Read-only file system"), "A file cannot be written: Read-only file system. Choose"),
    ],
)
def test_what_the_disk_refused(error: Exception, sentence: str) -> None:
    found = disk_fault(error)
    assert found is not None
    assert found.startswith(sentence)


@pytest.mark.parametrize("error", [ValueError("no"), OSError(errno.ECONNREFUSED, "refused"), OSError("no number")])
def test_what_is_none_of_the_disk_stays_what_it_was(error: Exception) -> None:
    assert disk_fault(error) is None
