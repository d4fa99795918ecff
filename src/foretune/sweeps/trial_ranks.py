"""One process of a trial's training on several devices: `python -m foretune.sweeps.trial_ranks`."""

from typing import Any

from foretune.core.observer import Observer
from foretune.sweeps.trial_request import TrialRequest
from foretune.sweeps.trial_worker import train_trial
from foretune.training.rank_process import refuse_failure, run_rank


def _train(request: dict[str, Any], observer: Observer) -> dict[str, Any]:
    refuse_failure(train_trial(TrialRequest(**request), observer).record.outcome)
    return {}


if __name__ == "__main__":
    run_rank(_train)
