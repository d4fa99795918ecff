"""The settings that a configuration becomes, each checked by the capability matrix when it is added."""

from dataclasses import dataclass, field
from typing import Any

from foretune.catalog import TRAINABLE
from foretune.choices.capabilities import objections
from foretune.choices.experiment import Experiment
from foretune.choices.objections import DeviceType
from foretune.config.yaml_files import typed

# What an accelerate config does not say: the smallest experiment with the default method, a LoRA.
_REST: dict[str, Any] = {"model": "any", "data": {"kind": "shapes"}, "train": {"steps": 1}}


@dataclass
class Draft:
    """Settings by dotted key, and what they share with the original and what they do not."""

    settings: dict[str, Any] = field(default_factory=dict)
    same: list[str] = field(default_factory=list)
    differs: list[str] = field(default_factory=list)

    def refusal(self, setting: str, value: Any) -> str | None:
        """Why a setting does not go with those that are there; None if it does."""
        experiment = Experiment.model_validate(_with_sections(_REST, {**self.settings, setting: value}))
        device_type: DeviceType | None = "cpu" if experiment.parallel.device == "cpu" else None
        for family in TRAINABLE:
            for objection in objections(experiment, family, distilled=None, device_type=device_type):
                if objection.severity == "refused":
                    return objection.text
        return None

    def take(self, setting: str, value: Any) -> str:
        """Adds a setting that goes with those that are there; returns how one types it."""
        assert self.refusal(setting, value) is None, f"{setting}={value} after {self.settings}"
        self.settings[setting] = value
        return setting_text(setting, value)


def setting_text(setting: str, value: Any) -> str:
    return f"{setting}={typed(value)}"


def sections_of(settings: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Settings by dotted key as the sections of an experiment file."""
    return _with_sections({}, settings)


def _with_sections(mapping: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    result = {name: dict(value) if isinstance(value, dict) else value for name, value in mapping.items()}
    for setting, value in settings.items():
        section, _, key = setting.partition(".")
        result.setdefault(section, {})[key] = value
    return result
