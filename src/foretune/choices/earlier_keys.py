"""Keys of earlier versions of an experiment: renamed ones are still read, removed ones are dropped."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

RENAMED_KEYS: Mapping[str, str] = {
    "train.weights": "train.weight_dtype",
    "levers.swapped_blocks": "levers.block_swap",
    "levers.optimizer_on_host": "levers.optimizer_offload",
    "levers.ema_on_host": "levers.ema_offload",
}
"""The current key of each old one; both are in the same section."""
_OLD_KEYS = {current: old for old, current in RENAMED_KEYS.items()}


@dataclass(frozen=True)
class RemovedKey:
    """A key that experiments no longer have."""

    default: Any
    """The value that every experiment has now."""
    instead: str
    """What happens now, whatever an old file says."""


REMOVED_KEYS: Mapping[str, RemovedKey] = {
    "quantize.derivative": RemovedKey(
        "lean", "quantised layers store only the quantised weights and dequantise them again in the backward pass"
    ),
}


def current_key(key: str) -> str:
    return RENAMED_KEYS.get(key, key)


def old_key(key: str) -> str:
    """The name under which names of trace files know a key; they stay as they were."""
    return _OLD_KEYS.get(key, key)


def other_name(key: str) -> str | None:
    """The current key of an old one, the old key of a current one; None for a key that was never renamed."""
    return RENAMED_KEYS.get(key, _OLD_KEYS.get(key))


def dotted_keys(mapping: Mapping[str, Any]) -> list[str]:
    """The keys inside the sections of an experiment: `train.steps`."""
    return [f"{name}.{key}" for name, section in mapping.items() if isinstance(section, Mapping) for key in section]


def mixed_keys(keys: Iterable[str]) -> list[str]:
    """One sentence for each key that is there under its old and its current name."""
    known = set(keys)
    return [
        f"`{old}` and `{current}` are the same key. Keep `{current}`"
        for old, current in RENAMED_KEYS.items()
        if {old, current} <= known
    ]


def lost_choices(mapping: Mapping[str, Any]) -> list[str]:
    """One sentence for each removed key of an experiment that is not at its default: what it chose is gone."""
    return [
        f"{key}: {mapping[section][name]} is no longer supported; {removed.instead}. Remove the key"
        for key, removed in REMOVED_KEYS.items()
        for section, _, name in [key.partition(".")]
        if key in dotted_keys(mapping) and mapping[section][name] != removed.default
    ]


def notes_on(mapping: Mapping[str, Any]) -> list[str]:
    """What to tell someone who writes keys of earlier versions."""
    known = dotted_keys(mapping)
    renamed = [f"`{old}` is now `{current}`." for old, current in RENAMED_KEYS.items() if old in known]
    return renamed + [f"`{key}` is no longer a key and has no effect." for key in REMOVED_KEYS if key in known]


def with_current_keys(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """The mapping of an experiment with current names. Of a key with both names, the current one counts."""
    return _renamed(mapping, RENAMED_KEYS)


def without_removed_keys(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """The mapping of an experiment without the keys that are no longer there."""
    return {
        name: {key: value for key, value in section.items() if f"{name}.{key}" not in REMOVED_KEYS}
        if isinstance(section, Mapping)
        else section
        for name, section in mapping.items()
    }


def as_hashed(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """The mapping of an experiment with the keys that its hashes were first made of, so that they stay as they were."""
    result = _renamed(mapping, _OLD_KEYS)
    for key, removed in REMOVED_KEYS.items():
        section, _, name = key.partition(".")
        if section in result:
            result[section] = {**result[section], name: removed.default}
    return result


def _renamed(mapping: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    result = dict(mapping)
    for before, after in names.items():
        name, _, key = before.partition(".")
        section = result.get(name)
        if isinstance(section, Mapping) and key in section:
            others = {other: value for other, value in section.items() if other != key}
            result[name] = {after.partition(".")[2]: section[key], **others}
    return result
