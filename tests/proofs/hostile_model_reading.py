"""Loads hostile model folders one after the other as training and sampling do: for the fork server."""

import json
import os
import shutil
import sys
import traceback
from pathlib import Path

import torch

from foretune.core.errors import UserError
from foretune.models.locating import open_family
from tests.proofs.hostile_file_reading import Watch
from tests.proofs.hostile_models import CANARY, write_model
from tests.proofs.hostile_reading import limit_resources


def load_all(names: list[str], folder: str, answers: str) -> None:
    """Loads a harmless folder, then those of these names."""
    limit_resources()
    watch = Watch()
    model = Path(folder) / "model"
    with Path(answers).open("a") as log:
        for name in [None, None, *names]:
            log.write(json.dumps({"name": name}) + "\n")
            log.flush()
            write_model(model, name)
            os.chdir(model)
            sys.path.insert(0, str(model))
            watch.seen, watch.is_on = [], True
            end, message = _load(model)
            watch.is_on = False
            sys.path.remove(str(model))
            os.chdir(folder)
            canaries = sorted(str(path) for path in Path(folder).rglob(f"{CANARY}*"))
            imported = sorted(module for module in sys.modules if "evil_module" in module or module == "antigravity")
            found = {"name": name, "end": end, "message": message, "executed": [*watch.seen, *canaries, *imported]}
            log.write(json.dumps(found) + "\n")
            log.flush()
            shutil.rmtree(model)


def _load(model: Path) -> tuple[str, str]:
    try:
        family = open_family(model)
        family.load_denoiser(model, torch.float32)
        family.load_vae(model, torch.float32)
        family.load_text_encoders(model, torch.float32)
        family.load_pipeline(model, torch.float32)
    except UserError as error:
        return "refused", str(error)
    except Exception:  # noqa: BLE001 - whatever it is, it is the answer
        return "crashed", traceback.format_exc()[-1500:]
    return "loaded", ""
