"""Licences of models on the Hub, and what is wrong with a file of them."""

import json
from pathlib import Path
from typing import Any

import pytest

from foretune import catalog
from foretune.catalog.licences import read_licences
from foretune.catalog.rows import CatalogError

ROW: dict[str, Any] = {
    "hub_repo": "owner/model",
    "licence": "apache-2.0",
    "link": None,
    "is_gated": False,
    "source": "its page",
}


def test_rows_are_of_catalogued_models() -> None:
    repos = {row.hub_repo for row in catalog.denoisers().values()}
    assert set(catalog.licences()) <= repos


def test_flux_dev_must_be_accepted_and_sdxl_not() -> None:
    assert catalog.licences()["black-forest-labs/FLUX.1-dev"].is_gated is True
    assert catalog.licences()["stabilityai/stable-diffusion-xl-base-1.0"].is_gated is False


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ([ROW, ROW], "owner/model: appears twice"),
        ([{**ROW, "hub_repo": "model"}], "hub_repo"),
        ([{**ROW, "source": ""}], "source"),
        ([{**ROW, "licence": None, "is_gated": None}], "neither the licence nor the gate is known"),
    ],
    ids=["double", "no owner", "no source", "says nothing"],
)
def test_what_is_wrong_is_named(rows: list[dict[str, Any]], complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "licences.json"
    path.write_text(json.dumps({"rows": rows}))
    with pytest.raises(CatalogError, match=complaint):
        read_licences(path)
