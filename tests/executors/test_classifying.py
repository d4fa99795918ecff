"""What exceptions and ends of processes mean."""

import signal
from pathlib import Path

import pytest

from foretune.core.errors import UserError
from foretune.executors.classifying import of_exception, of_exit
from foretune.executors.memory_evidence import MemoryKills
from foretune.executors.outcome import TaskFailed

_NO_THREAD = "libgomp: Thread creation failed: Resource temporarily unavailable"


def test_torch_errors_by_their_real_classes() -> None:
    import torch

    assert of_exception(torch.OutOfMemoryError("CUDA out of memory"))[0] == "out of device memory"
    assert of_exception(torch.cuda.OutOfMemoryError("HIP out of memory"))[0] == "out of device memory"
    with pytest.raises(RuntimeError) as raised:
        torch.empty(2**60, dtype=torch.uint8)
    assert of_exception(raised.value)[0] == "out of host memory"
    with pytest.raises(RuntimeError) as raised:
        torch.ones(2) @ torch.ones(3)
    assert of_exception(raised.value)[0] == "crashed"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RuntimeError("CUDA error: out of memory"), "out of device memory"),
        (RuntimeError("MPS backend out of memory (MPS allocated: 1 GB)"), "out of device memory"),
        (RuntimeError("cuBLAS error: CUBLAS_STATUS_ALLOC_FAILED"), "out of device memory"),
        (MemoryError(), "out of host memory"),
        (OSError(12, "Cannot allocate memory"), "out of host memory"),
        (RuntimeError("can't start new thread"), "out of host memory"),
        (TaskFailed("out of device memory", "the batch"), "out of device memory"),
        (UserError("wrong"), "refused"),
        (ModuleNotFoundError("No module named 'x'"), "crashed"),
        (KeyboardInterrupt(), "crashed"),
        (ValueError("memory"), "crashed"),
    ],
)
def test_exceptions(error: BaseException, kind: str) -> None:
    assert of_exception(error)[0] == kind


@pytest.mark.parametrize(
    ("code", "log", "memory", "kind", "words"),
    [
        (0, (), None, "crashed", "code 0 and left no answer"),
        (3, (), None, "crashed", "code 3"),
        (
            1,
            ("libgomp: Thread creation failed: Resource temporarily unavailable",),
            None,
            "out of host memory",
            "code 1",
        ),
        (-signal.SIGSEGV, (), None, "crashed", "segmentation fault"),
        (-signal.SIGBUS, (), None, "crashed", "shared memory"),
        (-signal.SIGABRT, (), None, "crashed", "SIGABRT"),
        (-signal.SIGABRT, ("what():  std::bad_alloc",), None, "out of host memory", "found no memory"),
        (-signal.SIGKILL, (), None, "killed", "another process sent it"),
        (-signal.SIGKILL, (), "memory ran out", "out of host memory", "memory ran out"),
        (-signal.SIGTERM, (), None, "killed", "SIGTERM"),
        (-signal.SIGTERM, (), "memory ran out", "killed", "SIGTERM"),
        (-60, (), None, "killed", "signal 60"),
    ],
)
def test_ends_of_processes(code: int, log: tuple[str, ...], memory: str | None, kind: str, words: str) -> None:
    found, reason = of_exit(code, log, memory)
    assert found == kind
    assert words in reason


def machine(root: Path, *, version: int, group: int | None, whole: int) -> MemoryKills:
    """What the kernel's files say."""
    (root / "proc/self").mkdir(parents=True, exist_ok=True)
    (root / "proc/vmstat").write_text(f"nr_free_pages 7\noom_kill {whole}\n")
    line, path = ("0::/a", "a/memory.events") if version == 2 else ("4:memory:/a", "memory/a/memory.oom_control")
    (root / "proc/self/cgroup").write_text(f"1:cpu:/\n{line}\n")
    if group is not None:
        file = root / "sys/fs/cgroup" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"low 0\noom_kill {group}\n")
    return MemoryKills.now(root)


@pytest.mark.parametrize("version", [1, 2])
def test_who_ended_a_process_is_said_with_what_is_certain(tmp_path: Path, version: int) -> None:
    before = machine(tmp_path, version=version, group=1, whole=5)
    assert machine(tmp_path, version=version, group=1, whole=5).since(before) is None
    in_group = machine(tmp_path, version=version, group=2, whole=6).since(before)
    assert in_group is not None
    assert in_group.startswith("memory ran out")
    elsewhere = machine(tmp_path, version=version, group=1, whole=6).since(before)
    assert elsewhere is not None
    assert elsewhere.startswith("memory probably ran out")


def test_a_machine_that_does_not_say_is_no_evidence(tmp_path: Path) -> None:
    assert MemoryKills.now(tmp_path) == MemoryKills(None, None)
    assert MemoryKills(None, None).since(MemoryKills(None, None)) is None
    assert MemoryKills(None, 3).since(MemoryKills(None, None)) is None
