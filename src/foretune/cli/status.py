"""One line on the other stream while a verb takes longer than a moment."""

from types import TracebackType
from typing import TYPE_CHECKING, Self

import typer

from foretune.cli.own_process import imports_done
from foretune.core.input_files import shown_lines
from foretune.core.observer import Observer

if TYPE_CHECKING:
    from rich.status import Status


class StatusObserver(Observer):
    """Shows what is being done, and notes above it."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._status: Status | None = None

    def __enter__(self) -> Self:
        from rich.console import Console

        self._status = Console(stderr=True, highlight=False).status(f"{self._title} ...")
        self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._status is not None, "it was entered"
        self._status.stop()

    def imported(self) -> None:
        imports_done()

    def preparing(self, what: str, done: int, total: int) -> None:
        assert self._status is not None, "it was entered"
        self._status.update(f"{self._title}: {what} ...")

    def message(self, text: str) -> None:
        typer.echo(shown_lines(text), err=True)

    def warning(self, text: str) -> None:
        typer.secho(f"Warning: {shown_lines(text)}", fg="yellow", err=True)
