"""Options of `sample` that the run decides where they are left out."""

from pathlib import Path

import pytest

from foretune.cli.main import app
from foretune.core.observer import Observer
from foretune.quality import side_by_side
from foretune.quality.side_by_side import SideBySideRequest


@pytest.mark.parametrize(
    ("typed", "vae_tiling"), [((), None), (("--vae-tiling",), True), (("--no-vae-tiling",), False)]
)
def test_tiles_are_as_in_the_run_unless_requested(
    typed: tuple[str, ...], vae_tiling: bool | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[SideBySideRequest] = []

    def noted(request: SideBySideRequest, _: Path, __: Observer) -> tuple[str, ...]:
        requests.append(request)
        return ("base",)

    monkeypatch.setattr(side_by_side, "side_by_side", noted)
    output = str(tmp_path / "a.png")
    app(("sample", "--base", "foretune-shapes", "--output", output, *typed), standalone_mode=False)
    assert [request.setup.vae_tiling for request in requests] == [vae_tiling]
