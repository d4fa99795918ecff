"""`encode_data`: latents and text embeddings of all samples, once, by many workers."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from foretune.api.executing import ExecutorChoices, opened_executor
from foretune.api.start import Changes, absent_device, import_libraries, overrides_of
from foretune.core.errors import UnknownName, UserError
from foretune.core.extras import require
from foretune.core.observer import Observer

if TYPE_CHECKING:
    from foretune.choices.running import Parallel
    from foretune.executors.task import Resources
    from foretune.training.encoded_sets.controller import EncodeProgress, PartResult

_PART_SIZE = 2048
"""Minutes of work on one accelerator, against the seconds in which encoders are loaded."""
_MIB = 2**20
_EXECUTORS = ("local", "slurm", "ray")
_WORKER = "foretune.training.encoded_sets.part_worker"

PartWatch = Callable[["PartResult | None", "EncodeProgress"], object]
"""Called with each part that ends, and about once a second with None."""


@dataclass(frozen=True, kw_only=True)
class EncodedData:
    """What came of an encoding."""

    place: str
    num_samples: int
    num_shards: int
    """0 where parts failed: there is no set yet."""
    num_bytes: int
    """Of all shards."""
    num_reused: int
    """Samples of parts that an earlier start had finished."""
    seconds: float
    failed: "tuple[PartResult, ...]" = ()
    """Parts that failed; the same call performs them again."""


def encode_data(
    experiment: str | Path,
    output: str | Path,
    changes: Changes | None = None,
    *,
    workers: int = 1,
    executor: str = "local",
    options: ExecutorChoices = (),
    part_size: int = _PART_SIZE,
    shard_mib: float = 256,
    tasks: str | Path | None = None,
    observer: Observer | None = None,
    watcher: PartWatch | None = None,
) -> EncodedData:
    """Encodes the data of an experiment into a set that trainings read with `data.encoded`.

    Stopped at any moment, the same call continues. A part whose worker is killed is performed again.

    Args:
        experiment: an experiment file.
        output: a folder or an s3:// address.
        changes: settings by dotted key, `{"data.resolution": 512}`.
        workers: parts that are encoded at once.
        executor: local, slurm or ray.
        options: of the executor.
        part_size: samples of a part. The set depends on it, and not on the number of workers.
        shard_mib: size of a shard at most, in MiB.
        tasks: folder for logs and unfinished work, which all machines see. Left out: OUTPUT.tasks, or for an address a
            folder of its last name in the working directory.
        observer: receives messages, and progress while the data are read.
        watcher: called with each part that ends, and about once a second with None.

    Raises:
        UserError: the experiment cannot be encoded, or the output is the set of another one.
    """
    from foretune.choices.addresses import is_remote
    from foretune.config import read_experiment
    from foretune.config.readiness import TO_ENCODE

    if executor not in _EXECUTORS:
        raise UnknownName("executor", executor, _EXECUTORS)
    if workers < 1 or part_size < 1:
        raise UserError("At least 1 worker and 1 sample in each part are needed.")
    require("train", "Encoding data")
    place = _checked(output)
    is_here, observer = executor == "local", observer or Observer()
    # A set that is read is not what is encoded.
    overrides = (*overrides_of(changes), "data.encoded=null")
    checks = [absent_device] if is_here else []
    asked = read_experiment(Path(experiment), overrides, needs=TO_ENCODE, checks=checks)
    device = asked.experiment.parallel.device if is_here else None
    import_libraries(observer, "foretune.training.encoded_sets.job", warns_if_busy=is_here, device=device)
    from foretune.data.shards import ShardLimits
    from foretune.sweeps.trial_resources import resources_of
    from foretune.training.encoded_sets.controller import EncodeController
    from foretune.training.encoded_sets.job import claim, planned_job

    for warning in asked.warnings:
        observer.warning(warning)
    job = planned_job(asked, place, part_size, ShardLimits(max_bytes=round(shard_mib * _MIB)), observer)
    claim(job)
    num_samples = job.facts.num_samples
    observer.message(
        f"{num_samples:,} samples in {job.num_parts:,} parts, {workers} at once, executor {executor}. Set: {place}"
    )
    parallel = asked.experiment.parallel
    resources = resources_of(parallel.model_copy(update={"devices": 1}), is_here=is_here)
    resources = _with_cores(resources, parallel, workers if is_here else None)
    with opened_executor(executor, jobs=workers, options=options, preload=(_WORKER,)) as opened:
        controller = EncodeController(
            job=job,
            tasks=_tasks_folder(place, tasks, is_remote=is_remote(place)),
            executor=opened,
            resources=resources,
            on_part=watcher or (lambda _result, _progress: None),
            on_look=lambda progress: watcher(None, progress) if watcher is not None else None,
        )
        began_s = time.monotonic()
        manifest = controller.run()
    results = controller.results.values()
    return EncodedData(
        place=place,
        num_samples=num_samples,
        num_shards=0 if manifest is None else len(manifest.shards),
        num_bytes=0 if manifest is None else manifest.num_bytes,
        num_reused=sum(result.num_samples for result in results if result.is_reused),
        seconds=time.monotonic() - began_s,
        failed=tuple(result for result in results if result.outcome.kind != "done"),
    )


def _checked(output: str | Path) -> str:
    from foretune.choices.addresses import checked_place, is_remote, remote_protocol
    from foretune.core.output_files import require_writable

    try:
        place = checked_place(str(output))
    except ValueError as error:
        raise UserError(f"OUTPUT {error}.") from error
    if is_remote(place):
        if remote_protocol(place) != "s3":
            raise UserError(f"{place} can only be read. Choose a folder, or an s3:// address.")
        require("stream", "Data at s3:// addresses")
        return place.rstrip("/")
    path = Path(place.removeprefix("file://")).expanduser().absolute()
    require_writable(path)
    return str(path)


def _tasks_folder(place: str, chosen: str | Path | None, *, is_remote: bool) -> Path:
    if chosen is not None:
        return Path(chosen)
    return Path(f"{place.rpartition('/')[2]}.tasks") if is_remote else Path(f"{place}.tasks")


def _with_cores(resources: "Resources", parallel: "Parallel", workers_here: int | None) -> "Resources":
    """As many cores for each as the experiment says. Workers on one CPU would otherwise each take all of it."""
    import dataclasses

    num_cpus = parallel.threads
    if num_cpus is None and workers_here is not None and not resources.num_devices:
        num_cpus = max(1, (os.cpu_count() or 1) // workers_here)
    return resources if num_cpus is None else dataclasses.replace(resources, num_cpus=num_cpus)
