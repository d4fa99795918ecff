"""The sizes at which a step is recorded are sizes that the model takes."""

from collections.abc import Callable
from pathlib import Path

import pytest

from foretune.core.errors import UserError
from foretune.models.locating import family_from_catalogue, open_family
from foretune.trace.probing import probes


def sides(family_probes: tuple[object, ...]) -> set[int]:
    return {probe.sizes.height_px for probe in family_probes}  # type: ignore[attr-defined]


def test_a_small_table_of_positions_is_recorded_at_three_smaller_sides(tiny_pipeline: Callable[..., Path]) -> None:
    family = open_family(tiny_pipeline("sd3"))
    most_px = family.max_resolution_px()
    assert most_px is not None
    found = sides(probes(family, has_rank=True))
    assert len(found) == 3
    # The whole table needs no cropping, which makes it another program.
    assert max(found) < most_px
    assert all(side % family.size_multiple_px() == 0 for side in found)


def test_a_large_table_changes_nothing() -> None:
    family = family_from_catalogue("sd3.5-medium")
    assert sides(probes(family, has_rank=True)) == {side * family.size_multiple_px() for side in (8, 24, 40)}


def test_a_table_that_is_too_small_is_refused(
    tiny_pipeline: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    family = open_family(tiny_pipeline("sd3"))
    monkeypatch.setattr(type(family), "max_resolution_px", lambda _: 10 * family.size_multiple_px())
    with pytest.raises(UserError, match="too small to plan"):
        probes(family, has_rank=True)
