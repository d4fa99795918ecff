"""Runs that differ only in their seed are one configuration; its name says how it differs from the others."""

import json
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from foretune.analyse.environments import INCIDENTAL_PARTS, environment_differences, named
from foretune.analyse.run_data import RunData
from foretune.core.values.base import content_hash
from foretune.record.environment import machine_text

# What changes neither the weights nor the speed of a step, and the seed, over which a configuration repeats.
_NOT_A_SETTING = (
    "name", "track", "accept", "save.", "train.seed", "data.cache_dir", "data.path",
    "validate.every", "validate.prompts", "validate.num_inference_steps", "validate.guidance_scale",
)  # fmt: skip
_CONTENTS = ("data_fingerprint", "base_checksum")
_SHORT_WORDS = {
    "method.kind": "{}",
    "method.rank": "rank {}",
    "method.alpha": "alpha {}",
    "quantize.denoiser": "{} base",
    "quantize.text_encoders": "{} text encoders",
    "train.precision": "{}",
    "train.weight_dtype": "{} weights",
    "train.batch_size": "batch {}",
    "train.gradient_accumulation": "accumulation {}",
    "train.steps": "{} steps",
    "train.epochs": "{} epochs",
    "train.seconds": "{} s",
    "optimizer.kind": "{}",
    "optimizer.lr": "lr {}",
    "data.resolution": "{} px",
    "data.style": "{} style",
    "levers.compile": "{} compile",
    "levers.attention": "{} attention",
    "levers.gradient_checkpointing": "checkpointing {}",
    "levers.block_swap": "block swap {}",
    "levers.block_swap_prefetch": "{} blocks ahead",
    "parallel.devices": "{} devices",
    "parallel.device": "{}",
    "parallel.threads": "{} threads",
    "model": "{}",
}
"""Settings a name can mention, the most telling first; any other setting comes after these, under its own key."""
_METHOD_NAMES = {
    "full": "full fine-tuning", "lora": "LoRA", "dora": "DoRA", "rslora": "rsLoRA", "loha": "LoHa", "lokr": "LoKr",
    "oft": "OFT",
}  # fmt: skip
_OF_A_KIND = ("method.", "data.")
_ALWAYS_NAMED = ("method.kind", "method.rank")
_NEVER_NAMED = ("validate.", "profile")
"""They set configurations apart, because they change the held-out loss or the speed; a name mentions them only where
nothing else differs."""
_UNNAMED_DEFAULTS: Mapping[str, Any] = {
    "quantize.denoiser": "none",
    "quantize.text_encoders": "none",
    "levers.compile": "off",
    "levers.attention": "auto",
    "levers.gradient_checkpointing": 0.0,
    "levers.block_swap": 0,
    "levers.block_swap_prefetch": 1,
}
"""Left out of a name: `LoRA rank 8` beside `LoRA rank 8, int8 base`."""


@dataclass(frozen=True)
class Configuration:
    """Repeats of one thing."""

    key: str
    """A hash of all that its runs have in common."""
    label: str
    """What sets it apart from the others, in a few words."""
    runs: tuple[RunData, ...]
    """All of them, finished or not, in the order they started."""
    settings: Mapping[str, Any]
    """The experiment, flat, without seed and paths."""
    letter: str = ""
    """Its short name in sentences and drawings: A, B, C. Empty where there is nothing to tell it from."""

    @property
    def name(self) -> str:
        """What a sentence calls it: `A (LoRA rank 8)`."""
        return f"{self.letter} ({self.label})" if self.letter else self.label

    @property
    def finished(self) -> tuple[RunData, ...]:
        return tuple(run for run in self.runs if run.has_finished)

    @property
    def is_of_study(self) -> bool:
        return any(_study_of(run) for run in self.runs)

    @property
    def machine(self) -> str:
        """The machine it ran on, in words."""
        return machine_text(self.environment)

    @property
    def environment(self) -> Mapping[str, Any]:
        return self.runs[0].environment


def configurations(runs: Sequence[RunData]) -> list[Configuration]:
    """Every run in exactly one of them, ordered by their names. Runs of different environments are never in one, nor
    runs of different kinds.
    """
    groups: dict[str, list[RunData]] = {}
    settings: dict[str, dict[str, Any]] = {}
    by_settings: dict[str, list[str]] = {}
    # A run that ended before it had read its data has no content of its own: it comes last, and joins the others.
    for run in sorted(runs, key=lambda run: _content(run) is None):
        flat = settings_of(run)
        asked = content_hash([sorted(flat.items()), environment_key(run.environment), run.kind])
        alike = by_settings.setdefault(asked, [])
        content = _content(run)
        key = alike[0] if content is None and alike else content_hash([asked, content])
        if key not in groups:
            alike.append(key)
        groups.setdefault(key, []).append(run)
        settings[key] = flat
    return labelled([Configuration(key, "", tuple(found), settings[key]) for key, found in groups.items()])


def labelled(found: Sequence[Configuration]) -> list[Configuration]:
    """The same, each named by what sets it apart from the others of these, and ordered by their names."""
    labels = _labels({one.key: one.settings for one in found}, {one.key: one.runs[0] for one in found})
    return sorted(
        (replace(one, label=labels[one.key]) for one in found), key=lambda one: (_natural(one.label), one.key)
    )


def distinguished(groups: Sequence[Sequence[Configuration]], names: Sequence[str]) -> list[list[Configuration]]:
    """Groups, each labelled by itself, in which a label of several groups gets the name of its own."""
    holders: dict[str, set[int]] = {}
    for number, group in enumerate(groups):
        for one in group:
            holders.setdefault(one.label, set()).add(number)
    return [
        [replace(one, label=f"{one.label}, {name}") if len(holders[one.label]) > 1 else one for one in group]
        for group, name in zip(groups, names, strict=True)
    ]


def _content(run: RunData) -> list[Any] | None:
    """Data and base model by what is in them."""
    found = [run.effective.get(name) for name in _CONTENTS]
    return None if found[0] is None else found


def settings_of(run: RunData) -> dict[str, Any]:
    """The experiment of a run as flat settings, without what does not set configurations apart."""
    asked = json.loads(run.experiment.model_dump_json(by_alias=True))
    # A profiler slows the steps it looks at, wherever they are.
    asked["profile"] = asked["profile"] is not None
    return {name: value for name, value in _flat(asked) if not name.startswith(_NOT_A_SETTING)}


def differing(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """The settings in which mappings differ. What only some kinds of method or data have differs among those alone."""
    names = dict.fromkeys(name for settings in found for name in settings)
    apart = []
    for name in names:
        values = {_hashable(settings[name]) for settings in found if name in settings}
        is_partial = not name.startswith(_OF_A_KIND) and any(name not in settings for settings in found)
        if len(values) > 1 or is_partial:
            apart.append(name)
    return apart


def environment_key(environment: Mapping[str, Any]) -> str:
    """Equal where numbers may be put together: all of the fingerprint but the user's own source and the moment."""
    return content_hash({name: value for name, value in environment.items() if name not in INCIDENTAL_PARTS})


def environments_apart(found: Sequence[Configuration]) -> str | None:
    """How the environments of configurations differ, in words; None where they do not."""
    for other in found[1:]:
        unlike = environment_differences(found[0].environment, other.environment)
        if unlike:
            return named(unlike)
    return None


def _labels(settings: Mapping[str, Mapping[str, Any]], first: Mapping[str, RunData]) -> dict[str, str]:
    """The name in a study, else the fewest settings that tell all of them apart, in short words. Then the machine, and
    a piece of the hash.

    A setting that follows from another one, such as a learning rate for each method, is not repeated in the name.
    """
    every = list(settings.values())
    names = differing(every)
    ordered = sorted(names, key=_rank_of(names))
    named = list(_ALWAYS_NAMED)
    hidden = []
    for name in ordered:
        if name in _ALWAYS_NAMED:
            continue
        if name.startswith(_NEVER_NAMED):
            hidden.append(name)
        elif _num_apart(every, [*named, name]) > _num_apart(every, named):
            named.append(name)
    labels = {key: ", ".join(_words(flat, named)) or "as requested" for key, flat in settings.items()}
    places = {key: machine_text(run.environment) for key, run in first.items()}
    if len(set(places.values())) > 1:
        labels = {key: f"{label} on {places[key]}" for key, label in labels.items()}
    labels |= _study_names(first)
    labels = _told_apart(labels, {key: _study_of(run).get("name", "") for key, run in first.items()})
    labels = _told_apart(labels, places)
    # Same machine, another state of it: only mentioned where the settings are equal.
    states = {key: f"environment {environment_key(run.environment)[:4]}" for key, run in first.items()}
    looks = {key: ", ".join(_look(name, flat.get(name)) for name in hidden) for key, flat in settings.items()}
    for more in (looks, states, {key: key[:6] for key in labels}):
        labels = _told_apart(labels, more)
    return labels


def _study_names(first: Mapping[str, RunData]) -> dict[str, str]:
    """Configurations of a study have names already; with the setting where there are several."""
    about = {key: found for key, run in first.items() if (found := _study_of(run))}
    has_settings = len({found["setting"] for found in about.values()}) > 1
    return {
        key: f"{found['configuration']}, {found['setting']}" if has_settings else str(found["configuration"])
        for key, found in about.items()
    }


def _study_of(run: RunData) -> Mapping[str, Any]:
    """Which part of a study a run is; empty for any other run."""
    return run.effective.get("study") or {}


def _num_apart(every: Sequence[Mapping[str, Any]], names: Sequence[str]) -> int:
    """Into how many kinds these settings split the configurations."""
    return len({tuple(_hashable(settings.get(name)) for name in names) for settings in every})


def _look(name: str, value: Any) -> str:
    if name == "profile":
        return "profiled" if value else "not profiled"
    return f"{name} {value}"


def _told_apart(labels: Mapping[str, str], by: Mapping[str, str]) -> dict[str, str]:
    """Labels that several configurations share get something more, where that differs among them."""
    sharing: dict[str, set[str]] = {}
    for key, label in labels.items():
        sharing.setdefault(label, set()).add(by[key])
    return {key: f"{label} ({by[key]})" if len(sharing[label]) > 1 else label for key, label in labels.items()}


def _words(flat: Mapping[str, Any], names: Sequence[str]) -> Iterator[str]:
    kind = ""
    for name in sorted(names, key=_rank_of(names)):
        value = flat.get(name)
        if name not in flat or value is None or _UNNAMED_DEFAULTS.get(name, "") == value:
            continue
        text = _text(name, value)
        if name == "method.kind":
            kind = text
        elif name == "method.rank" and kind:
            yield f"{kind} {text}"
            kind = ""
        else:
            if kind:
                yield kind
                kind = ""
            yield text
    if kind:
        yield kind


def _rank_of(names: Sequence[str]) -> Any:
    order = list(_SHORT_WORDS)
    return lambda name: (order.index(name), 0) if name in order else (len(order), names.index(name))


def _text(name: str, value: Any) -> str:
    if name == "model" and isinstance(value, str):
        # A folder is named, not where it lies.
        value = posixpath.basename(value.replace("\\", "/").rstrip("/")) or value
    if name == "method.kind":
        value = _METHOD_NAMES.get(value, value)
    shown = f"{value:g}" if isinstance(value, float) else str(value)
    words = _SHORT_WORDS.get(name)
    if words is None:
        return f"{name} {shown}"
    return words.format(shown).removesuffix("s" if shown == "1" and words.startswith("{} ") else "")


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _flat(inner, f"{path}.{key}" if path else str(key))
    else:
        yield path, value


def _hashable(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _natural(text: str) -> list[tuple[int, float, str]]:
    """Rank 8 before rank 16."""
    parts = []
    for word in text.replace(",", " ").split():
        try:
            parts.append((0, float(word), ""))
        except ValueError:
            parts.append((1, 0.0, word))
    return parts
