"""Safetensors files that others wrote, examined before a library maps them into memory.

The library itself refuses offsets that overlap or lie outside and sizes that do not fit the shapes. It would wait for
ever for a pipe, map a device, and spend seconds on a header of 100 MB, which is what it allows.
"""

import os
from pathlib import Path

from foretune.core.input_files import RefusedFile, open_input
from foretune.core.units import bytes_text

MOST_HEADER_BYTES = 16 * 2**20
"""Many times the header of any model: 2,000 tensors take 0.2 MB, and what trainers add about their data a few MB."""
MOST_TENSOR_FILE_BYTES = 2 * 2**40
_LENGTH_BYTES = 8


def require_tensor_file(path: Path, *, within: Path | None = None) -> None:
    """Raises `RefusedFile` for what is not a regular file, or has no header of a believable length.

    `within` is the folder that it must lie in, links resolved; None follows links anywhere.
    """
    with open_input(path, MOST_TENSOR_FILE_BYTES, within=within) as file:
        length = file.read(_LENGTH_BYTES)
        left_bytes = os.fstat(file.fileno()).st_size - _LENGTH_BYTES
    header_bytes = int.from_bytes(length, "little")
    if header_bytes > left_bytes or header_bytes == 0:
        raise RefusedFile(path, "is damaged, or not a safetensors file, so it is not read. Replace it.")
    if header_bytes > MOST_HEADER_BYTES:
        size, limit = bytes_text(header_bytes), bytes_text(MOST_HEADER_BYTES)
        raise RefusedFile(path, f"has a header of {size}; at most {limit} are read. Replace it.")
