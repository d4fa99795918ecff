"""Settings of adapters that others wrote. peft imports the modules and loads the files that some of them name."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from peft import PeftConfig
from peft.mapping import get_peft_config

from foretune.core.errors import Refused, UserError
from foretune.core.input_files import shown

# Settings with which peft imports a module by its name, reads other files, or changes more than the layers.
_MUST_BE_EMPTY = (
    *("auto_mapping", "megatron_config", "corda_config", "eva_config", "lora_ga_config", "loftq_config"),
    *("arrow_config", "velora_config", "monteclora_config", "kasa_config", "layer_replication"),
)


def refuse_code(settings: Mapping[str, Any], path: Path) -> None:
    """Raises if building an adapter with these settings would import or load what they name."""
    for key in _MUST_BE_EMPTY:
        if settings.get(key):
            raise Refused(
                f"{shown(path)} sets {key}, with which peft imports modules or reads files that the adapter names. "
                "Remove the setting if you trust the rest: it is not needed to apply a trained adapter."
            )


def read_config(settings: Any, path: Path) -> PeftConfig:
    """Returns the configuration that settings from a file describe."""
    if not isinstance(settings, dict):
        raise UserError(f"{shown(path)} has adapter settings that are {type(settings).__name__}, not an object.")
    refuse_code(settings, path)
    try:
        return get_peft_config(settings)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{shown(path)} has adapter settings that peft does not know: {error}") from error
