"""The table of what was tested on which hardware, on the README and on a page: each entry names the tests behind it.

To update it, change `TESTED` and run: python -m tests.docs.hardware_table
"""

from typing import Literal

from tests.architecture.source_tree import REPOSITORY

Hardware = Literal["CPU, Linux", "NVIDIA GPU", "AMD GPU", "Apple GPU", "Windows"]
HARDWARE: tuple[Hardware, ...] = ("CPU, Linux", "NVIDIA GPU", "AMD GPU", "Apple GPU", "Windows")

REAL = ("CPU, Linux",)
"""Hardware on which the tests run. On all other hardware a simulation runs them."""

TESTED: dict[str, dict[Hardware, tuple[str, ...]]] = {
    "plan: memory against measured peaks": {
        "CPU, Linux": ("tests/proofs/test_h14_memory.py",),
        "NVIDIA GPU": ("tests/simulated/test_g3_memory.py",),
    },
    "train, validate, save": {
        "CPU, Linux": ("tests/matrix/test_matrix.py", "tests/training/test_train.py"),
        "NVIDIA GPU": ("tests/simulated/test_training_run.py",),
        "Apple GPU": ("tests/simulated/test_apple.py",),
        "Windows": ("tests/training/test_on_windows.py",),
    },
    "resume": {
        "CPU, Linux": ("tests/proofs/test_r4_resume_grid.py",),
        "NVIDIA GPU": ("tests/proofs/test_r4_resume_grid.py",),
        "Windows": ("tests/training/test_on_windows.py",),
    },
    "quantised bases": {
        "CPU, Linux": ("tests/matrix/test_matrix.py", "tests/step/quantizing/test_layers.py"),
        "NVIDIA GPU": ("tests/step/quantizing/test_layers.py",),
        "Apple GPU": ("tests/simulated/test_apple.py",),
    },
    "memory levers": {
        "CPU, Linux": ("tests/matrix/test_matrix.py", "tests/step/levers/test_swapping.py"),
        "NVIDIA GPU": ("tests/step/levers/test_swapping.py", "tests/step/test_optimizers_on_gpu.py"),
        "Apple GPU": ("tests/simulated/test_apple.py",),
    },
    "several devices": {
        "CPU, Linux": ("tests/matrix/test_two_processes.py", "tests/training/test_launching.py"),
        "NVIDIA GPU": ("tests/simulated/test_several_devices.py",),
    },
    "evaluate, sample, export": {
        "CPU, Linux": ("tests/training/test_exporting.py", "tests/quality/test_evaluating.py"),
        "NVIDIA GPU": ("tests/simulated/test_workflow.py", "tests/training/test_workflow_on_gpu.py"),
    },
    "energy": {
        "CPU, Linux": ("tests/training/telemetry/test_sensors.py",),
        "NVIDIA GPU": ("tests/training/telemetry/test_sensors.py",),
        "AMD GPU": ("tests/training/telemetry/test_sensors.py",),
    },
}
"""By what was done and where: files of tests that do it there. Energy is simulated by stand-ins for the drivers."""

MARKERS: dict[Hardware, tuple[str, ...]] = {
    "NVIDIA GPU": ("mark.gpu", "mark.simulated", "Nvml"),
    "AMD GPU": ("mi300x", "amdsmi"),
    "Apple GPU": ("mark.simulated_mps",),
    "Windows": ("pretend_windows",),
}
"""One of these is in a file whose tests run on such hardware."""

BEGIN, END = "<!-- hardware -->", "<!-- end -->"
PAGES = (REPOSITORY / "README.md", REPOSITORY / "docs/hardware.md")


def table() -> str:
    """Returns the table between its marks."""
    lines = [BEGIN, f"| | {' | '.join(HARDWARE)} |", f"|---|{'---|' * len(HARDWARE)}"]
    for what, tests in TESTED.items():
        lines.append(f"| {what} | {' | '.join(_entry(tests, hardware) for hardware in HARDWARE)} |")
    return "\n".join((*lines, END))


def _entry(tests: dict[Hardware, tuple[str, ...]], hardware: Hardware) -> str:
    if not tests.get(hardware):
        return "untested"
    return "tested" if hardware in REAL else "simulated"


def table_on(text: str) -> str:
    """Returns the table of a page."""
    _, begin, rest = text.partition(BEGIN)
    assert begin, "the page has a table of hardware"
    return BEGIN + rest[: rest.index(END) + len(END)]


if __name__ == "__main__":
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        page.write_text(text.replace(table_on(text), table()), encoding="utf-8")
