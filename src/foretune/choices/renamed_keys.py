"""Keys of an experiment that had another name in earlier versions. Old names are still read."""

from collections.abc import Iterable, Mapping
from typing import Any

RENAMED_KEYS: Mapping[str, str] = {
    "train.weights": "train.weight_dtype",
    "levers.swapped_blocks": "levers.block_swap",
    "levers.optimizer_on_host": "levers.optimizer_offload",
    "levers.ema_on_host": "levers.ema_offload",
}
"""The current key of each old one; both are in the same section."""
_OLD_KEYS = {current: old for old, current in RENAMED_KEYS.items()}


def current_key(key: str) -> str:
    return RENAMED_KEYS.get(key, key)


def old_key(key: str) -> str:
    """The name under which hashes and names of trace files know a key; they stay as they were."""
    return _OLD_KEYS.get(key, key)


def other_name(key: str) -> str | None:
    """The current key of an old one, the old key of a current one; None for a key that was never renamed."""
    return RENAMED_KEYS.get(key, _OLD_KEYS.get(key))


def old_keys_in(keys: Iterable[str]) -> list[str]:
    """The old ones among dotted keys."""
    return [key for key in keys if key in RENAMED_KEYS]


def mixed_keys(keys: Iterable[str]) -> list[str]:
    """One sentence for each key that is there under its old and its current name."""
    known = list(keys)
    return [
        f"`{old}` and `{RENAMED_KEYS[old]}` are the same key. Keep `{RENAMED_KEYS[old]}`"
        for old in old_keys_in(known)
        if RENAMED_KEYS[old] in known
    ]


def dotted_keys(mapping: Mapping[str, Any]) -> list[str]:
    """The keys inside the sections of an experiment: `train.steps`."""
    return [f"{name}.{key}" for name, section in mapping.items() if isinstance(section, Mapping) for key in section]


def with_current_keys(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """The mapping of an experiment with current names. Of a key with both names, the current one counts."""
    return _renamed(mapping, RENAMED_KEYS)


def with_old_keys(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """The mapping of an experiment with the names that hashes are made of."""
    return _renamed(mapping, _OLD_KEYS)


def _renamed(mapping: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    result = dict(mapping)
    for before, after in names.items():
        name, _, key = before.partition(".")
        section = result.get(name)
        if isinstance(section, Mapping) and key in section:
            moved = {other: value for other, value in section.items() if other != key}
            result[name] = {after.partition(".")[2]: section[key], **moved}
    return result
