"""The values that stages hand to each other. `Experiment` is one of them; it lives with the choices it is made of."""

from foretune.core.values.base import Value, WrongFormat
from foretune.core.values.comparison import Comparison, Interval
from foretune.core.values.device_profile import DeviceProfile
from foretune.core.values.evaluation import Evaluation, Score, ScoreDifference
from foretune.core.values.finding import Finding
from foretune.core.values.inference_plan import InferencePlan
from foretune.core.values.plan import Plan
from foretune.core.values.run_record import Outcome, RunRecord
from foretune.core.values.step_trace import StepTrace

__all__ = [
    "Comparison",
    "DeviceProfile",
    "Evaluation",
    "Finding",
    "InferencePlan",
    "Interval",
    "Outcome",
    "Plan",
    "RunRecord",
    "Score",
    "ScoreDifference",
    "StepTrace",
    "Value",
    "WrongFormat",
]
