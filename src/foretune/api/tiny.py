"""`tiny`: a complete small pipeline on disk, for tests and trials."""

from pathlib import Path

from foretune.api.start import import_libraries
from foretune.core.errors import UserError
from foretune.core.extras import require
from foretune.core.observer import Observer


def tiny(
    family: str,
    directory: str | Path,
    *,
    variant: str | None = None,
    seed: int = 0,
    force: bool = False,
    observer: Observer | None = None,
) -> Path:
    """Writes a complete tiny pipeline with random weights in the diffusers layout.

    Args:
        family: one of those that can be trained, as in `foretune list models`.
        directory: where to write it.
        variant: such as schnell for flux, 3 for sd3.
        seed: of its random weights.
        force: write into a folder that has files.
        observer: receives progress.
    """
    from foretune.choices.tiny import tiny_variant

    chosen, path = tiny_variant(family, variant), Path(directory)
    if not force and path.is_dir() and any(path.iterdir()):
        # It might hold a model that took days to download, or one of another family, with which this would be mixed.
        raise UserError(f"{directory} has files already. Choose another folder, or type --force to write over them")
    require("train", "Writing a tiny pipeline")
    import_libraries(observer or Observer(), "foretune.models.tiny")
    from foretune.models.tiny import write_tiny_pipeline

    return write_tiny_pipeline(family, path, seed=seed, variant=chosen)
