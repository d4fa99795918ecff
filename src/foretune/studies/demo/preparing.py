"""The study file of the demonstration, written where it will run."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from foretune.config.yaml_files import load_mapping

STUDY = Path(__file__).with_name("demo.yaml")
_HEAD = "# The study of `foretune demo`. Change it and run it again: foretune study demo.yaml\n"
_NEEDS_QUANTIZE = "lora-int8"


def write_demo_study(
    folder: Path, *, seconds: float | None = None, is_second_try: bool = False
) -> tuple[Path, tuple[str, ...]]:
    """Writes demo.yaml into the folder; returns it, and what had to be left out of it.

    A second try with other `seconds` is another study, demo-60s, beside the first one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    mapping: dict[str, Any] = load_mapping(STUDY)
    mapping["experiment"]["data"]["cache_dir"] = str(folder / "cache")
    if seconds is not None:
        mapping["seconds"] = seconds
    if is_second_try:
        mapping["name"] = f"{mapping['name']}-{seconds:g}s"
    left_out: tuple[str, ...] = ()
    if find_spec("torchao") is None:
        del mapping["configurations"][_NEEDS_QUANTIZE]
        left_out = ("LoRA on an int8 base needs torchao: pip install 'foretune[quantize]'",)
    path = folder / f"{mapping['name']}.yaml"
    path.write_text(f"{_HEAD}{yaml.safe_dump(mapping, sort_keys=False)}", encoding="utf-8")
    return path, left_out
