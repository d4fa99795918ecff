"""The small model's folders: the pipeline that training starts from, and what ships."""

import json
from pathlib import Path
from typing import Any

import torch
import yaml
from diffusers import FluxPipeline

from foretune.core.errors import UserError
from foretune.models.copying import copy_model
from foretune.record.atomic import write_text
from foretune.record.run_directory import RunDirectory
from foretune.training.trained_run import load_trained

# Half of the bytes; all parts are rounded before the denoiser is trained on what they make.
_STORED = torch.float16
# What speed depends on, and nothing that tells one machine from its like.
_TOLD_OF_ENVIRONMENT = ("cpu", "num_usable_cpus", "memory_bytes", "system", "machine", "python", "foretune", "packages")


def write_start(pipeline: FluxPipeline, folder: Path) -> None:
    """Everything in the numbers that ship."""
    pipeline.to(dtype=_STORED).save_pretrained(folder, safe_serialization=True)


def ship(run: Path, folder: Path) -> None:
    """The run's pipeline with its recipe and record beside it, free of where and by whom it was made.

    Where the run began with a model that was shipped like this, its recipe and record stay as the earlier ones.
    """
    directory = RunDirectory.open(run)
    record = directory.read_record()
    if record is None:
        raise UserError(f"{run} has not ended yet: it has no record.json. Run: foretune resume {run}")
    trained = load_trained(directory, _STORED)
    copy_model(trained.folder, folder)
    denoiser: Any = trained.method.denoiser
    denoiser.save_pretrained(folder / trained.family.denoiser_part, safe_serialization=True)
    for config in folder.glob("*/*config.json"):
        _forget_place(config)
    asked, _, _ = directory.read_experiment()
    environment = {key: record.environment.get(key) for key in _TOLD_OF_ENVIRONMENT}
    texts = {
        "recipe.yaml": yaml.safe_dump({**asked, "model": f"./{trained.folder.name}"}, sort_keys=False),
        "record.json": record.model_copy(update={"environment": environment}).to_json() + "\n",
    }
    for name, text in texts.items():
        if (folder / name).is_file():
            (folder / name).rename(folder / f"earlier-{name}")
        write_text(folder / name, text.replace(str(trained.folder.resolve()), f"./{trained.folder.name}"))


def _forget_place(config: Path) -> None:
    """Configurations say from which folder they were loaded."""
    content = json.loads(config.read_text(encoding="utf-8"))
    if content.pop("_name_or_path", None) is not None:
        write_text(config, json.dumps(content, indent=2, sort_keys=True) + "\n")
