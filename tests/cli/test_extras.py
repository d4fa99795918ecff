"""What an installation lacks is named with the command that adds it."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from foretune.core import extras
from foretune.core.errors import MissingExtra
from foretune.core.extras import require
from tests.cli.conftest import Foretune

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
DISTRIBUTIONS = {"PIL": "pillow", "mlflow": "mlflow-skinny"}


def without(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def find(name: str) -> Any:
        return None if name == package else object()

    monkeypatch.setattr(extras, "find_spec", find)


@pytest.mark.parametrize("extra", extras.PACKAGES)
def test_what_is_looked_for_is_what_the_extra_installs(extra: str) -> None:
    listed = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]["optional-dependencies"][extra]
    names = {re.split(r"[<>=\[]", requirement)[0] for requirement in listed}
    assert {DISTRIBUTIONS.get(package, package) for package in extras.PACKAGES[extra]} <= names


@pytest.mark.parametrize(("extra", "package"), [(e, p) for e, packages in extras.PACKAGES.items() for p in packages])
def test_one_missing_package_is_enough(extra: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    without("", monkeypatch)
    require(extra, "This")
    without(package, monkeypatch)
    with pytest.raises(MissingExtra, match=rf"This needs .* Run: pip install 'foretune\[{extra}\]'"):
        require(extra, "This")


@pytest.mark.parametrize(
    "arguments",
    [
        ("train", "x.yaml"),
        ("resume", "r"),
        ("export", "r"),
        ("doctor",),
        ("tiny", "flux", "t"),
        ("sample", "--base", "flux.1-dev"),
    ],
    ids=" ".join,
)
def test_verbs_that_need_torch_say_so(
    foretune: Foretune, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    (tmp_path / "x.yaml").write_text("model: flux.1-dev\ndata: {kind: shapes}\ntrain: {steps: 1}\n")
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "experiment.yaml").write_text("requested: {}\n")
    without("torch", monkeypatch)
    answer = foretune(*arguments)
    assert answer.returncode == 2
    assert answer.stderr.endswith("needs packages that are not installed. Run: pip install 'foretune[train]'\n")


def test_all_that_a_study_lacks_is_in_one_command(foretune: Foretune, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda _: None)
    assert "Run: pip install 'foretune[train,plots]'" in foretune("study", "batch-size").stderr
    assert "Run: pip install 'foretune[train]'" in foretune("study", "batch-size", "--no-plot").stderr
    assert "(leave them out with --no-plot)" in foretune("study", ".").stderr
    assert "Run: pip install 'foretune[plots]'" in foretune("study", ".").stderr
