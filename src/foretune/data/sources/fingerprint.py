"""Content hashes of one image's bytes, and of a whole source."""

import hashlib

from foretune.data.sources.base import Source

_DIGEST_BYTES = 20


def content_fingerprint(data: bytes) -> str:
    """Returns the fingerprint of an image file's content."""
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).hexdigest()


def listed_fingerprint(source: Source) -> str:
    """Returns the fingerprint of a source that can be listed. Length prefixes avoid collisions."""
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES, person=b"source")
    for index in range(len(source)):
        info = source.info(index)
        for part in (info.fingerprint, info.caption, str(source.repeats(index))):
            encoded = part.encode()
            digest.update(len(encoded).to_bytes(8, "little") + encoded)
    return digest.hexdigest()
