"""The values that stages hand to each other. `Experiment` is the sixth; it lives with the choices it is made of."""

from foretune.core.values.base import Value, WrongFormat
from foretune.core.values.comparison import Comparison, Interval
from foretune.core.values.finding import Finding
from foretune.core.values.plan import Plan
from foretune.core.values.run_record import Outcome, RunRecord
from foretune.core.values.step_trace import StepTrace

__all__ = [
    "Comparison",
    "Finding",
    "Interval",
    "Outcome",
    "Plan",
    "RunRecord",
    "StepTrace",
    "Value",
    "WrongFormat",
]
