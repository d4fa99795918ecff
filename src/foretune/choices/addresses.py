"""Addresses of data that are not on a local disk: which kinds there are, and that none carries a secret."""

from urllib.parse import urlsplit

PROTOCOLS = ("http", "https", "s3")


def is_remote(place: str) -> bool:
    """Whether a place is an address that is opened over the network."""
    return remote_protocol(place) in PROTOCOLS


def remote_protocol(place: str) -> str:
    """Returns what stands before `://`; empty for a path."""
    return place.split("://", 1)[0].lower() if "://" in place else ""


def checked_place(place: str) -> str:
    """Returns a folder or an address as it is; raises ValueError for one that cannot be read or carries a secret."""
    protocol = remote_protocol(place)
    if not protocol:
        return place
    if protocol not in PROTOCOLS:
        # The rest may hold a password.
        raise ValueError(f"{protocol}:// addresses are not read: use a folder, or http://, https:// or s3://")
    parts = urlsplit(place)
    if "@" in parts.netloc:
        raise ValueError(
            "has a user name or password in its address: take it out, and put credentials into the environment or "
            "~/.aws (AWS_PROFILE, AWS_ACCESS_KEY_ID)"
        )
    if parts.query or parts.fragment:
        raise ValueError(
            "has a query in its address, as signed addresses do: name the folder of the set alone, and put "
            "credentials into the environment or ~/.aws"
        )
    if not parts.netloc:
        raise ValueError("names no host or bucket: https://HOST/FOLDER or s3://BUCKET/FOLDER")
    return place
