"""The torch that tests run with is the one that users are told to install."""

import re
import tomllib

from tests.architecture.source_tree import REPOSITORY

_PINNED_IN = {
    ".ci/setup": r"torch=\$\{TORCH:-torch==([\d.]+)\}",
    "Dockerfile": r"ARG TORCH=torch==([\d.]+)",
    "Makefile": r"TORCH \?= torch==([\d.]+)",
    "docs/gpu-proofs.md": r"make setup TORCH=torch==([\d.]+)",
    "docs/start.md": r"pip install torch==([\d.]+)",
}


def test_every_pin_of_torch_is_the_same() -> None:
    pins = {path: re.findall(line, (REPOSITORY / path).read_text("utf-8")) for path, line in _PINNED_IN.items()}
    assert all(len(versions) == 1 for versions in pins.values()), pins
    assert len({versions[0] for versions in pins.values()}) == 1, pins
    version = pins["Dockerfile"][0]
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    (required,) = (r for r in project["project"]["optional-dependencies"]["train"] if re.match(r"torch\b", r))
    assert required == f"torch>={'.'.join(version.split('.')[:2])}"
