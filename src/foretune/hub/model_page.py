"""What the page of a model or data set on the Hub says of its licence."""

from typing import Literal

from foretune import catalog
from foretune.hub.surroundings import token

_NAMED_ELSEWHERE = "other"


def licence_of(repo: str, kind: Literal["model", "dataset"] = "model") -> tuple[str | None, bool | None]:
    """The licence of a repository, and whether it must be accepted there; without a network, by the catalogue."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]  # the base of its errors

    try:
        hub = HfApi(token=token())
        info = hub.model_info(repo) if kind == "model" else hub.dataset_info(repo)
    except (OSError, HTTPError):
        known = catalog.licences().get(repo)
        return (None, None) if known is None else (known.licence, known.is_gated)
    card = info.card_data
    licence = None if card is None else card.get("license")
    if licence == _NAMED_ELSEWHERE and card is not None:
        licence = card.get("license_name") or licence
    return (None if licence is None else str(licence)), None if info.gated is None else bool(info.gated)
