"""`watch`: what runs now in a folder, from its files alone."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from foretune.core.errors import UserError
from foretune.core.observer import Observer

if TYPE_CHECKING:
    from foretune.analyse.watching.watcher import Watched, Watcher


@dataclass(frozen=True)
class WatchedFolder:
    """A folder of runs, a study or a sweep at a moment."""

    found: "Watched"

    @property
    def is_over(self) -> bool:
        """Whether nothing runs and nothing waits."""
        return self.found.is_over

    @cached_property
    def html(self) -> str:
        """The page: one file, no scripts, nothing from elsewhere."""
        from foretune.reports.watch_page import watch_page

        return watch_page(self.found, None)

    @property
    def line(self) -> str:
        """The same in one line."""
        from foretune.reports.terminal.watch import watch_line

        return watch_line(self.found)

    def __str__(self) -> str:
        from foretune.reports.terminal.watch import watch_lines

        return "\n".join(watch_lines(self.found))

    def _repr_html_(self) -> str:
        from foretune.reports.fragments import embedded

        return embedded(self.html, "Foretune watch")


def watch(
    folder: str | Path,
    *,
    every_s: float = 2.0,
    html: str | Path | None = None,
    price: float | None = None,
    observer: Observer | None = None,
) -> Iterator[WatchedFolder]:
    """Looks at a folder every few seconds until nothing in it runs or waits. `next(watch("runs"))` looks once.

    Only files are read: the processes that run notice nothing of it.

    Args:
        folder: a folder of runs, a study, or a sweep.
        every_s: seconds between two looks.
        html: a page that is written again at each look, and that a browser loads again by itself.
        price: US dollars for an hour of one device; without it, the catalogue's.
        observer: receives progress where many runs are read for the first time.
    """
    from foretune.analyse.watching.watcher import Watcher

    path = Path(folder)
    if not path.is_dir():
        what = "is a file, not a folder" if path.exists() else "does not exist"
        raise UserError(f"{path} {what}. Name a folder of runs, a study or a sweep: foretune watch runs")
    watcher = Watcher(path, price, observer=observer or Observer())
    return looks(watcher, every_s, None if html is None else Path(html), time.sleep)


def looks(
    watcher: "Watcher", every_s: float, html: Path | None, sleep: Callable[[float], None]
) -> Iterator[WatchedFolder]:
    """One look after another, until nothing runs or waits."""
    while True:
        state = WatchedFolder(watcher.look())
        if not state.found.num_all:
            raise UserError(
                f"There is no run in {watcher.folder}: no folder below it has an experiment.yaml. "
                "`foretune train` and `foretune sweep` print the paths of what they make."
            )
        if html is not None:
            _write_page(html, state, every_s)
        yield state
        if state.is_over:
            return
        sleep(every_s)


def _write_page(path: Path, state: WatchedFolder, every_s: float) -> None:
    """In one step, because a browser may read it at any moment."""
    from foretune.record.atomic import write_text
    from foretune.reports.watch_page import watch_page

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, watch_page(state.found, None if state.is_over else every_s))
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror or error}. Choose another place.") from error
