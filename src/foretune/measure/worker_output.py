"""How the process of one repeat speaks with the one that started it: JSON lines, and nothing else between them."""

import json
import math
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from foretune.core.errors import UserError
from foretune.core.observer import Observer, StepReport

_STEPS_EVERY_S = 0.2


class Teller(Observer):
    """Progress as JSON lines."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._last_s = 0.0

    def tell(self, **fields: Any) -> None:
        self._file.write(json.dumps(fields) + "\n")
        self._file.flush()

    def message(self, text: str) -> None:
        self.tell(message=text)

    def warning(self, text: str) -> None:
        self.tell(warning=text)

    def preparing(self, what: str, done: int, total: int) -> None:
        self.progress(what, done, total)

    def stepped(self, report: StepReport) -> None:
        done = report.step + 1
        # Where time decides, so many more at this speed.
        more = math.ceil((report.left_s or 0.0) / max(report.step_s, 1e-9))
        self.progress("steps", done, report.num_steps or done + more)

    def progress(self, what: str, done: int, total: int) -> None:
        """Now and then: telling each step would be felt by the next one."""
        now_s = time.monotonic()
        if now_s - self._last_s >= _STEPS_EVERY_S or done == total:
            self._last_s = now_s
            self.tell(progress=[what, done, total])


@contextmanager
def own_output() -> Iterator[TextIO]:
    """The process's output for our lines alone; what libraries print goes to its errors."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    with os.fdopen(kept, "w", encoding="utf-8") as file:
        yield file


def answer_once(answer: Callable[[dict[str, Any], Teller], dict[str, Any]]) -> None:
    """Reads a request, answers it, and tells the answer as the last line."""
    from foretune.training.session import status_of

    question = json.loads(sys.stdin.read())
    with own_output() as file:
        teller = Teller(file)
        try:
            teller.tell(answer=answer(question, teller))
        except UserError as error:
            teller.tell(failed="refused", reason=str(error))
        except Exception as error:  # noqa: BLE001 - the process that asked gets it, whatever it is
            traceback.print_exc()
            teller.tell(failed=status_of(error), reason=f"{type(error).__name__}: {str(error).strip()[:500]}")
