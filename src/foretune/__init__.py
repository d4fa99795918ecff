"""Know before you fine-tune: what fine-tuning a diffusion model needs, costs and yields.

    import foretune as ft

    plans = ft.plan("flux.1-dev", {"method.kind": "lora", "method.rank": 32}, on=["rtx-4090", "h100-sxm"])
    plans[0].verdict, plans[0].process_bytes
    run = ft.train("experiment.yaml", {"train.steps": 10})
    ft.report("runs", "report.html")

One function for each verb of the command line. Importing this package imports nothing else: each function brings what
it needs when it is first used.
"""

from importlib import import_module

# As in `typing`, whose import alone would take longer than all else here.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from foretune.api.accelerate import ImportedConfig, import_accelerate
    from foretune.api.backtest import backtest, backtest_shared
    from foretune.api.bench import InferenceComparison, bench, bench_inference, compare_inference
    from foretune.api.calibrate import Calibrated, calibrate, calibrated, forget_calibration
    from foretune.api.compare import Gated, compare, gate, measure_and_compare
    from foretune.api.demo import demo
    from foretune.api.doctor import doctor
    from foretune.api.encode_data import EncodedData, encode_data
    from foretune.api.evaluate import evaluate
    from foretune.api.experiment import check, init, schema
    from foretune.api.export import export
    from foretune.api.fetch import Fetched, fetch, fetch_benchmark
    from foretune.api.import_archive import import_archive
    from foretune.api.import_checkpoint import import_checkpoint
    from foretune.api.import_config import ImportedTraining, import_config
    from foretune.api.lists import list_devices, list_methods, list_models
    from foretune.api.pack_data import check_data, index_data, pack_data
    from foretune.api.plan import Plans, plan
    from foretune.api.plan_inference import InferencePlans, plan_inference
    from foretune.api.profile import ProfiledRun, profile
    from foretune.api.publish import PublishedRun, publish
    from foretune.api.recommend import Recommended, recommend
    from foretune.api.rehearse import Rehearsal, rehearse
    from foretune.api.report import Report, report
    from foretune.api.run import Run, RunFailed, open_run
    from foretune.api.runs import StoredGroups, StoredRuns, runs, summarise_runs
    from foretune.api.sample import sample
    from foretune.api.sharing import share, shared_row
    from foretune.api.study import StudyOutcome, study
    from foretune.api.study_series import SeriesOutcome, study_series
    from foretune.api.sweep import SweepOutcome, sweep
    from foretune.api.tiny import tiny
    from foretune.api.train import resume, train
    from foretune.api.watch import WatchedFolder, watch
    from foretune.core.errors import UserError
    from foretune.core.observer import Observer, StepReport

__version__ = "0.1.0"

__all__ = [
    "Calibrated",
    "EncodedData",
    "Fetched",
    "Gated",
    "ImportedConfig",
    "ImportedTraining",
    "InferenceComparison",
    "InferencePlans",
    "Observer",
    "Plans",
    "ProfiledRun",
    "PublishedRun",
    "Recommended",
    "Rehearsal",
    "Report",
    "Run",
    "RunFailed",
    "SeriesOutcome",
    "StepReport",
    "StoredGroups",
    "StoredRuns",
    "StudyOutcome",
    "SweepOutcome",
    "UserError",
    "WatchedFolder",
    "backtest",
    "backtest_shared",
    "bench",
    "bench_inference",
    "calibrate",
    "calibrated",
    "check",
    "check_data",
    "compare",
    "compare_inference",
    "demo",
    "doctor",
    "encode_data",
    "evaluate",
    "export",
    "fetch",
    "fetch_benchmark",
    "forget_calibration",
    "gate",
    "import_accelerate",
    "import_archive",
    "import_checkpoint",
    "import_config",
    "index_data",
    "init",
    "list_devices",
    "list_methods",
    "list_models",
    "measure_and_compare",
    "open_run",
    "pack_data",
    "plan",
    "plan_inference",
    "profile",
    "publish",
    "recommend",
    "rehearse",
    "report",
    "resume",
    "runs",
    "sample",
    "schema",
    "share",
    "shared_row",
    "study",
    "study_series",
    "summarise_runs",
    "sweep",
    "tiny",
    "train",
    "watch",
]

_WHERE = {
    "api.accelerate": ("ImportedConfig", "import_accelerate"),
    "api.backtest": ("backtest", "backtest_shared"),
    "api.bench": ("InferenceComparison", "bench", "bench_inference", "compare_inference"),
    "api.calibrate": ("Calibrated", "calibrate", "calibrated", "forget_calibration"),
    "api.compare": ("Gated", "compare", "gate", "measure_and_compare"),
    "api.demo": ("demo",),
    "api.doctor": ("doctor",),
    "api.encode_data": ("EncodedData", "encode_data"),
    "api.evaluate": ("evaluate",),
    "api.experiment": ("check", "init", "schema"),
    "api.export": ("export",),
    "api.fetch": ("Fetched", "fetch", "fetch_benchmark"),
    "api.import_archive": ("import_archive",),
    "api.import_checkpoint": ("import_checkpoint",),
    "api.import_config": ("ImportedTraining", "import_config"),
    "api.lists": ("list_devices", "list_methods", "list_models"),
    "api.pack_data": ("check_data", "index_data", "pack_data"),
    "api.plan": ("Plans", "plan"),
    "api.plan_inference": ("InferencePlans", "plan_inference"),
    "api.profile": ("ProfiledRun", "profile"),
    "api.publish": ("PublishedRun", "publish"),
    "api.recommend": ("Recommended", "recommend"),
    "api.rehearse": ("Rehearsal", "rehearse"),
    "api.report": ("Report", "report"),
    "api.run": ("Run", "RunFailed", "open_run"),
    "api.runs": ("StoredGroups", "StoredRuns", "runs", "summarise_runs"),
    "api.sample": ("sample",),
    "api.sharing": ("share", "shared_row"),
    "api.study": ("StudyOutcome", "study"),
    "api.study_series": ("SeriesOutcome", "study_series"),
    "api.sweep": ("SweepOutcome", "sweep"),
    "api.tiny": ("tiny",),
    "api.train": ("resume", "train"),
    "api.watch": ("WatchedFolder", "watch"),
    "core.errors": ("UserError",),
    "core.observer": ("Observer", "StepReport"),
}
_MODULE_OF = {name: f"{__name__}.{module}" for module, names in _WHERE.items() for name in names}


if not TYPE_CHECKING:
    # Hidden from type checkers, which would take it for a module that has any attribute.
    def __getattr__(name):
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(_MODULE_OF[name]), name)
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
