"""The exam: published measurements as questions that a forecast can answer, and reasons where one cannot."""

from foretune.planner.exam.baseline import baseline_bytes
from foretune.planner.exam.dialects import DIALECTS, Dialect, dialect_of
from foretune.planner.exam.questions import ExamQuestion, LeftOut, Peak, Published, RowSizes
from foretune.planner.exam.reading import read_rows
from foretune.planner.exam.rows import is_exact, question

__all__ = [
    "DIALECTS",
    "Dialect",
    "ExamQuestion",
    "LeftOut",
    "Peak",
    "Published",
    "RowSizes",
    "baseline_bytes",
    "dialect_of",
    "is_exact",
    "question",
    "read_rows",
]
