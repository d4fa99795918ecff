"""One process of a study's training on several devices: `python -m foretune.studies.study_ranks`."""

from typing import Any

from foretune.core.observer import Observer
from foretune.studies.study_part import PartRequest, train_part
from foretune.training.rank_process import refuse_failure, run_rank


def _train(request: dict[str, Any], observer: Observer) -> dict[str, Any]:
    refuse_failure(train_part(PartRequest(**request), observer).record.outcome)
    return {}


if __name__ == "__main__":
    run_rank(_train)
