"""Streams of compressed bytes: gzip, bzip2, xz and zstandard, bounded in ratio and memory."""

import bz2
import lzma
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from foretune.core.errors import MissingExtra
from foretune.data.archives.limits import MIB, DamagedArchive, ImportLimits

_BLOCK_BYTES = 256 * 1024
_PACKED_BYTES = 64 * 1024
"""Read at a time of a compressed file: what its first part may unpack to is a multiple of it."""
_MOST_XZ_BYTES = 128 * MIB
"""Of memory; `xz -9` needs 65 MiB."""
_MAGIC = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\0": "xz", b"\x28\xb5\x2f\xfd": "zstandard"}


class ByteStream:
    """Reads exact numbers of bytes from a file, unpacked where it is compressed."""

    def __init__(self, file: BinaryIO, archive: Path, limits: ImportLimits, compression: str | None) -> None:
        self._file, self._archive, self._limits = file, archive, limits
        self._new = None if compression is None else _decompressors(compression)
        self._unpacker = self._new() if self._new is not None else None
        self._packed = b""
        self._ready = b""
        self._place = 0
        self._packed_bytes = self._unpacked_bytes = 0

    def read(self, num_bytes: int) -> bytes:
        """As many bytes, fewer only at the end. Keep numbers small: all of them are in memory."""
        # A place in the block instead of what is left of it: copying that for each header takes longer than all else.
        part = self._ready[self._place : self._place + num_bytes]
        self._place += len(part)
        if len(part) == num_bytes:
            return part
        parts = [part]
        num_bytes -= len(part)
        while num_bytes and self._fill():
            part = self._ready[:num_bytes]
            self._place = len(part)
            parts.append(part)
            num_bytes -= len(part)
        return b"".join(parts)

    def read_to_the_end(self) -> None:
        """Reads what is left of a compressed file: its last bytes tell whether all of it arrived."""
        while self._new is not None and self._fill():
            pass

    def done_bytes(self) -> int:
        return self._packed_bytes

    def _fill(self) -> bool:
        """Replaces the block that was read by the next one. Whether there is one."""
        self._ready, self._place = b"", 0
        if self._new is None:
            self._ready = self._from_file(_BLOCK_BYTES)
            return bool(self._ready)
        while not self._ready:
            if not self._packed and (self._unpacker is None or self._needs_input()):
                self._packed = self._from_file(_PACKED_BYTES)
            if not self._packed and (self._unpacker is None or self._needs_input()):
                if self._unpacker is not None:
                    raise DamagedArchive(self._archive, "it is cut short")
                return False
            self._unpack()
        self._unpacked_bytes += len(self._ready)
        self._limits.require_ratio(self._archive, self._unpacked_bytes, self._packed_bytes)
        return True

    def _from_file(self, most_bytes: int) -> bytes:
        block = self._file.read(most_bytes)
        self._packed_bytes += len(block)
        return block

    def _needs_input(self) -> bool:
        return bool(getattr(self._unpacker, "needs_input", True))

    def _unpack(self) -> None:
        if self._unpacker is None:
            # After the end of one compressed stream another may follow, or the zeros that fill a tape.
            self._packed = self._packed.lstrip(b"\0")
            if not self._packed:
                return
            assert self._new is not None
            self._unpacker = self._new()
        try:
            self._ready = self._unpacker.decompress(self._packed, _BLOCK_BYTES)
        except (OSError, EOFError, ValueError, lzma.LZMAError, zlib.error, MemoryError) as error:
            raise DamagedArchive(self._archive, str(error) or type(error).__name__) from error
        self._packed = b""
        if self._unpacker.eof:
            self._packed, self._unpacker = self._unpacker.unused_data, None


class _Gzip:
    """zlib's interface is another than that of bz2 and lzma."""

    def __init__(self) -> None:
        self._inner = zlib.decompressobj(wbits=31)
        self._left = b""

    @property
    def needs_input(self) -> bool:
        return not self._left

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        unpacked = self._inner.decompress(self._left + data, max_length)
        self._left = self._inner.unconsumed_tail
        return unpacked


def compression_of(head: bytes) -> str | None:
    """How a file is compressed that begins with these bytes; None where it is not."""
    return next((name for magic, name in _MAGIC.items() if head.startswith(magic)), None)


def _decompressors(compression: str) -> Callable[[], Any]:
    if compression == "gzip":
        return _Gzip
    if compression == "bzip2":
        return bz2.BZ2Decompressor
    if compression == "xz":
        return lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MOST_XZ_BYTES)
    return _zstandard()


def _zstandard() -> Callable[[], Any]:
    try:
        from compression import zstd  # type: ignore[import-not-found,unused-ignore] # of Python 3.14
    except ImportError:
        try:
            from backports import zstd
        except ImportError:
            raise MissingExtra("Reading a .zst archive", "archives") from None
    # Windows above 128 MiB are refused, as `zstd --decompress` does without --long.
    options = {zstd.DecompressionParameter.window_log_max: 27}
    return lambda: zstd.ZstdDecompressor(options=options)


def size_of(file: BinaryIO) -> int:
    return os.fstat(file.fileno()).st_size
