"""A controller that tests kill: `python -m tests.executors.controller_program FOLDER NUM_TASKS`."""

import sys
from pathlib import Path

from foretune.executors.executor import open_executor
from tests.executors.cluster_tasks import toy_task
from tests.waiting import HANG_S

SECONDS = 0.02


def main() -> None:
    folder, num = Path(sys.argv[1]), int(sys.argv[2])
    executor = open_executor("local", {"jobs": 2, "preload": ["tests.executors.toy_worker"], "grace_s": 5.0})
    left = set()
    for number in range(num):
        name = f"task-{number}"
        tasks = str(folder / "tasks")
        executor.submit(toy_task(folder, "square_alone", name, number=number, seconds=SECONDS, tasks=tasks))
        left.add(name)
    while left:
        left -= set(executor.ended(HANG_S))
    executor.close()


if __name__ == "__main__":
    main()
