"""The exam: published measurements as questions that a forecast can answer, and reasons where one cannot."""

from foretune.planner.exam.baseline import baseline_bytes
from foretune.planner.exam.dialects import DIALECTS, Dialect, dialect_of
from foretune.planner.exam.questions import LeftOut, Peak, Published, Question, Sizes
from foretune.planner.exam.reading import read_rows
from foretune.planner.exam.rows import is_exact, question

__all__ = [
    "DIALECTS",
    "Dialect",
    "LeftOut",
    "Peak",
    "Published",
    "Question",
    "Sizes",
    "baseline_bytes",
    "dialect_of",
    "is_exact",
    "question",
    "read_rows",
]
