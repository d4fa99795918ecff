"""The wheel in an environment of its own, without extras: light, and honest about what is missing."""

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
HEAVY_PACKAGES = ("torch", "diffusers", "transformers", "peft", "accelerate", "numpy")


class CoreInstall:
    """An environment that holds the wheel and its core dependencies only."""

    def __init__(self, directory: Path, *, cwd: Path) -> None:
        self.cwd = cwd
        self.bin = directory / "bin"
        # Nothing of the developer's environment may be found from inside.
        kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
        self.environment = {**kept, "PATH": f"{self.bin}{os.pathsep}{os.environ['PATH']}", "NO_COLOR": "1"}

    def __call__(self, *command: str) -> subprocess.CompletedProcess[str]:
        program = str(self.bin / command[0])
        return subprocess.run(
            [program, *command[1:]],
            cwd=self.cwd,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )


def run_or_fail(*command: str) -> None:
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, f"{' '.join(command)}\n{finished.stdout}\n{finished.stderr}"


@pytest.fixture
def core(tmp_path: Path) -> CoreInstall:
    run_or_fail(sys.executable, "-m", "build", "--wheel", "--outdir", str(tmp_path / "dist"), str(REPOSITORY))
    (wheel,) = (tmp_path / "dist").glob("foretune-*.whl")
    venv.create(tmp_path / "venv", with_pip=True)
    run_or_fail(str(tmp_path / "venv" / "bin" / "python"), "-m", "pip", "install", "--quiet", str(wheel))
    (tmp_path / "here").mkdir()
    return CoreInstall(tmp_path / "venv", cwd=tmp_path / "here")


def check_that_it_is_light(core: CoreInstall) -> None:
    code = "import importlib.util, sys; print([p for p in sys.argv[1:] if importlib.util.find_spec(p)])"
    found = core("python", "-c", code, *HEAVY_PACKAGES)
    assert found.stdout.strip() == "[]", found.stdout + found.stderr


def check_version(core: CoreInstall) -> None:
    code = "import foretune, importlib.metadata as m; print(m.version('foretune') == foretune.__version__)"
    assert core("python", "-c", code).stdout.strip() == "True"


def check_help(core: CoreInstall) -> None:
    answer = core("foretune", "--help")
    assert answer.returncode == 0, answer.stderr
    for verb in ("init", "train", "list", "schema"):
        assert verb in answer.stdout


def check_list_models(core: CoreInstall) -> None:
    answer = core("foretune", "list", "models", "--json")
    assert answer.returncode == 0, answer.stderr
    models = json.loads(answer.stdout)
    assert len(models) >= 36
    assert all({"name", "family", "num_params", "trainable", "source"} <= set(model) for model in models)


def check_schema(core: CoreInstall) -> None:
    answer = core("foretune", "schema")
    assert answer.returncode == 0, answer.stderr
    assert {"model", "method", "data", "train"} <= set(json.loads(answer.stdout)["properties"])


def check_init_and_the_refusal_of_train(core: CoreInstall) -> None:
    written = core("foretune", "init", "x.yaml")
    assert written.returncode == 0, written.stderr
    assert "model:" in (core.cwd / "x.yaml").read_text()

    refused = core("foretune", "train", "x.yaml")
    said = " ".join((refused.stdout + refused.stderr).split())
    assert refused.returncode == 2, said
    assert "pip install 'foretune[train]'" in said
    assert "Traceback" not in said


@pytest.mark.slow
def test_core_install(core: CoreInstall, subtests: pytest.Subtests) -> None:
    """One test with parts, so that xdist workers do not each make the environment."""
    for check in (
        check_that_it_is_light,
        check_version,
        check_help,
        check_list_models,
        check_schema,
        check_init_and_the_refusal_of_train,
    ):
        with subtests.test(check.__name__):
            check(core)
