"""What a program did on the simulated device, written when it ends: SIMACCEL_REPORT=file.json."""

import atexit
import collections
import json
import os
from pathlib import Path
from typing import Any

_MOST_FRAMES = 5
_MOST_KERNELS = 60


def install(sim: Any) -> None:
    """Registers the report if SIMACCEL_REPORT names a file; %p in it becomes the number of the process."""
    path = os.environ.get("SIMACCEL_REPORT")
    if path:
        atexit.register(_write, sim, Path(path.replace("%p", str(os.getpid()))))


def _write(sim: Any, path: Path) -> None:
    if not sim.num_kernels():
        return
    kernels = sorted(sim.kernel_counts().items(), key=lambda item: -item[1])
    report = {
        "findings": sim.findings(),
        "syncs": _waits(sim),
        "num_syncs": sim.num_syncs(),
        "num_kernels": sim.num_kernels(),
        "kernels": dict(kernels[:_MOST_KERNELS]),
        "memory": [sim.memory_stats(device) for device in range(sim.device_count())],
        "page_locked_memory": sim.page_locked_stats(),
        "recorded_peak": [
            {"bytes": num_bytes, "stack": stack.splitlines()} for num_bytes, stack in sim.recorded_peak()
        ],
    }
    path.write_text(json.dumps(report, indent=1), encoding="utf-8")


def _waits(sim: Any) -> list[dict[str, Any]]:
    """Waits of the host: the reason, frames of the program itself (SIMACCEL_OWN names its package) and the count."""
    package = os.environ.get("SIMACCEL_OWN", "foretune")
    counts: collections.Counter[tuple[str, str, str]] = collections.Counter()
    for reason, stack in sim.syncs():
        frames = [line.strip() for line in stack.splitlines() if line.strip()] or ["?"]
        own = [frame.split("/src/")[-1] for frame in frames if f"/{package}/" in frame][:_MOST_FRAMES] or frames[:1]
        counts[reason, " < ".join(own), frames[0].split("site-packages/")[-1]] += 1
    return [
        {"why": reason, "own": own, "at": innermost, "count": count}
        for (reason, own, innermost), count in counts.most_common()
    ]
