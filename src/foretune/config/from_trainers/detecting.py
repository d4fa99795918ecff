"""Which program a configuration is for, by its keys."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from foretune.config.from_trainers import kohya_keys
from foretune.config.from_trainers.launch_lines import launch_line
from foretune.config.from_trainers.programs import PROGRAMS, OtherTrainer
from foretune.config.from_trainers.sheet import flat
from foretune.config.yaml_files import parse
from foretune.core.errors import UserError
from foretune.core.input_files import parse_json, read_text

_MOST_BYTES = 2**20
_KOHYA_KEYS = (
    *("pretrained_model_name_or_path", "network_module", "dataset_config", "optimizer_type", "network_dim"),
    *("max_train_epochs", "save_model_as", "output_name"),
)
_BOTH = ("train_controlnet", "train_textual_inversion")
"""Scripts of this name are in both repositories."""
_SUFFIXES = (".json", ".yaml", ".yml", ".toml", ".sh", ".bash", ".txt", ".bat", ".example")


@dataclass(frozen=True)
class Found:
    """A configuration that was recognised."""

    program: OtherTrainer
    values: dict[str, Any]
    """Its keys, those of sections dotted."""


def find(path: Path) -> Found | None:
    """The program whose configuration a file is; None if it is none of them. Raises where it cannot be read."""
    if path.suffix.lower() not in _SUFFIXES or not path.is_file():
        return None
    text = read_text(path, _MOST_BYTES)
    suffix = path.suffix.lower()
    if suffix in (".json", ".example"):
        return _from_json(path, text)
    if suffix in (".yaml", ".yml"):
        return _from_yaml(text)
    if suffix == ".toml":
        return _from_toml(path, text)
    return _from_command(text)


def _from_json(path: Path, text: str) -> Found | None:
    try:
        mapping = parse_json(text)
    except ValueError as error:
        raise UserError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(mapping, dict):
        return None
    plain = {key.removeprefix("--"): value for key, value in mapping.items()}
    if "model_family" in plain or ("model_type" in plain and "data_backend_config" in plain):
        return Found(PROGRAMS["simpletuner"], plain)
    if "model_type" in plain and "training_method" in plain:
        return Found(PROGRAMS["onetrainer"], dict(flat(mapping)))
    if isinstance(plain.get("config"), Mapping) and "process" in plain["config"]:
        return _ai_toolkit(plain)
    return None


def _from_yaml(text: str) -> Found | None:
    """Experiments are YAML too; one that cannot be read is left to their reader."""
    try:
        mapping = parse(text)
    except yaml.YAMLError:
        return None
    is_job = isinstance(mapping, dict) and isinstance(mapping.get("config"), Mapping) and "process" in mapping["config"]
    return _ai_toolkit(mapping) if is_job else None


def _ai_toolkit(mapping: Mapping[str, Any]) -> Found:
    """The first process stands for the file; what is beside it keeps its place in front of its names."""
    config = dict(mapping["config"])
    processes = config.pop("process")
    first = processes[0] if isinstance(processes, list) and processes and isinstance(processes[0], Mapping) else {}
    others = {key: value for key, value in mapping.items() if key != "config"}
    return Found(PROGRAMS["ai-toolkit"], {**dict(flat(first)), **dict(flat(others)), **dict(flat({"config": config}))})


def _from_toml(path: Path, text: str) -> Found | None:
    try:
        mapping = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UserError(f"{path} cannot be read as TOML: {error}") from error
    if "datasets" in mapping:
        return Found(PROGRAMS["sd-scripts"], dict(flat(mapping)))
    # The program reads sections as if they were not there.
    plain: dict[str, Any] = {}
    for key, value in mapping.items():
        plain.update(value if isinstance(value, Mapping) else {key: value})
    return Found(PROGRAMS["sd-scripts"], plain) if any(key in plain for key in _KOHYA_KEYS) else None


def _from_command(text: str) -> Found | None:
    line = launch_line(text)
    if line is None:
        return None
    is_kohya = line.script in kohya_keys.SCRIPTS or line.script in kohya_keys.REFUSED_SCRIPTS
    if is_kohya and line.script in _BOTH and not any(key in line.flags for key in _KOHYA_KEYS[1:]):
        is_kohya = False
    values: dict[str, Any] = {"script": line.script, **line.flags}
    for name, value in line.launcher.items():
        if name == "mixed_precision":
            values.setdefault(name, value)
        else:
            values[f"accelerate.{name}"] = value
    return Found(PROGRAMS["sd-scripts" if is_kohya else "diffusers"], values)
