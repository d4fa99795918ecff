"""Safetensors files are looked at before a library maps them."""

import os
from pathlib import Path

import pytest

from foretune.core import tensor_files
from foretune.core.input_files import RefusedFile
from foretune.core.tensor_files import require_tensor_file


def with_header(path: Path, length_bytes: int, header: bytes = b"{}") -> Path:
    path.write_bytes(length_bytes.to_bytes(8, "little") + header)
    return path


def test_a_header_within_the_file_is_let_through(tmp_path: Path) -> None:
    require_tensor_file(with_header(tmp_path / "a", 2), within=tmp_path)


@pytest.mark.parametrize("length_bytes", [0, 3, 2**63, 2**64 - 1])
def test_a_header_that_is_not_in_the_file_is_refused(tmp_path: Path, length_bytes: int) -> None:
    with pytest.raises(RefusedFile, match="a is damaged, or not a safetensors file"):
        require_tensor_file(with_header(tmp_path / "a", length_bytes))


def test_a_header_of_no_model_is_refused(tmp_path: Path) -> None:
    most_bytes = tensor_files.MOST_HEADER_BYTES
    require_tensor_file(with_header(tmp_path / "a", most_bytes, bytes(most_bytes)))
    with pytest.raises(RefusedFile, match="a header of 16"):
        require_tensor_file(with_header(tmp_path / "a", most_bytes + 1, bytes(most_bytes + 1)))


def test_a_pipe_is_refused_and_a_link_out_too(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(RefusedFile, match="is a named pipe"):
        require_tensor_file(tmp_path / "pipe")
    inner = tmp_path / "folder"
    inner.mkdir()
    (inner / "a").symlink_to(with_header(tmp_path / "b", 2))
    require_tensor_file(inner / "a")
    with pytest.raises(RefusedFile, match="outside of"):
        require_tensor_file(inner / "a", within=inner)
