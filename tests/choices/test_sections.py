"""What each section takes and refuses, and that each of its fields explains itself."""

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from foretune.choices.data import FolderData
from foretune.choices.experiment import Experiment
from foretune.choices.method import METHODS, Lora
from foretune.choices.section import Section
from foretune.choices.training import Optimizer, Train


def all_sections() -> list[type[BaseModel]]:
    found, new = [], [Section]
    while new:
        new = [
            inner for section in new for inner in section.__subclasses__() if inner.__module__.startswith("foretune")
        ]
        found += [section for section in new if not section.__name__.startswith("_")]
    return [Experiment, *sorted(found, key=lambda section: section.__name__)]


@pytest.mark.parametrize("section", all_sections())
def test_every_field_explains_itself(section: type[BaseModel]) -> None:
    assert section.__doc__
    silent = [name for name, field in section.model_fields.items() if name != "kind" and not field.description]
    assert silent == []


@pytest.mark.parametrize("section", all_sections())
def test_every_section_is_frozen_and_closed(section: type[BaseModel]) -> None:
    assert section.model_config["frozen"] is True
    assert section.model_config["extra"] == "forbid"


@pytest.mark.parametrize("name", METHODS)
def test_methods_are_listed_under_their_kind(name: str) -> None:
    assert METHODS[name]().model_dump()["kind"] == name


def test_alpha_is_the_rank_where_it_is_left_out() -> None:
    assert Lora(rank=8).effective_alpha == 8.0
    assert Lora(rank=8, alpha=2).effective_alpha == 2.0


def test_training_has_one_length() -> None:
    assert Train(steps=5).epochs is None
    assert Train(epochs=5).steps is None
    with pytest.raises(ValidationError, match="needs steps"):
        Train()
    with pytest.raises(ValidationError, match="has both steps and epochs"):
        Train(steps=1, epochs=1)


@pytest.mark.parametrize("betas", [(1.0, 0.9), (0.9, -0.1), (0.9, 1.0)])
def test_betas_that_an_optimizer_would_refuse_are_refused(betas: tuple[float, float]) -> None:
    with pytest.raises(ValidationError):
        Optimizer(betas=betas)


def test_one_folder_or_several() -> None:
    one = FolderData(kind="folder", path="a", repeats=2, trigger="sks")
    assert [(f.path, f.repeats, f.trigger) for f in one.all_folders()] == [("a", 2, "sks")]
    several = FolderData.model_validate({"kind": "folder", "folders": [{"path": "a", "repeats": 3}, {"path": "b"}]})
    assert [(f.path, f.repeats, f.trigger) for f in several.all_folders()] == [("a", 3, None), ("b", 1, None)]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "needs path"),
        ({"path": "a", "folders": [{"path": "b"}]}, "has both path and folders"),
        ({"folders": [{"path": "b"}], "repeats": 2}, "put them into each of the folders"),
        ({"folders": [{"path": "b"}], "trigger": "x"}, "put them into each of the folders"),
    ],
)
def test_folders_that_do_not_go_together(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        FolderData(kind="folder", **fields)
