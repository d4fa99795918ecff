"""`key=value`, as one types it."""

import copy
from typing import Any

import pytest

from foretune.config.overrides import apply_overrides, parse_overrides
from foretune.core.errors import ExperimentErrors, Mistakes, UserError

FILE: dict[str, Any] = {
    "model": "flux.1-dev",
    "method": {"kind": "lora", "rank": 16},
    "data": {"kind": "folder", "folders": [{"path": "a", "repeats": 2}, {"path": "b"}]},
    "train": {"steps": 10, "ema": {"decay": 0.9}},
}


@pytest.mark.parametrize(
    ("argument", "path", "value"),
    [
        ("train.steps=10", ("train", "steps"), 10),
        ("optimizer.lr=1e-4", ("optimizer", "lr"), 1e-4),
        ("optimizer.lr=1.5e-4", ("optimizer", "lr"), 1.5e-4),
        ("train.max_grad_norm=null", ("train", "max_grad_norm"), None),
        ("train.max_grad_norm=", ("train", "max_grad_norm"), None),
        ("levers.cache_text=false", ("levers", "cache_text"), False),
        ("train.loss_scaling=off", ("train", "loss_scaling"), "off"),
        ("track=[tensorboard]", ("track",), ["tensorboard"]),
        ("track=[]", ("track",), []),
        ("validate.prompts=[a red circle, b]", ("validate", "prompts"), ["a red circle", "b"]),
        ("method={kind: full}", ("method",), {"kind": "full"}),
        ("data.trigger=a=b", ("data", "trigger"), "a=b"),
        ("data.path=/some where/x", ("data", "path"), "/some where/x"),
        ("name='7'", ("name",), "7"),
        (" train.steps = 5 ", ("train", "steps"), 5),
    ],
)
def test_parsing(argument: str, path: tuple[str, ...], value: Any) -> None:
    mistakes = Mistakes()
    ((found_path, found_value),) = parse_overrides([argument], mistakes)
    assert not mistakes
    assert (found_path, found_value) == (path, value)
    assert type(found_value) is type(value)


@pytest.mark.parametrize("argument", ["train.steps", "=5", "train.=5", ".steps=5", "train..steps=5", ""])
def test_what_is_no_override(argument: str) -> None:
    with pytest.raises(UserError, match=r"is not an override\. Write key=value, for example train\.steps=100"):
        apply_overrides(FILE, [argument])


def test_a_value_that_cannot_be_read() -> None:
    with pytest.raises(UserError) as caught:
        apply_overrides(FILE, ["data.trigger=[a"])
    said = str(caught.value)
    assert said.startswith("The value in 'data.trigger=[a' cannot be read: line 1, column 3: expected ',' or ']'")
    assert said.endswith("""Text with special characters goes in quotes: data.trigger='"..."'""")


@pytest.mark.parametrize(
    ("arguments", "path", "value"),
    [
        (["train.steps=20"], ["train"], {"steps": 20, "ema": {"decay": 0.9}}),
        (["train.ema.decay=0.5"], ["train", "ema"], {"decay": 0.5}),
        (["train.ema=null"], ["train", "ema"], None),
        (["optimizer.lr=1e-3"], ["optimizer"], {"lr": 1e-3}),
        (["model=sd3.5-medium"], ["model"], "sd3.5-medium"),
        (["train.steps=1", "train.steps=2"], ["train", "steps"], 2),
        (["method.rank=4"], ["method"], {"kind": "lora", "rank": 4}),
        (["method.kind=lora"], ["method"], {"kind": "lora", "rank": 16}),
        (["method.kind=full"], ["method"], {"kind": "full"}),
        (["method.rank=4", "method.kind=dora"], ["method"], {"kind": "dora", "rank": 4}),
        (["data.kind=shapes"], ["data"], {"kind": "shapes"}),
        (["data.kind=shapes", "data.num_samples=8"], ["data"], {"kind": "shapes", "num_samples": 8}),
        (["data.folders.1.repeats=3"], ["data", "folders"], [{"path": "a", "repeats": 2}, {"path": "b", "repeats": 3}]),
        (["data.folders.0={path: c}"], ["data", "folders"], [{"path": "c"}, {"path": "b"}]),
        (["data.folders=[{path: c}]"], ["data", "folders"], [{"path": "c"}]),
        (["model.name=x"], ["model"], {"name": "x"}),
        ([], ["method"], {"kind": "lora", "rank": 16}),
    ],
)
def test_applying(arguments: list[str], path: list[str], value: Any) -> None:
    before = copy.deepcopy(FILE)
    result: Any = apply_overrides(FILE, arguments)
    for key in path:
        result = result[key]
    assert result == value
    assert before == FILE, "the file's own content stays as it was"


def test_the_rest_stays() -> None:
    assert apply_overrides(FILE, ["train.steps=20"]) == {**FILE, "train": {"steps": 20, "ema": {"decay": 0.9}}}


@pytest.mark.parametrize("argument", ["data.folders.2.repeats=3", "data.folders.first.path=x", "data.folders.-1=x"])
def test_an_entry_that_is_not_there(argument: str) -> None:
    with pytest.raises(UserError, match=r"is not there: data\.folders is a list of 2, counted from 0\."):
        apply_overrides(FILE, [argument])


def test_all_overrides_that_are_wrong_are_reported_at_once() -> None:
    with pytest.raises(ExperimentErrors) as caught:
        apply_overrides(FILE, ["train.steps", "train.seed=1", "data.trigger=[a", "data.folders.7.path=x"])
    assert [problem.partition(" ")[0] for problem in caught.value.problems] == [
        "'train.steps'",
        "The",
        "data.folders.7",
    ]
