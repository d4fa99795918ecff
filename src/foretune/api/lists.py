"""`list_models`, `list_devices`, `list_methods`: what Foretune knows, each fact with its source."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from foretune.catalog import Device


def list_models() -> list[dict[str, Any]]:
    """Denoisers of the catalogue, and which of them can be trained."""
    from foretune import catalog

    return [
        {
            "name": row.name,
            "family": row.family,
            "num_params": row.num_params,
            "trainable": row.is_trainable,
            "distilled": row.distilled,
            "hub_repo": row.hub_repo,
            "source": row.source.model_dump(mode="json"),
        }
        for row in catalog.denoisers().values()
    ]


def shipped_models() -> tuple[str, ...]:
    """Models whose weights come with Foretune."""
    from foretune.choices.model import SHIPPED_MODELS

    return tuple(SHIPPED_MODELS)


def list_devices() -> "list[Device]":
    """Devices of the catalogue, with their data sheets' figures."""
    from foretune import catalog

    return list(catalog.devices().values())


def list_methods() -> list[dict[str, Any]]:
    """Training methods and the settings each takes."""
    from foretune.catalog import TRAINABLE
    from foretune.choices.method import METHODS

    rows = []
    for name, section in METHODS.items():
        settings = {k: f.description or "" for k, f in section.model_fields.items() if k != "kind"}
        rows.append({"name": name, "what": section.__doc__, "settings": settings, "families": list(TRAINABLE)})
    return rows
