"""One process of a training on several devices of this machine: `python -m foretune.api.rank_worker`."""

from pathlib import Path
from typing import Any

from foretune.api.train import forecast_of
from foretune.config.reading import understand
from foretune.core.importing import collector_paused, imported_at_use
from foretune.core.observer import Observer
from foretune.record.run_directory import RunDirectory
from foretune.training.rank_process import refuse_failure, run_rank
from foretune.training.ranks import found_ranks


def main() -> None:
    run_rank(_run)


def _run(request: dict[str, Any], observer: Observer) -> dict[str, Any]:
    with collector_paused(), imported_at_use("bitsandbytes"):
        from foretune.training.restarts import num_restarts
        from foretune.training.several import resume_in_ranks, train_in_ranks
    if "run" in request:
        trained = resume_in_ranks(RunDirectory.open(Path(request["run"])), observer, request["overrides"])
    else:
        asked = understand(request["mapping"], source=None, name=request["name"])
        ranks = found_ranks()
        # Started again, it continues a run that has its plan.
        is_planned = ranks is not None and ranks.is_first and not num_restarts()
        plan = forecast_of(asked, observer) if is_planned else None
        trained = train_in_ranks(asked, Path(request["runs"]), observer, plan)
    refuse_failure(trained.record.outcome)
    return {
        "num_changed_tensors": trained.num_changed_tensors,
        "num_trained_tensors": trained.num_trained_tensors,
        "base_unchanged": trained.base_unchanged,
    }


if __name__ == "__main__":
    main()
