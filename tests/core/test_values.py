"""What all values share: they cannot be changed, go to JSON and back, and know their version."""

import json
import math
from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar

import pytest
from pydantic import ValidationError

from foretune.core.errors import UserError
from foretune.core.values import Finding, Interval, Plan, RunRecord, Value, WrongFormat
from foretune.core.values.base import Part, Upgrade, content_hash
from foretune.core.values.plan import PhaseMemory
from foretune.core.values.run_record import Measured
from foretune.core.values.step_trace import Growth
from tests.core.formats import VALUES, frozen_file

FINDING = Finding(sentence="It fits.", evidence=("run-1", "run-2"))


def samples() -> list[Value]:
    return [
        value.from_json(frozen_file(name, value.format_version()).read_text(encoding="utf-8"))
        for name, value in VALUES.items()
    ]


@pytest.fixture(params=samples(), ids=lambda value: type(value).__name__)
def sample(request: pytest.FixtureRequest) -> Value:
    value: Value = request.param
    return value


def test_a_value_cannot_be_changed(sample: Value) -> None:
    for name in type(sample).model_fields:
        with pytest.raises(ValidationError, match="frozen"):
            setattr(sample, name, getattr(sample, name))


def test_parts_of_a_value_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Interval(low=1, high=2).low = 0


class Rectangle(Part):
    """A part with a property that is computed once."""

    width: int
    height: int

    @cached_property
    def area(self) -> int:
        return self.width * self.height


def test_a_copy_computes_its_cached_properties_again() -> None:
    rectangle = Rectangle(width=2, height=3)
    assert rectangle.area == 6
    wider = rectangle.model_copy(update={"width": 5})
    assert (wider.area, rectangle.area) == (15, 6)
    assert wider == Rectangle(width=5, height=3)


def test_a_value_is_closed_to_unknown_fields(sample: Value) -> None:
    with pytest.raises(WrongFormat, match="surprise"):
        type(sample).from_mapping({**sample.to_mapping(), "surprise": 1})


def test_a_value_goes_to_json_and_back(sample: Value) -> None:
    back = type(sample).from_json(sample.to_json())
    assert back.to_mapping() == sample.to_mapping()
    if not isinstance(sample, RunRecord):  # its loss is not a number, which equals nothing
        assert back == sample


def test_a_value_says_what_it_is(sample: Value) -> None:
    keys = list(json.loads(sample.to_json()).items())[:2]
    assert keys == [("format", type(sample).__name__), ("format_version", type(sample).format_version())]


def strict_json(text: str) -> Any:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_numbers_that_are_not_finite_are_json_for_every_reader() -> None:
    measured = Measured(first_loss=math.inf, last_loss=math.nan, held_out_losses=((1, -math.inf),))
    record = next(value for value in samples() if isinstance(value, RunRecord)).model_copy(
        update={"measured": measured}
    )
    stored = strict_json(record.to_json())["measured"]
    assert (stored["first_loss"], stored["last_loss"]) == ("Infinity", "NaN")
    back = RunRecord.from_json(record.to_json()).measured
    assert back.first_loss == math.inf
    assert math.isnan(back.last_loss or 0)
    assert back.held_out_losses == ((1, -math.inf),)


class Recipe(Value):
    """A value in its third version: v1 had minutes, v2 had seconds, v3 has its yield too."""

    seconds: int
    num_portions: int

    upgrades: ClassVar[Mapping[int, Upgrade]] = {
        1: lambda old: {"seconds": old["minutes"] * 60},
        2: lambda old: {**old, "num_portions": 4},
    }


def test_the_version_follows_from_the_upgrades() -> None:
    assert Recipe.format_version() == 3
    assert Recipe(seconds=1, num_portions=2).to_mapping()["format_version"] == 3
    assert Finding.format_version() == 1


@pytest.mark.parametrize(
    "stored",
    [
        {"format_version": 1, "minutes": 2},
        {"format_version": 2, "seconds": 120},
        {"format_version": 3, "seconds": 120, "num_portions": 4},
    ],
)
def test_every_earlier_version_is_read(stored: dict[str, Any]) -> None:
    before = dict(stored)
    assert Recipe.from_mapping({"format": "Recipe", **stored}) == Recipe(seconds=120, num_portions=4)
    assert stored == before


def test_an_old_version_does_not_take_fields_of_a_newer_one() -> None:
    with pytest.raises(WrongFormat, match=r"This Recipe is damaged: minutes: Extra"):
        Recipe.from_mapping({"format": "Recipe", "format_version": 3, "minutes": 2, "seconds": 1, "num_portions": 1})


@pytest.mark.parametrize("stored", [{}, {"minutes": None}, {"minutes": [1]}])
def test_an_old_file_that_cannot_be_upgraded_is_damaged(stored: dict[str, Any]) -> None:
    with pytest.raises(WrongFormat, match=r"Recipe (of format version 1 )?is damaged"):
        Recipe.from_mapping({"format": "Recipe", "format_version": 1, **stored})


def test_a_newer_version_names_the_upgrade() -> None:
    with pytest.raises(
        WrongFormat,
        match=r"This Finding has format version 2; this release reads up to 1\. Run: pip install --upgrade foretune",
    ):
        Finding.from_mapping({**FINDING.to_mapping(), "format_version": 2})


@pytest.mark.parametrize("version", [0, -1, None, "1", 1.0, True])
def test_a_version_that_is_none_is_refused(version: Any) -> None:
    with pytest.raises(WrongFormat, match="This Finding is damaged: its format version is"):
        Finding.from_mapping({**FINDING.to_mapping(), "format_version": version})


def test_another_format_is_refused() -> None:
    with pytest.raises(WrongFormat, match=r"Expected a Plan, found a Finding\."):
        Plan.from_mapping(FINDING.to_mapping())
    with pytest.raises(WrongFormat, match=r"Expected a Plan, found something that names no format\."):
        Plan.from_mapping({"device": "rtx-4090"})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "This Finding is not JSON"),
        (FINDING.to_json()[:-20], "This Finding is not JSON"),
        ("[1, 2]", "Expected a Finding, found list"),
        ('{"format": "Finding", "format_version": 1}', "This Finding is damaged: sentence: Field required; evidence"),
        (FINDING.to_json().replace('"It fits."', "7"), "This Finding is damaged: sentence: Input should be"),
    ],
)
def test_what_is_damaged_is_refused_in_one_line(text: str, said: str) -> None:
    with pytest.raises(WrongFormat, match=said) as caught:
        Finding.from_json(text)
    assert isinstance(caught.value, UserError)
    assert "\n" not in str(caught.value)
    assert "http" not in str(caught.value)


def test_equal_content_has_equal_hashes() -> None:
    assert content_hash({"a": 1, "b": [1, 2]}) == content_hash({"b": [1, 2], "a": 1})
    assert len(content_hash({})) == 16
    # Written down once: hashes are compared across machines and releases.
    assert content_hash({"a": 1, "b": [0.1, None, "é"]}) == "a7575b44dfabefad"


@pytest.mark.parametrize("other", [{"a": 2, "b": [1, 2]}, {"a": 1, "b": [2, 1]}, {"a": 1}, {"a": "1", "b": [1, 2]}])
def test_other_content_has_another_hash(other: dict[str, Any]) -> None:
    assert content_hash(other) != content_hash({"a": 1, "b": [1, 2]})


def test_growth_by_hand() -> None:
    growth = Growth(terms=((5.0, (0, 0, 0, 0)), (2.0, (1, 2, 0, 0)), (3.0, (0, 0, 1, 1))))
    assert growth.at((2, 10, 7, 4)) == 5 + 2 * 2 * 100 + 3 * 7 * 4
    assert Growth(terms=()).at((1, 1, 1, 1)) == 0


def test_memory_of_a_phase_is_the_sum_of_its_parts() -> None:
    assert PhaseMemory(phase="step", device_bytes_by_part={"weights": 3, "gradients": 4}).device_bytes == 7
