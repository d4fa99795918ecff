"""Which files of a repository a training needs. Training and `foretune fetch` both ask here."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from foretune.choices.model import MODEL_SUFFIXES, PIPELINE_INDEX

# The same weights once more, in another dtype or before averaging: model.fp16.safetensors,
# model.fp16-00001-of-00002.safetensors, model.safetensors.index.fp16.json, diffusion_pytorch_model.non_ema.safetensors.
# Loaders take such files only if they are asked for a variant by its name.
_VARIANT = re.compile(r"[^.]+\.[^.]+\.safetensors(\.index\.json)?|.+\.safetensors\.index\.[^.]+\.json")

_DATA_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff", ".txt", ".jsonl", ".csv", ".parquet")


def needed_files(paths: Iterable[str], index: Mapping[str, Any], denoiser_part: str) -> list[str]:
    """The files of a pipeline, of all that its repository holds: no pickled weights, no code, one dtype.

    `index` is the content of model_index.json: it names the folders that belong to the pipeline.
    """
    safe = [path for path in paths if path.endswith(MODEL_SUFFIXES) and not _is_variant(path)]
    if not any(path.startswith(f"{denoiser_part}/") for path in safe):
        # The oldest checkpoints have all files beside the index.
        return sorted(path for path in safe if "/" not in path)
    # The index is somebody else's: what is no plain name of a folder is none of the pipeline's.
    parts = {name for name, entry in index.items() if isinstance(entry, list) and entry and entry[0] is not None}
    folders = {name for name in parts if name.isidentifier()}
    return sorted(
        path for path in safe if path == PIPELINE_INDEX or (path.count("/") == 1 and path.split("/")[0] in folders)
    )


def data_files(paths: Iterable[str]) -> list[str]:
    """The files of a data set that training reads: images, captions and tables; no code, no pickles, no archives."""
    return sorted(path for path in paths if path.lower().endswith(_DATA_SUFFIXES) and not path.startswith("."))


def part_of(path: str) -> str:
    """The part of the pipeline that a file belongs to; `pipeline` for those beside the index."""
    folder, slash, _ = path.partition("/")
    return folder if slash else "pipeline"


def _is_variant(path: str) -> bool:
    return _VARIANT.fullmatch(path.rpartition("/")[2]) is not None
