"""`foretune list`: what there is, as a table for people and as JSON for programs."""

import json
import subprocess

import pytest

from foretune.catalog import TRAINABLE
from foretune.choices.method import METHODS
from tests.cli.conftest import PROGRAM, Foretune, environment


def test_models_as_json(foretune: Foretune) -> None:
    models = json.loads(foretune("list", "models", "--json").stdout)
    assert len(models) >= 36
    for model in models:
        assert isinstance(model["name"], str)
        assert isinstance(model["family"], str)
        assert model["num_params"] > 1_000_000
        facts = TRAINABLE.get(model["family"])
        assert model["trainable"] == (facts is not None and model["name"] not in facts.untrainable_models)
        assert model["source"]["num_params"]
        assert model["source"]["config"]
    assert len({model["name"] for model in models}) == len(models)
    trainable = {model["name"] for model in models if model["trainable"]}
    assert {"flux.1-dev", "flux.1-schnell", "sd3.5-medium", "ddpm-cifar10"} <= trainable


def test_devices_as_json(foretune: Foretune) -> None:
    devices = json.loads(foretune("list", "devices", "--json").stdout)
    assert len(devices) == 51
    assert all(device["spec_source"] for device in devices)
    assert {"rtx-4090", "h100-sxm"} <= {device["name"] for device in devices}


def test_methods_as_json(foretune: Foretune) -> None:
    methods = {method["name"]: method for method in json.loads(foretune("list", "methods", "--json").stdout)}
    assert set(methods) == set(METHODS)
    adapter = {"targets", "dropout", "start_from", "training_adapter"}
    for kind in ("lora", "dora", "rslora", "loha"):
        assert set(methods[kind]["settings"]) == {"rank", "alpha", *adapter}
    assert set(methods["lokr"]["settings"]) == {"rank", "alpha", "factor", "full_matrix", *adapter}
    assert set(methods["oft"]["settings"]) == {"block_size", *adapter}
    assert all(all(method["settings"].values()) for method in methods.values()), "each says what it is"
    assert len({method["what"] for method in methods.values()}) == len(METHODS)
    assert methods["full"]["families"] == list(TRAINABLE)


@pytest.mark.parametrize(
    ("what", "heading"),
    [
        ("models", ["model", "family", "parameters", "can be trained"]),
        ("devices", ["device", "full name", "memory GB", "bandwidth GB/s", "bf16 TFLOPS", "USD/h"]),
        ("methods", ["method", "what it is", "settings"]),
    ],
)
def test_tables_name_their_units_and_have_a_line_a_row(foretune: Foretune, what: str, heading: list[str]) -> None:
    answer = foretune("list", what)
    assert answer.returncode == 0
    first, *lines = answer.stdout.splitlines()
    assert " ".join(first.split()) == " ".join(heading)
    num_rows = len(json.loads(foretune("list", what, "--json").stdout))
    assert all(len(line) <= len(first) for line in lines[:num_rows])
    assert "foretune" in lines[-1]
    assert max(map(len, lines)) < 160, "it can be read on a screen"


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("what", ["models", "devices", "methods"])
def test_tables_fit_the_width_that_columns_gives(
    foretune: Foretune, monkeypatch: pytest.MonkeyPatch, what: str, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = foretune("list", what).stdout.splitlines()
    assert max(len(line.rstrip()) for line in lines) <= columns
    names = [row["name"] for row in json.loads(foretune("list", what, "--json").stdout)]
    assert [name for name in names if name not in {line.split(" ")[0] for line in lines}] == [], "names stay whole"


def test_figures_carry_their_size(foretune: Foretune) -> None:
    rows = {line.split()[0]: " ".join(line.split()) for line in foretune("list", "models").stdout.splitlines()}
    assert rows["flux.1-dev"] == "flux.1-dev flux 11.9 B yes"
    assert rows["ddpm-cifar10"] == "ddpm-cifar10 ddpm 35.7 M yes"
    assert rows["flux.2-dev"].endswith("B not yet")


def test_what_is_unknown_is_not_a_number(foretune: Foretune) -> None:
    rows = {line.split()[0]: line.split() for line in foretune("list", "devices").stdout.splitlines()}
    assert rows["rtx-3060"][-1] == "–"


@pytest.mark.parametrize("arguments", ["models", "models --json"])
def test_a_reader_that_stops_early_is_no_error_of_ours(arguments: str) -> None:
    command = [*PROGRAM, "list", *arguments.split()]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as program:
        assert program.stdout is not None
        assert program.stderr is not None
        program.stdout.close()
        assert program.stderr.read() == b""
