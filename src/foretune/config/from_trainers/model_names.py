"""What other programs call a model, as names of the catalogue."""

from collections.abc import Mapping
from pathlib import PurePosixPath, PureWindowsPath

from foretune import catalog
from foretune.choices.model import SINGLE_FILE_SUFFIXES, on_hub
from foretune.config.from_accelerate.config_keys import ConfigKeys
from foretune.config.from_trainers.sheet import Sheet, text_of
from foretune.core.errors import Refused, UserError

SAME_ARCHITECTURE: Mapping[str, str] = {
    "black-forest-labs/flux.1-krea-dev": "flux.1-dev",
    "terminusresearch/fluxbooru-v0.3": "flux.1-dev",
    "jimmycarter/libreflux-simpletuner": "flux.1-schnell",
    "lykon/dreamshaper-8": "sd1.5-unet",
    "runwayml/stable-diffusion-v1-5": "sd1.5-unet",
    "compvis/stable-diffusion-v1-4": "sd1.5-unet",
    "sg161222/realvisxl_v5.0": "sdxl-unet",
    "stabilityai/stable-diffusion-xl-base-0.9": "sdxl-unet",
    "stabilityai/stable-diffusion-2": "sd2-unet",
    "stabilityai/stable-diffusion-2-0": "sd2-unet",
    "stabilityai/stable-diffusion-2-1": "sd2-unet",
    "stabilityai/stable-diffusion-2-1-base": "sd2-unet",
    "stabilityai/stable-diffusion-3-medium": "sd3-medium",
    "pixart-alpha/pixart-sigma-xl-2-512-ms": "pixart-sigma-xl2-1024",
    "pixart-alpha/pixart-sigma-xl-2-2k-ms": "pixart-sigma-xl2-1024",
    "terminusresearch/pixart-900m-1024-ft-v0.7-stage1": "pixart-sigma-900m",
    "terminusresearch/pixart-900m-1024-ft-v0.7-stage2": "pixart-sigma-900m",
    "wan-ai/wan2.1-i2v-14b-480p-diffusers": "wan2.1-i2v-14b",
    "ai-toolkit/wan2.2-t2v-a14b-diffusers-bf16": "wan2.2-a14b-t2v-expert",
    "lightricks/ltx-video-0.9.1": "ltx-video-0.9",
    "lightricks/ltx-video-0.9.5": "ltx-video-0.9",
    "tencent/hunyuanvideo": "hunyuanvideo",
    "tencent/hunyuanvideo-1.5": "hunyuanvideo-1.5",
    "hunyuanvideo-community/hunyuanvideo-1.5-diffusers-480p_t2v": "hunyuanvideo-1.5",
    "hunyuanvideo-community/hunyuanvideo-1.5-diffusers-720p_t2v": "hunyuanvideo-1.5",
    "qwen/qwen-image-2512": "qwen-image",
    "tongyi-mai/z-image": "z-image",
    "lodestones/chroma": "chroma",
    "lodestones/chroma1-hd": "chroma",
    "lodestones/chroma1-flash": "chroma",
    "terminusresearch/neta-lumina-v1": "lumina-image-2.0",
    "fal/auraflow": "auraflow",
    "fal/auraflow-v0.2": "auraflow",
    "terminusresearch/auraflow-v0.3": "auraflow",
    "purplesmartai/pony-v7-base": "auraflow",
    "terminusresearch/kwai-kolors-1.0": "kolors-unet",
    "hidream-ai/hidream-i1-dev": "hidream-i1",
    "hidream-ai/hidream-i1-fast": "hidream-i1",
    "krea/krea-2-turbo": "krea-2",
    "terminusresearch/sana-1.6b-1024px": "sana-1.6b",
    "efficient-large-model/sana_1600m_1024px_bf16_diffusers": "sana-1.6b",
}
"""Repositories, in lower case, whose denoiser has the layers of one in the catalogue."""
LIST = "Run: foretune list models"
STEP_DISTILLED = ("libreflux", "schnell", "turbo", "flash", "-fast", "hidream-i1-dev")


def catalogued(repository: str) -> str | None:
    """The denoiser of the catalogue with the layers of a repository's."""
    wanted = repository.strip().lower()
    for name, row in catalog.denoisers().items():
        if wanted in (name, (row.hub_repo or "").lower()):
            return name
    return SAME_ARCHITECTURE.get(wanted)


def set_model(sheet: Sheet, key: str, *, of_kind: str | None, kind_key: str | None = None) -> None:
    """Sets the model. `of_kind` is the denoiser that the program's own word for the model means, if it has one.

    A repository comes first where it is known; a file, a folder or an unknown repository is planned as `of_kind`.
    """
    named = text_of(sheet.keys, key)
    if sheet.settings.get("model") is not None:  # the user's choice
        name = sheet.settings["model"]
        sheet.lacks(key, f"model={name} was requested instead")
    else:
        name = _chosen(sheet, key, named, of_kind)
    if name is None:
        what = f"{named!r} is not in the catalogue" if named else "the model is missing"
        sheet.refuse(
            kind_key or key,
            f"{what}, and nothing else in the file names one that is. {LIST}",
        )
        return
    sheet.model, sheet.family = name, catalog.denoiser(name).family
    if kind_key is not None:
        answer_kind(sheet, kind_key, key)
    is_same = named is None or not is_repository(named) or sheet.settings["model"] == name
    if (catalog.denoiser(name).distilled and is_same) or any(part in (named or "").lower() for part in STEP_DISTILLED):
        sheet.settings["accept"] = ["distilled-base"]
        sheet.assume(f"{named or name} is distilled to few steps; its few-step sampling may be lost (accept)")


def answer_kind(sheet: Sheet, kind_key: str, key: str) -> None:
    """Answers the program's word for the kind of model: a known repository, or the user, comes first."""
    named = text_of(sheet.keys, key)
    if named is not None and catalogued(named) is not None:
        sheet.keys.answer(kind_key, "not needed", f"{key} names the model")
    elif sheet.model is not None:
        sheet.keys.answer(kind_key, "translated", f"model={sheet.model}")


def _chosen(sheet: Sheet, key: str, named: str | None, of_kind: str | None) -> str | None:
    known = None if named is None else catalogued(named)
    if known is not None and named is not None:
        row = catalog.denoiser(known)
        is_same = named.lower() in (known, (row.hub_repo or "").lower())
        remark = "" if is_same else f"planned as {known}, which has the same layers"
        sheet.set(key, "model", known if is_same else named, remark)
        return known
    if of_kind is None:
        return None
    if named is None:
        sheet.settings["model"] = of_kind
        sheet.assume(f"the model is not named: {of_kind}")
    elif is_repository(named):
        sheet.set(key, "model", named, f"planned as {of_kind}; its layers were not compared")
    else:
        sheet.settings["model"] = of_kind
        sheet.lacks(key, f"{_how_to_import(named, of_kind)}; model={of_kind} until then")
        sheet.assume(f"{_last_part(named)} has the layers of {of_kind}")
    return of_kind


def is_repository(named: str) -> bool:
    """Whether a text can be a repository of the Hub rather than a path."""
    try:
        return on_hub(named) is not None and not named.endswith(SINGLE_FILE_SUFFIXES)
    except (Refused, UserError):
        return False


def _how_to_import(named: str, base: str) -> str:
    if named.endswith(SINGLE_FILE_SUFFIXES):
        return f"a model is a folder here: foretune import-checkpoint FILE --base {base} makes one of a single file"
    return "a local path is not followed; set `model` to a folder in the diffusers layout"


def _last_part(named: str) -> str:
    return PureWindowsPath(PurePosixPath(named).name).name or named


def refuse_unknown_kind(keys: ConfigKeys, sheet: Sheet, key: str, known: Mapping[str, str | None]) -> str | None:
    """The denoiser that the program's word for a model means; a word that is not known is no mistake by itself."""
    word = text_of(keys, key)
    if word is None:
        return None
    by_lower = {name.lower(): model for name, model in known.items()}
    if word.lower() not in by_lower or by_lower[word.lower()] is None:
        sheet.refuse(key, f"models of the kind {word!r} are not in the catalogue. {LIST}")
    return by_lower.get(word.lower())
