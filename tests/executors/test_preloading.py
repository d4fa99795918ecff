"""What stands against copying a process."""

import os
import threading
from pathlib import Path

import pytest

from foretune.executors.preloading import preload, why_not_copied


@pytest.mark.parametrize(
    ("opened", "words"),
    [
        ((), None),
        (("/dev/null", "socket:[123]", "/dev/nvidiactl", "/dev/nvidia0"), None),
        (("/dev/nvidiactl", "/dev/nvidia-uvm"), "imports initialised CUDA"),
        (("/dev/kfd",), "imports initialised ROCm"),
    ],
)
def test_a_driver_does_not_survive_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: tuple[str, ...], words: str | None
) -> None:
    # Other tests of this process may have left threads, which are a reason, too.
    monkeypatch.setattr(threading, "enumerate", lambda: [threading.main_thread()])
    for number, target in enumerate(opened):
        (tmp_path / str(number)).symlink_to(target)
    why = why_not_copied(tmp_path)
    assert why is None if words is None else words in (why or "")


def test_torch_counts_devices_without_the_driver_while_it_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "PYTORCH_NVML_BASED_CUDA_CHECK"
    monkeypatch.delenv(name, raising=False)
    (tmp_path / "reads_variable.py").write_text(f"import os\nVALUE = os.environ['{name}']\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert preload(["reads_variable"]) == []
    import reads_variable  # type: ignore[import-not-found]

    assert reads_variable.VALUE == "1"
    assert name not in os.environ, "it is the task's to set"
