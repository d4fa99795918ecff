"""One process of a repeat on several devices: `python -m foretune.measure.bench_ranks`."""

from typing import Any

from foretune.config.reading import understand
from foretune.core.observer import Observer
from foretune.measure.bench_request import TrainingRequest
from foretune.measure.bench_worker import measure_steps
from foretune.training.rank_process import run_rank
from foretune.training.several import in_ranks


def _measure(request: dict[str, Any], observer: Observer) -> dict[str, Any]:
    request.pop("kind")
    asked = understand(request["asked"], source="The bench's experiment")
    with in_ranks(asked.experiment.parallel) as ranks:
        measure_steps(TrainingRequest(**request), asked, observer, ranks)
    return {}


if __name__ == "__main__":
    run_rank(_measure)
