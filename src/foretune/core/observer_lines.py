"""What an observer hears, as lines of JSON: a run in another process is watched as if it ran in this one."""

import json
from pathlib import Path
from typing import Any, TextIO

from foretune.core.observer import Observer, StepReport
from foretune.core.values import Plan


class LineObserver(Observer):
    """Writes what it hears, one line each."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def tell(self, kind: str, **fields: Any) -> None:
        """Writes a line of any kind, at once."""
        self._file.write(json.dumps({"kind": kind, **fields}) + "\n")
        self._file.flush()

    def planned(self, plan: Plan) -> None:
        self.tell("planned", plan=plan.to_json())

    def began(self, run: Path) -> None:
        self.tell("began", run=str(run))

    def message(self, text: str) -> None:
        self.tell("message", text=text)

    def warning(self, text: str) -> None:
        self.tell("warning", text=text)

    def preparing(self, what: str, done: int, total: int) -> None:
        self.tell("preparing", what=what, done=done, total=total)

    def stepped(self, report: StepReport) -> None:
        self.tell("stepped", **vars(report))

    def validated(self, step: int, held_out_loss: float | None, samples: tuple[Path, ...]) -> None:
        self.tell("validated", step=step, held_out_loss=held_out_loss, samples=[str(path) for path in samples])

    def saved(self, step: int, path: Path) -> None:
        self.tell("saved", step=step, path=str(path))

    def ended(self) -> None:
        self.tell("ended")


def notify_observer(line: str, observer: Observer) -> tuple[str, dict[str, Any]]:
    """Lets an observer hear a line; returns its kind and fields, for kinds that observers do not know."""
    fields = json.loads(line)
    kind = fields.pop("kind")
    if kind in ("message", "warning", "preparing", "ended"):
        getattr(observer, kind)(**fields)
    elif kind == "planned":
        observer.planned(Plan.from_json(fields["plan"]))
    elif kind == "began":
        observer.began(Path(fields["run"]))
    elif kind == "stepped":
        observer.stepped(StepReport(**fields))
    elif kind == "validated":
        samples = tuple(Path(path) for path in fields["samples"])
        observer.validated(fields["step"], fields["held_out_loss"], samples)
    elif kind == "saved":
        observer.saved(fields["step"], Path(fields["path"]))
    return kind, fields
