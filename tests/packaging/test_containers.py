"""The Dockerfile and the make targets around it. No image is built here: there is no Docker engine."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_CONTAINER_FILES = ("Makefile", ".env.example")
_INSTRUCTIONS = {
    *("ARG", "CMD", "COPY", "ENV", "FROM", "LABEL", "RUN", "USER", "WORKDIR"),
}  # fmt: skip
"""Those that the Dockerfile needs. ADD would fetch or unpack, EXPOSE would listen."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The Makefile and its settings, away from a developer's own .env."""
    for name in _CONTAINER_FILES:
        shutil.copy(_ROOT / name, tmp_path / name)
    return tmp_path


def dry_run(folder: Path, *arguments: str, code: int = 0) -> str:
    """What make would run, on one line for each command."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    finished = subprocess.run(
        ["make", "--dry-run", *arguments],
        cwd=folder,
        env={**environment, "HOME": "/home/user"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == code, finished.stderr
    return re.sub(r"\\\n\s*", "", finished.stdout) + finished.stderr


def test_the_image_is_built_then_started(folder: Path) -> None:
    build, launch = dry_run(folder, "build_and_launch_docker").splitlines()
    assert build == "docker build --build-arg ACCELERATOR=cuda --tag foretune ."
    assert launch == (
        "docker run --detach --rm --init --user $(id -u):$(id -g) --gpus all --shm-size 16g "
        '--volume "/home/user/.cache/huggingface:/workspace/huggingface" --name foretune foretune sleep infinity'
    )


def test_an_amd_container_gets_its_devices(folder: Path) -> None:
    launch = dry_run(folder, "launch_docker", "ACCELERATOR=rocm")
    assert "--device=/dev/kfd --device=/dev/dri" in launch
    assert "--gpus" not in launch


def test_an_unknown_accelerator_is_refused(folder: Path) -> None:
    assert "ACCELERATOR=tpu is not valid: use cuda or rocm" in dry_run(
        folder, "launch_docker", "ACCELERATOR=tpu", code=2
    )


def test_env_wins_over_the_example_and_the_command_line_over_both(folder: Path) -> None:
    (folder / ".env").write_text("VOLUME_MOUNT=/mine:/data\nCONTAINER_NAME=mine\nIMAGE_NAME=image\nACCELERATOR=cuda\n")
    launch = dry_run(folder, "launch_docker", "CONTAINER_NAME=typed")
    assert '--volume "/mine:/data" --name typed image' in launch
    assert dry_run(folder, "exec_docker") == "docker exec --interactive --tty mine bash\n"


def test_env_may_name_a_single_value(folder: Path) -> None:
    (folder / ".env").write_text("CONTAINER_NAME=mine\n")
    launch = dry_run(folder, "launch_docker")
    assert '--volume "/home/user/.cache/huggingface:/workspace/huggingface" --name mine foretune' in launch
    assert "--gpus all" in launch


def test_no_container_is_privileged_or_shares_the_network(folder: Path) -> None:
    for accelerator in ("cuda", "rocm"):
        launch = dry_run(folder, "launch_docker", f"ACCELERATOR={accelerator}")
        assert not re.search(r"--privileged|--network|--publish|--ipc|--user root| -p ", launch)


def test_assets_come_from_the_benchmark(folder: Path) -> None:
    assert dry_run(folder, "download_assets").strip() == "foretune fetch --benchmark"


def test_env_is_ignored_by_git_and_left_out_of_the_image() -> None:
    ignored = subprocess.run(["git", "check-ignore", "--quiet", "--no-index", ".env"], cwd=_ROOT, check=False)
    assert ignored.returncode == 0
    left_out = (_ROOT / ".dockerignore").read_text().splitlines()
    assert {".env", ".git", "runs"} <= set(left_out)


def instructions(text: str) -> list[tuple[str, str]]:
    """A Dockerfile's instructions with their arguments."""
    lines = re.sub(r"\\\n", "", "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#")))
    pairs = [line.strip().partition(" ") for line in lines.splitlines() if line.strip()]
    return [(name, " ".join(rest.split())) for name, _, rest in pairs]


def problems(text: str) -> list[str]:
    """What a reviewer of a Dockerfile would stop at."""
    found = []
    read = instructions(text)
    stages: set[str] = set()
    arguments = {rest.partition("=")[0] for name, rest in read if name == "ARG"}
    for name, rest in read:
        if name not in _INSTRUCTIONS:
            found.append(f"{name} is not used here")
        if name == "FROM":
            image, _, stage = rest.partition(" AS ")
            stages.add(stage)
            variable = re.fullmatch(r"\$\{(\w+)\}", image)
            if variable is None and ":" not in image:
                found.append(f"{image} has no tag")
        found += [f"{used} has no ARG" for used in re.findall(r"\$\{(\w+)\}", rest) if used not in arguments]
        if name == "COPY":
            *sources, _ = rest.split()
            found += [f"{source} does not exist" for source in sources if not (_ROOT / source).exists()]
        if "apt-get install" in rest and not ("--no-install-recommends" in rest and "rm -rf /var/lib/apt" in rest):
            found.append("apt-get leaves its lists, or takes recommended packages")
        if "pip install" in rest and "--no-cache-dir" not in rest:
            found.append("pip leaves its cache")
        if re.search(r"curl|wget|\| *(ba)?sh", rest):
            found.append("a script from the network is run")
    users = [rest for name, rest in read if name == "USER"]
    if not users or users[-1] in ("root", "0"):
        found.append("it runs as root")
    return found if {"cuda", "rocm"} <= stages else [*found, "a stage for cuda or rocm is missing"]


def test_the_dockerfile_has_no_known_mistake() -> None:
    assert problems((_ROOT / "Dockerfile").read_text()) == []


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("FROM debian AS other", "debian has no tag"),
        ("ADD archive.tar /", "ADD is not used here"),
        ("COPY absent.txt /", "absent.txt does not exist"),
        ("RUN apt-get install --yes curl", "apt-get leaves its lists, or takes recommended packages"),
        ("RUN pip install torch", "pip leaves its cache"),
        ("RUN curl -s x | sh", "a script from the network is run"),
        ("RUN echo ${UNKNOWN}", "UNKNOWN has no ARG"),
        ("USER root", "it runs as root"),
    ],
)
def test_a_mistake_in_the_dockerfile_is_seen(line: str, problem: str) -> None:
    assert problem in problems((_ROOT / "Dockerfile").read_text() + line + "\n")


def targets() -> list[str]:
    """Every target that `make` lists."""
    return re.findall(r"^([a-z_]+):.*## ", (_ROOT / "Makefile").read_text(), re.MULTILINE)


@pytest.fixture
def environment(folder: Path) -> Path:
    """An environment whose Python prints what it was started with."""
    python = folder / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\necho "skip=$SKIP_GPU_TESTS" "$@"\n')
    python.chmod(0o755)
    return folder


@pytest.mark.parametrize("target", targets())
def test_every_target_has_commands(environment: Path, target: str) -> None:
    commands = dry_run(environment, target)
    assert commands
    assert "make setup" not in commands


def test_gpu_tests_are_left_out_by_a_variable_before_or_after_make(environment: Path) -> None:
    unset = {name: value for name, value in os.environ.items() if name != "SKIP_GPU_TESTS" and "MAKE" not in name}
    for arguments, variables, skip in (
        ((), {"SKIP_GPU_TESTS": "1"}, "skip=1"),
        (("SKIP_GPU_TESTS=1",), {}, "skip=1"),
        ((), {}, "skip="),
    ):
        command = ["make", "--silent", "run_tests", *arguments]
        tested = subprocess.run(
            command, cwd=environment, env={**unset, **variables}, capture_output=True, text=True, check=True
        )
        assert tested.stdout.startswith(f"{skip} -m pytest"), tested.stdout
