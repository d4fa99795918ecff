"""Encodes a set on a cluster: `python -m tests.executors.encode_program EXECUTOR EXPERIMENT.yaml OUTPUT`.

Prints what came of its parts, as JSON. On SLURM it runs inside of the cluster; a Ray cluster is started by it.
"""

import json
import sys
from dataclasses import asdict
from typing import Any

import foretune
from foretune.core.observer import Observer

OPTIONS: dict[str, dict[str, Any]] = {
    "slurm": {"time": "10", "poll_s": 1, "grace_s": 3},
    "ray": {"grace_s": 1.0},
    "local": {},
}


def main() -> None:
    executor, experiment, output, *changes = sys.argv[1:]
    parts: dict[str, Any] = {}

    def watch(result: Any, _progress: Any) -> None:
        if result is not None:
            parts[result.name] = {"kind": result.outcome.kind, "host": result.outcome.host, **asdict(result.outcome)}

    encoded = foretune.encode_data(
        experiment,
        output,
        changes,
        workers=2,
        executor=executor,
        options=OPTIONS[executor],
        part_size=8,
        observer=Observer(),
        watcher=watch,
    )
    print(json.dumps({"num_samples": encoded.num_samples, "num_shards": encoded.num_shards, "parts": parts}))


if __name__ == "__main__":
    main()
