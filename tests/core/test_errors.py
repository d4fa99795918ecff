"""Errors write their own sentence."""

import pytest

from foretune.core.errors import ExperimentErrors, MissingExtra, Refused, UnknownName, UserError, closest

MODELS = ("flux.1-dev", "flux.1-schnell", "sd3.5-medium", "ddpm-cifar10")


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ("flux.1-dev", "flux.1-dev"),
        ("flux1-dev", "flux.1-dev"),
        ("FLUX.1-Dev", "flux.1-dev"),
        ("schnell", "flux.1-schnell"),
        ("sd35-medium", "sd3.5-medium"),
        ("ddpm", "ddpm-cifar10"),
        ("flux", "flux.1-dev"),
        ("fl", None),
        ("", None),
        ("whisper", None),
    ],
)
def test_closest(asked: str, meant: str | None) -> None:
    assert closest(asked, MODELS) == meant


def test_closest_keeps_the_spelling_of_the_known_name() -> None:
    assert closest("fluxpipelin", ["FluxPipeline", "DDPMPipeline"]) == "FluxPipeline"


def test_closest_of_nothing_is_nothing() -> None:
    assert closest("flux", []) is None


def test_an_unknown_name_near_a_known_one() -> None:
    error = UnknownName("model", "flux.1-def", MODELS)
    assert str(error) == "There is no model named 'flux.1-def'. Did you mean 'flux.1-dev'?"
    assert (error.kind, error.asked) == ("model", "flux.1-def")


def test_an_unknown_name_near_none_lists_the_known_ones_in_order() -> None:
    assert str(UnknownName("method", "zzz", ["lora", "full"])) == "There is no method named 'zzz'. Known: full, lora."


def test_a_long_list_of_known_names_is_cut() -> None:
    names = [f"name{number:02d}" for number in range(20)]
    text = str(UnknownName("thing", "?", names))
    assert text.endswith("name11, and 8 more.")
    assert "name12" not in text


def test_a_missing_extra_names_the_command() -> None:
    error = MissingExtra("Training", "train")
    assert str(error) == "Training needs packages that are not installed. Run: pip install 'foretune[train]'"
    assert error.extra == "train"


def test_one_mistake_and_several() -> None:
    one = ExperimentErrors("x.yaml", ["model: is missing."])
    assert str(one) == "x.yaml has 1 mistake:\n  1. model: is missing."
    two = ExperimentErrors("x.yaml", ["a", "b"])
    assert str(two) == "x.yaml has 2 mistakes:\n  1. a\n  2. b"
    assert two.problems == ("a", "b")


@pytest.mark.parametrize("kind", [UnknownName, MissingExtra, ExperimentErrors, Refused])
def test_what_a_user_can_mend_exits_with_2(kind: type[UserError]) -> None:
    assert issubclass(kind, UserError)
    assert kind.exit_code == 2
