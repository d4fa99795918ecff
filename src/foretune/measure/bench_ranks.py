"""One process of a repeat on several devices: `python -m foretune.measure.bench_ranks`."""

from typing import Any

from foretune.choices.running import Parallel
from foretune.config.reading import understand
from foretune.core.observer import Observer
from foretune.measure.bench_request import InferenceRequest, TrainingRequest
from foretune.measure.bench_worker import measure_steps
from foretune.training.rank_process import run_rank
from foretune.training.several import in_ranks


def _measure(request: dict[str, Any], observer: Observer) -> dict[str, Any]:
    if request.pop("kind") == "inference":
        from foretune.measure.inference import measure_inference

        inference = InferenceRequest(**request)
        parallel = Parallel.model_validate({"devices": inference.devices, "device": inference.device})
        with in_ranks(parallel) as ranks:
            return measure_inference(inference, observer, ranks)
    asked = understand(request["asked"], source="The bench's experiment")
    with in_ranks(asked.experiment.parallel) as ranks:
        measure_steps(TrainingRequest(**request), asked, observer, ranks)
    return {}


if __name__ == "__main__":
    run_rank(_measure)
