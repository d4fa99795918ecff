"""`sweep`: many configurations of one experiment, on this machine or a cluster, none lost."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretune.api.executing import ExecutorChoices, executor_options, opened_executor, require_executor
from foretune.api.live_steps import LiveSteps
from foretune.api.start import Changes, absent_device, import_libraries, overrides_of
from foretune.core.errors import UnknownName
from foretune.core.extras import require
from foretune.core.observer import Observer
from foretune.core.units import counted_text
from foretune.sweeps.presets import SWEEP_PRESETS

if TYPE_CHECKING:
    from foretune.analyse.sweep_summary import SweepSummary
    from foretune.choices.sweep import SweepFile
    from foretune.config.sweep_files import SweepAsked
    from foretune.executors.executor import Executor
    from foretune.sweeps.controller import Forecaster, SweepProgress
    from foretune.sweeps.sweep_folder import SweepFolder
    from foretune.sweeps.trial_results import TrialResult

    Watch = Callable[[TrialResult | None, SweepProgress], None]

PRESET_NAMES = tuple(SWEEP_PRESETS)
"""Names of the sweeps that need no file."""
SUMMARY = "summary.json"
_FILE_ENDINGS = (".yaml", ".yml")
_STORED_EVERY_S = 5.0


@dataclass(frozen=True)
class SweepOutcome:
    """What a sweep's trials show."""

    path: Path
    """Folder of runs_summary.csv, summary.json, the plots and the trials."""
    summary: "SweepSummary"
    results: "tuple[TrialResult, ...]"
    """In the order in which the trials ended."""

    @property
    def problems(self) -> "dict[str, str]":
        """Trials that were run and did not finish, with the reason. In a frontier, what does not fit is an answer."""
        from foretune.sweeps.strategies.seam import NOT_FITTING

        decided = ("done", "refused", "predicted not to fit", *(NOT_FITTING if self.summary.frontier else ()))
        return {
            result.name: result.outcome.reason or result.outcome.kind
            for result in self.results
            if result.outcome.kind not in decided
        }

    @property
    def json(self) -> str:
        return _json_of(self.summary)


def sweep(
    target: str | Path,
    changes: Changes | None = None,
    *,
    executor: str = "local",
    jobs: int | None = None,
    options: ExecutorChoices = (),
    measure: str | None = None,
    steps: int | None = None,
    seeds: Sequence[int] = (),
    model: str | Path | None = None,
    name: str | None = None,
    quick: bool = False,
    new: bool = False,
    retry: bool = False,
    sweeps: str | Path = "sweeps",
    plot: bool = True,
    observer: Observer | None = None,
    watcher: "Watch | None" = None,
) -> SweepOutcome:
    """Runs what is missing of a sweep, then summarises all of its trials. The same call continues a stopped sweep.

    Args:
        target: a sweep file, the name of a preset, or an experiment file with several values in `changes`.
        changes: settings by dotted key: `["train.batch_size=1,4,8", "train.steps=10"]`; several values are an axis.
        executor: where trials run: local, slurm, ray or sky.
        jobs: trials that run at once on this machine.
        options: further options of the executor.
        measure: `train`, or `speed` for optimizer steps alone; default: the file's.
        steps: optimizer steps of each trial.
        seeds: run each combination once with each.
        model: sweep this model instead of the file's.
        name: of the sweep's folder. Default: the file's name.
        quick: the shorter sweep of the file's `quick` section: to try it, not to quote it.
        new: start a new folder, and measure everything again.
        retry: run trials again that did not finish.
        sweeps: where results are stored.
        plot: draw the results; needs `foretune[plots]`.
        observer: receives progress.
        watcher: called with each trial that ends, and about once a second with None.
    """
    path = sweep_path(target)
    require_executor(executor, "A sweep")
    if plot:
        require("train,plots", "A sweep with plots (leave them out with --no-plot)")
    require("train", "Running a sweep")
    observer = observer or Observer()
    given = {"measure": measure, "steps": steps, "seeds": list(seeds) or None}
    settings = {key: value for key, value in given.items() if value is not None}
    is_here = executor == "local"
    file, asked = _read(path, overrides_of(changes), settings, model, name, Path(sweeps), observer, quick, executor)
    from foretune.sweeps.sweep_folder import sweep_folder

    folder = sweep_folder(Path(sweeps), asked, is_new=new)
    observer.message(_announced(asked, folder, executor))
    device = "auto" if is_here else None
    import_libraries(observer, "foretune.sweeps.forecasting", warns_if_busy=is_here, device=device)
    usd_per_hour = _usd_per_hour(file)
    store = _Store(asked, folder, usd_per_hour)
    limits_memory = file.limits.host_gib is not None
    preload = _preloaded(asked) if is_here else ()
    try:
        with opened_executor(
            executor, jobs=jobs, options=options, preload=preload, limits_memory=limits_memory
        ) as opened:
            forecasts = _forecasts(asked, folder, opened, observer)
            results = _run(asked, folder, opened, forecasts, usd_per_hour, store, watcher, observer, retry=retry)
    finally:
        store.write()
    summary = store.summarise(results)
    if plot:
        from foretune.reports.sweep_plots import write_sweep_plots

        write_sweep_plots(summary.to_mapping(), file.options, folder.path)
    return SweepOutcome(folder.path, summary, tuple(results))


def write_cloud_task(target: str | Path, changes: Changes | None = None, *, options: ExecutorChoices = ()) -> Path:
    """Writes a SkyPilot task file that runs a sweep on a machine in a cloud; returns its path.

    Args:
        target: as for `sweep`.
        changes: as for `sweep`.
        options: of SkyPilot: accelerators, cloud, region, results, ...
    """
    from foretune.executors.executor import checked_options
    from foretune.executors.sky import SkyOptions, write_command_file

    path = sweep_path(target)
    chosen = checked_options("sky", SkyOptions, executor_options(options))
    written = Path(f"sky-{path.stem}.yaml")
    command = ["foretune", "sweep", str(target), *overrides_of(changes), "--no-plot"]
    write_command_file(written, f"sweep-{path.stem}", command, chosen, workdir=Path.cwd())
    return written


def sweep_path(target: str | Path) -> Path:
    """The file that is meant."""
    if str(target) in SWEEP_PRESETS:
        return SWEEP_PRESETS[str(target)]
    path = Path(target)
    if path.suffix in _FILE_ENDINGS:
        return path
    raise UnknownName("sweep or sweep file", str(target), PRESET_NAMES)


def _read(
    path: Path,
    overrides: Sequence[str],
    settings: Mapping[str, Any],
    model: str | Path | None,
    name: str | None,
    sweeps: Path,
    observer: Observer,
    is_quick: bool,
    executor: str,
) -> "tuple[SweepFile, SweepAsked]":
    """The sweep with its fixtures made. The file is checked before torch is imported to make them."""
    from foretune.config.sweep_files import check_sweep, load_sweep, shortened, sweep_name
    from foretune.executors.executor import require_nodes

    file = load_sweep(path, overrides, settings=settings)
    if is_quick:
        file = shortened(file, overrides, settings=settings)
    require_nodes(executor, file.resources.nodes)
    chosen = sweep_name(file, path, name, is_quick=is_quick)
    changes: dict[str, Any] = {} if model is None else {"model": str(model)}
    fixtures = file.fixtures
    if fixtures is not None and model is not None:
        fixtures = fixtures.model_copy(update={"model": None})
    if fixtures is not None and (fixtures.model, fixtures.images) != (None, None):
        import_libraries(observer)
        from foretune.studies.fixtures import make_fixtures

        changes |= make_fixtures(fixtures, sweeps / chosen, observer)
    checks = [absent_device] if executor == "local" else []
    asked = check_sweep(file, path, name=chosen, changes=changes, checks=checks)
    for warning in asked.warnings:
        observer.warning(warning)
    return asked.file, asked


def _announced(asked: "SweepAsked", folder: "SweepFolder", executor: str) -> str:
    from foretune.choices.sweep import GridStrategy

    file, num = asked.file, asked.file.num_combinations()
    what = counted_text(num, "combinations")
    if not isinstance(file.strategy, GridStrategy):
        what = f"{file.strategy.kind} search over {what}"
    elif file.exclude:
        what = f"{counted_text(sum(1 for _ in asked.points()), 'combinations')} of {num}"
    seeds = counted_text(len(file.seeds), "seeds")
    return f"{asked.name}: {what}, {seeds}, executor {executor}. Results: {folder.path}"


def _forecasts(asked: "SweepAsked", folder: "SweepFolder", executor: "Executor", observer: Observer) -> "Forecaster":
    from foretune.planner.device_requests import requested_devices
    from foretune.sweeps.baseline import measured_baseline
    from foretune.sweeps.forecasting import Forecasts

    device = None
    if asked.file.device is not None:
        (device, *_) = requested_devices(asked.file.device, observer.message)
    is_here = executor.name == "local"
    live = LiveSteps(observer, lambda what: observer.preparing(f"memory estimate: {what}", 0, 1))
    return Forecasts(asked, live, device, lambda: measured_baseline(asked, folder, executor), is_here=is_here)


def _usd_per_hour(file: "SweepFile") -> float | None:
    from foretune.analyse.money import catalogue_device
    from foretune.planner.device_requests import requested_devices
    from foretune.record.environment import environment_fingerprint

    if file.usd_per_hour is not None:
        return file.usd_per_hour
    if file.device is not None:
        (device, *_) = requested_devices(file.device, lambda _: None)
        return device.price_usd_per_hour
    here = catalogue_device(environment_fingerprint())
    return None if here is None else here.price_usd_per_hour


def _preloaded(asked: "SweepAsked") -> tuple[str, ...]:
    """Modules of the model's classes, which a local executor imports once for all trials."""
    from foretune.trace.live import family_of

    trial = asked.trial(next(asked.points()), asked.file.seeds[0])
    if trial.asked is None:
        return ()
    family = family_of(trial.asked.model)
    classes = (family.denoiser_class(), family.pipeline_class())
    return tuple(sorted({one.__module__ for one in classes}))


def _run(
    asked: "SweepAsked",
    folder: "SweepFolder",
    executor: "Executor",
    forecasts: "Forecaster",
    usd_per_hour: float | None,
    store: "_Store",
    watcher: "Watch | None",
    observer: Observer,
    *,
    retry: bool,
) -> "list[TrialResult]":
    from foretune.sweeps.controller import SweepController, TrialWatcher
    from foretune.sweeps.environment_identity import environment_identity

    class ResultsWatcher(TrialWatcher):
        def ended(self, result: "TrialResult", progress: "SweepProgress") -> None:
            store.add(result)
            if watcher is not None:
                watcher(result, progress)

        def noted(self, text: str) -> None:
            observer.warning(text)

        def looked(self, progress: "SweepProgress") -> None:
            if watcher is not None:
                watcher(None, progress)

    return SweepController(
        asked=asked,
        folder=folder,
        executor=executor,
        environment=environment_identity(is_here=executor.name == "local"),
        forecasts=forecasts,
        watcher=ResultsWatcher(),
        usd_per_hour=usd_per_hour,
        retries_failed=retry,
    ).run()


class _Store:
    """Keeps runs_summary.csv up to date while the sweep runs."""

    def __init__(self, asked: "SweepAsked", folder: "SweepFolder", usd_per_hour: float | None) -> None:
        self._asked, self._folder, self._usd_per_hour = asked, folder, usd_per_hour
        self._results: list[TrialResult] = []
        self._written_s = float("-inf")

    def add(self, result: "TrialResult") -> None:
        self._results.append(result)
        if time.monotonic() - self._written_s >= _STORED_EVERY_S:
            self.write()

    def write(self) -> None:
        from foretune.record.atomic import write_text
        from foretune.reports.sweep_csv import RUNS_SUMMARY, sweep_csv

        write_text(self._folder.path / RUNS_SUMMARY, sweep_csv(self._results, self._folder.path))
        self._written_s = time.monotonic()

    def summarise(self, results: "Sequence[TrialResult]") -> "SweepSummary":
        from foretune.analyse.sweep_summary import summarise_sweep
        from foretune.record.atomic import write_text

        summary = summarise_sweep(self._asked.name, self._asked.file, results, self._usd_per_hour)
        write_text(self._folder.path / SUMMARY, _json_of(summary))
        return summary


def _json_of(summary: "SweepSummary") -> str:
    return json.dumps(summary.to_mapping(), indent=2, allow_nan=False) + "\n"
