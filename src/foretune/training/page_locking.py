"""Reports that the driver refused to page-lock host memory: the run goes on, more slowly."""

from collections.abc import Callable

from foretune.accelerator import page_locked


def text_of(reason: str) -> str:
    """Returns what follows from a refusal, and what to do."""
    return (
        f"The driver refused to page-lock host memory ({reason}). Copies between host and device now wait for each "
        "other: steps with offload or block swap are slower, with the same results. Containers, Windows and WSL limit "
        "such memory: raise the limit (docker run --ulimit memlock=-1), or lower levers.block_swap."
    )


class PageLockingNotice:
    """An instrument: warns once, after the first step in which it is known."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._is_done = False

    def before_step(self, step: int) -> None:
        """Nothing: memory is allocated in the step."""

    def after_step(self, step: int) -> None:
        reason = page_locked.refusal()
        if reason is not None and not self._is_done:
            self._is_done = True
            self._warn(text_of(reason))

    def close(self) -> None:
        """Nothing is held."""
