"""`foretune.plan`: values in, values out."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import foretune as ft
from foretune import catalog
from foretune.core.values.plan import Plan
from tests.api.process import changed, process_state

LORA = {"method.kind": "lora", "method.rank": 32}


class Heard(ft.Observer):
    """Remembers what was reported to it."""

    def __init__(self) -> None:
        self.messages: list[str] = []
        self.prepared: list[str] = []

    def message(self, text: str) -> None:
        self.messages.append(text)

    def preparing(self, what: str, done: int, total: int) -> None:
        self.prepared.append(what)


def test_plans_are_typed_values(capsys: pytest.CaptureFixture[str]) -> None:
    plans = ft.plan("flux.1-dev", LORA, on=["rtx-4090", "h100-sxm"])
    assert [plan.device for plan in plans] == ["rtx-4090", "h100-sxm"]
    assert all(isinstance(plan, Plan) for plan in plans)
    assert [plan.verdict for plan in plans] == ["does not fit", "fits"]
    assert plans[0].process_bytes > plans[0].usable_bytes
    assert len(plans) == 2
    assert plans[-1:] == (plans[1],)
    assert capsys.readouterr() == ("", ""), "the API prints nothing"


def test_changes_are_those_of_the_command_line() -> None:
    by_key = ft.plan("sd3-medium", {"method.kind": "lora", "train.batch_size": 4, "optimizer.lr": 1e-5}, on="l4")
    as_typed = ft.plan("sd3-medium", ["method.kind=lora", "train.batch_size=4", "optimizer.lr=1e-5"], on="l4")
    assert by_key.to_mappings() == as_typed.to_mappings()
    assert by_key[0].sizes["batch_size"] == 4


def test_an_experiment_may_be_a_mapping() -> None:
    experiment = {"model": "sd3-medium", "method": {"kind": "lora"}, "data": {"kind": "shapes"}, "train": {"steps": 10}}
    (plan,) = ft.plan(experiment, {"train.batch_size": 2}, on="l4")
    assert plan.model == "sd3-medium"
    assert plan.sizes["batch_size"] == 2
    with pytest.raises(ft.UserError, match="stepz"):
        ft.plan({**experiment, "train": {"stepz": 10}}, on="l4")


def test_mistakes_are_exceptions_with_the_same_sentences() -> None:
    with pytest.raises(ft.UserError, match="2 mistakes") as caught:
        ft.plan("sd3-medium", {"train.stepz": 1}, on="rtx-4091")
    assert "rtx-4091" in str(caught.value)
    assert "train.stepz" in str(caught.value)


def test_all_models_and_what_was_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    heard, rows = Heard(), catalog.denoisers()
    few = {name: rows[name] for name in ("ddpm-cifar10", "sd3-medium", "flux.1-dev")}
    monkeypatch.setattr(catalog, "denoisers", lambda: few)
    plans = ft.plan("all", {"levers.channels_last": True}, on="h100-sxm", advice="none", observer=heard)
    assert [asked.experiment.model for asked, _ in plans.groups] == ["ddpm-cifar10"]
    assert set(plans.refused) == {"sd3-medium", "flux.1-dev"}
    assert "channels_last" in str(plans.refused["flux.1-dev"])
    assert heard.prepared[-1] == "planned ddpm-cifar10"


def test_plans_show_themselves() -> None:
    plans = ft.plan("flux.1-dev", LORA, on=["rtx-4090", "h100-sxm"])
    assert "rtx-4090" in str(plans)
    assert "does not fit" in str(plans)
    assert repr(plans) == "<Plans: 2 of flux.1-dev>"
    shown = plans._repr_html_()
    assert shown.startswith("<div>")
    assert "<table" in shown
    assert "quantize.denoiser=int8" in shown
    assert plans.page().startswith("<!DOCTYPE html>")


def answer(model: str) -> list[dict[str, Any]]:
    return ft.plan(model, {"method.kind": "lora"}, on=["h100-sxm"]).to_mappings()


def test_plans_in_threads_are_those_of_one_after_another() -> None:
    models = ["flux.1-dev", "sd3-medium", "flux.1-dev"]
    one_by_one = [answer(model) for model in models]
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(answer, models)) == one_by_one


def test_the_process_is_as_it_was() -> None:
    before = process_state()
    ft.plan("sd3-medium", LORA, on="l4", ram="32GiB")
    assert changed(before, process_state()) == []
