"""Orders of host threads that Python makes without a lock: a thread's start and its end."""

import threading
from typing import Any


def install(sim: Any) -> None:
    """Lets what threads know of finished work travel where the program orders them."""
    sim.begin_thread([])
    sim.follow_python_threads()
    start, bootstrap = threading.Thread.start, threading.Thread._bootstrap_inner  # type: ignore[attr-defined]
    join, is_alive = threading.Thread.join, threading.Thread.is_alive

    def start_with_knowledge(self: Any) -> None:
        self._simaccel_at_start = sim.knowledge_of_thread()
        start(self)

    def run_with_knowledge(self: Any) -> None:
        sim.begin_thread(self._simaccel_at_start)
        try:
            bootstrap(self)
        finally:
            self._simaccel_at_end = sim.knowledge_of_thread()

    def learn_from(thread: Any) -> None:
        sim.learn(getattr(thread, "_simaccel_at_end", []))

    def join_and_learn(self: Any, timeout: float | None = None) -> None:
        join(self, timeout)
        if not is_alive(self):
            learn_from(self)

    def is_alive_or_learn(self: Any) -> bool:
        alive = is_alive(self)
        if not alive:
            learn_from(self)
        return alive

    threading.Thread.start = start_with_knowledge  # type: ignore[method-assign]
    threading.Thread._bootstrap_inner = run_with_knowledge  # type: ignore[attr-defined]
    threading.Thread.join = join_and_learn  # type: ignore[method-assign]
    threading.Thread.is_alive = is_alive_or_learn  # type: ignore[method-assign]
