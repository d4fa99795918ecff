"""`import_accelerate`: a config of Hugging Face accelerate as settings of an experiment."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretune.core.errors import UserError

if TYPE_CHECKING:
    from foretune.config.from_accelerate.config_keys import KeyAnswer
    from foretune.config.from_accelerate.importing import Translation

_WHERE_IT_IS = "By default, `accelerate config` writes ~/.cache/huggingface/accelerate/default_config.yaml."


@dataclass(frozen=True)
class ImportedConfig:
    """A config of accelerate as settings of an experiment, and what became of each of its keys."""

    path: Path
    found: "Translation"

    @property
    def settings(self) -> Mapping[str, Any]:
        """Settings by dotted key, as `plan` and `train` take them: {"parallel.devices": 8}."""
        return self.found.settings

    @property
    def keys(self) -> "tuple[KeyAnswer, ...]":
        """Every key of the file: what it became, why it is not needed, or what is nearest if it is not supported."""
        return self.found.answers

    @property
    def unsupported(self) -> tuple[str, ...]:
        """The keys that are not supported or not known."""
        return tuple(answer.key for answer in self.keys if answer.outcome in ("not supported", "unknown"))

    @cached_property
    def yaml(self) -> str:
        """Sections for an experiment file; everything else in comments."""
        from foretune.config.from_accelerate.fragment import fragment

        return fragment(self.path.name, self.found)

    def __str__(self) -> str:
        return self.yaml


def import_accelerate(file: str | Path) -> ImportedConfig:
    """Translates a config of Hugging Face accelerate, the file that `accelerate config` writes, into settings of an
    experiment: devices, sharding, precision, accumulation, checkpointing, compilation.

    DeepSpeed configs become their FSDP2 equivalent. accelerate and DeepSpeed need not be installed.
    """
    path = Path(file)
    if not path.exists():  # before the experiment's schema is imported, which takes longer than all else
        raise UserError(f"{path} does not exist. {_WHERE_IT_IS}")
    from foretune.config.from_accelerate.importing import translate

    return ImportedConfig(path, translate(path, _WHERE_IT_IS))
