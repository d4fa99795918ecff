"""What the data sections of all programs share: folders and sizes."""

from collections.abc import Sequence

from foretune import catalog
from foretune.config.from_trainers.sheet import Sheet

_STEP_PX = 64
_PLACE = "./data"


def is_video(sheet: Sheet) -> bool:
    return sheet.family is not None and catalog.family_facts(sheet.family).is_video


def set_folders(sheet: Sheet, folders: Sequence[tuple[str, int]]) -> None:
    """Sets one folder or several, each with its repeats. Folders are not looked at."""
    kind = "clips" if is_video(sheet) else "folder"
    sheet.settings["data.kind"] = kind
    if not folders:
        sheet.settings["data.path"] = _PLACE
        sheet.assume(f"the file names no folder: data.path is {_PLACE}; change it before you train")
    elif len(folders) == 1 or kind == "clips":
        path, repeats = folders[0]
        sheet.settings["data.path"] = path
        if repeats > 1:
            sheet.settings["data.repeats"] = repeats
        if len(folders) > 1:
            sheet.assume(f"of {len(folders)} folders of clips the first is taken")
    else:
        sheet.settings["data.folders"] = [{"path": path, "repeats": repeats} for path, repeats in folders]


def round_px(side: float) -> int:
    """A side in multiples that most models take; small sides are left as they are."""
    if side < 4 * _STEP_PX or side % 16 == 0:
        return max(8, round(side))
    return round(side / _STEP_PX) * _STEP_PX


def num_blocks(model: str) -> int:
    """Number of repeated transformer blocks of a denoiser of the catalogue, as far as its configuration tells."""
    config = catalog.denoiser(model).config
    counts = (config.get(name) for name in ("num_layers", "num_single_layers", "n_layers", "depth"))
    return sum(count for count in counts if isinstance(count, int))
