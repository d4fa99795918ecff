"""Indexes tars that other programs wrote, such as webdataset and img2dataset, where they are.

Nothing is extracted: names in a tar are keys of samples, never paths. Links, devices and what is no image or caption
are skipped and counted.
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from foretune.core.errors import UserError
from foretune.core.input_files import open_input, parse_json, shown
from foretune.core.units import counted_text
from foretune.data import images, videos
from foretune.data.archives.limits import MIB, ImportLimits
from foretune.data.archives.tar import TarReader
from foretune.data.archives.unpacking import ByteStream
from foretune.data.formats import is_image
from foretune.data.shards.index import IndexBuilder, MemberRange, SampleFacts
from foretune.data.shards.layout import DIGEST_BYTES, MANIFEST, TAR_SUFFIX, ShardEntry, shard_name
from foretune.data.shards.retrying import Retry
from foretune.data.shards.stores import LocalStore
from foretune.data.shards.table import MOST_SIDE_PX
from foretune.data.shards.writer import write_index, write_manifest
from foretune.data.sources.fingerprint import content_fingerprint

_MOST_TAR_BYTES = 2**50
_MOST_TEXT_BYTES = MIB
_CAPTION_KEYS = ("caption", "text")
_TEXTS = ("txt", "json")
_Progress = Callable[[int, int], None]


@dataclass
class IndexedSet:
    """What was indexed."""

    where: str
    num_samples: int = 0
    num_captions: int = 0
    num_shards: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    """Members by the reason."""

    def __str__(self) -> str:
        """What `foretune data index` prints."""
        samples, captions = counted_text(self.num_samples, "images"), counted_text(self.num_captions, "captions")
        lines = [f"{self.where}: {samples}, {captions}, {counted_text(self.num_shards, 'shards')}"]
        lines += [f"Skipped {num:,} ({reason})" for reason, num in sorted(self.skipped.items())]
        lines.append(f"To train on it: foretune train EXPERIMENT.yaml data.kind=shards data.path={self.where}")
        return "\n".join(lines)


def index_tars(folder: Path, on_progress: _Progress = lambda _done, _total: None) -> IndexedSet:
    """Writes an index beside each tar of a folder, and the manifest; reads each tar once."""
    store = LocalStore(folder.expanduser().absolute())
    names = [name for name in store.names() if name.endswith(TAR_SUFFIX)]
    if not names:
        raise UserError(f"{shown(folder)} has no file that ends in {TAR_SUFFIX}. Name the folder of the shards.")
    if store.num_bytes(MANIFEST) is not None:
        raise UserError(f"{store.where()} is a packed set already. To verify it: foretune data check {store.where()}")
    found = IndexedSet(store.where())
    entries: list[ShardEntry] = []
    for number, name in enumerate(names):
        try:
            shard_name(name)
        except ValueError as error:
            raise UserError(
                f"{store.where(name)} cannot be a shard: use letters, digits, - and _ in its name. Rename it."
            ) from error
        builder, checksum, num_bytes = _read_tar(store.path(name), found.skipped)
        if builder.num_samples:
            entries.append(write_index(store, Retry(), name, builder.to_bytes(checksum, num_bytes)))
        on_progress(number + 1, len(names))
    if not entries:
        raise UserError(f"The tars of {store.where()} have no image ({', '.join(sorted(found.skipped)) or 'empty'}).")
    manifest = write_manifest(store, entries)
    found.num_samples, found.num_shards = manifest.num_samples, len(entries)
    found.num_captions = sum(entry.num_captions for entry in entries)
    return found


class _CountedStream(ByteStream):
    """A tar as it is read: where in it the reader is, and the checksum of what it has read."""

    def __init__(self, file: Any, archive: Path) -> None:
        super().__init__(file, archive, ImportLimits(), None)
        self.place = 0
        self.digest = hashlib.blake2b(digest_size=DIGEST_BYTES)

    def read(self, num_bytes: int) -> bytes:
        data = super().read(num_bytes)
        self.place += len(data)
        self.digest.update(data)
        return data


def _read_tar(path: Path, skipped: dict[str, int]) -> tuple[IndexBuilder, str, int]:
    builder, seen = IndexBuilder(), set[str]()
    with open_input(path, _MOST_TAR_BYTES) as file:
        stream = _CountedStream(file, path)
        reader = TarReader(stream, path)
        sample = _Sample("")
        for key, suffix, start, data in _members(reader, stream, skipped):
            if key != sample.key:
                sample.add_to(builder, skipped)
                if key in seen:
                    raise UserError(f"{shown(path)} has the sample {shown(key)} twice. Write the shard again.")
                seen.add(key)
                sample = _Sample(key)
            sample.members[suffix] = (MemberRange(start, len(data)), data)
        sample.add_to(builder, skipped)
        # What follows the end mark belongs to the file's checksum.
        while stream.read(MIB):
            pass
        return builder, stream.digest.hexdigest(), stream.place


def _members(
    reader: TarReader, stream: _CountedStream, skipped: dict[str, int]
) -> Iterator[tuple[str, str, int, bytes]]:
    """Yields the members that are used: key, suffix, where the content begins, content."""
    for member in reader.members():
        if member.kind == "folder":
            continue
        # As webdataset splits a name: the key ends at the first dot of its last part.
        folder, slash, name = member.name.rpartition("/")
        base, _, suffix = name.partition(".")
        suffix = suffix.lower()
        is_main = f".{suffix}".endswith(images.SUFFIXES)
        most_bytes = images.MOST_FILE_BYTES if is_main else _MOST_TEXT_BYTES
        reason = None
        if member.kind != "file":
            reason = "links, devices and sparse files"
        elif f".{suffix}".endswith(videos.SUFFIXES):
            reason = "videos: pack them with data pack"
        elif not is_main and suffix not in _TEXTS:
            reason = "neither images nor captions"
        elif member.num_bytes > most_bytes:
            reason = "too large"
        if reason is not None or not base:
            reason = reason or "without a name"
            skipped[reason] = skipped.get(reason, 0) + 1
            continue
        start = stream.place
        yield f"{folder}{slash}{base}", suffix, start, b"".join(reader.blocks())


@dataclass
class _Sample:
    key: str
    members: dict[str, tuple[MemberRange, bytes]] = field(default_factory=dict)

    def add_to(self, builder: IndexBuilder, skipped: dict[str, int]) -> None:
        """Adds the sample to the index, if it has an image that can be read."""
        if not self.members:
            return
        main = next((suffix for suffix in self.members if f".{suffix}".endswith(images.SUFFIXES)), None)
        data, width_px, height_px, reason = b"", 0, 0, None
        if main is None:
            reason = "samples without an image"
        else:
            data = self.members[main][1]
            if not is_image(data):
                reason = "named as images, and none"
            else:
                width_px, height_px = images.size_px(data, self.key)
                if max(width_px, height_px) > MOST_SIDE_PX:
                    reason = f"with a side of more than {MOST_SIDE_PX:,} px"
        if reason is not None:
            skipped[reason] = skipped.get(reason, 0) + 1
            return
        main = cast("str", main)
        facts = SampleFacts(
            fingerprint=content_fingerprint(data), caption=self._caption(), width_px=width_px, height_px=height_px
        )
        ranges = {suffix: found for suffix, (found, _) in self.members.items()}
        # The first member of an index is the main one.
        builder.add(self.key, facts, {main: ranges.pop(main), **ranges})

    def _caption(self) -> str:
        if "txt" in self.members:
            return self._text("txt").strip()
        if "json" in self.members:
            try:
                document = parse_json(self._text("json"))
            except json.JSONDecodeError as error:
                raise UserError(f"The sample {shown(self.key)} has a .json that is not JSON. Replace it.") from error
            known = document if isinstance(document, dict) else {}
            return next((str(known[key]).strip() for key in _CAPTION_KEYS if known.get(key)), "")
        return ""

    def _text(self, suffix: str) -> str:
        try:
            return self.members[suffix][1].decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise UserError(
                f"The sample {shown(self.key)} has a .{suffix} that is not text in UTF-8. Replace it."
            ) from error
