"""What the process of a measurement tells the one that started it."""

import io
import json

from foretune.core.observer import StepReport
from foretune.measure.worker_output import Teller


def test_a_run_that_ends_by_time_says_how_many_steps_are_likely() -> None:
    file = io.StringIO()
    report = StepReport(
        step=79, num_steps=None, loss=1.0, grad_norm=None, lr=1e-4, step_s=0.5, samples_per_step=4, left_s=10.0
    )
    Teller(file).stepped(report)
    assert json.loads(file.getvalue()) == {"progress": ["steps", 80, 100]}
