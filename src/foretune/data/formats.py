"""Which files of a data folder are images, without a library for them."""

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff")
METADATA = "metadata.jsonl"
"""A file with a line for each image: its name and its caption."""
_BEGINNINGS = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"BM", b"II*\0", b"MM\0*")


def is_image(beginning: bytes) -> bool:
    """Whether a file that begins so is in one of the formats that are read. Decides nothing about the rest of it."""
    return beginning.startswith(_BEGINNINGS) or (beginning[:4] == b"RIFF" and beginning[8:12] == b"WEBP")
