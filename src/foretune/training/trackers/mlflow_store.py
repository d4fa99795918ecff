"""MLflow. A local SQLite store beside the runs unless MLFLOW_TRACKING_URI names another."""

import logging
import os
import time
from pathlib import Path
from typing import Any

from foretune.core.errors import MissingExtra
from foretune.core.observer import StepReport
from foretune.training.trackers.tracker import Tracker, settings_of, status_of, step_scalars

_RUN_ID_TAG = "foretune.run_id"
_NUM_AT_ONCE = 200
_WRITE_EVERY_S = 5.0
_MOST_LETTERS = 500
_STATUS = {"finished": "FINISHED", "interrupted": "KILLED", "killed": "KILLED"}


class MlflowStore(Tracker):
    """A run in the experiment of the same name; a resumed run goes on in the same one.

    Metrics are written a few hundred at a time, because a store answers in milliseconds at best.
    """

    def __init__(self, directory: Path) -> None:
        try:
            from mlflow.entities import Metric, Param, RunTag
            from mlflow.tracking import MlflowClient
        except ImportError as error:
            raise MissingExtra("track: [mlflow]", "mlflow") from error
        logging.getLogger("mlflow").setLevel(logging.WARNING)
        self._directory = directory
        self._metric_class: Any = Metric
        self._metrics: list[Any] = []
        self._last_write_s = time.monotonic()
        self._client: Any = MlflowClient(tracking_uri=_store(directory))
        name, run_id, settings = settings_of(directory)
        experiment_id = self._experiment(name, directory)
        found = self._client.search_runs([experiment_id], f"tags.`{_RUN_ID_TAG}` = '{run_id}'")
        if found:
            self._id = found[0].info.run_id
            self._client.update_run(self._id, status="RUNNING")
            return
        self._id = self._client.create_run(experiment_id, run_name=run_id, tags={_RUN_ID_TAG: run_id}).info.run_id
        params = [Param(_key(key), str(value)[:_MOST_LETTERS]) for key, value in settings.items()]
        self._client.log_batch(self._id, params=params[:100], tags=[RunTag("foretune.directory", str(directory))])
        for start in range(100, len(params), 100):
            self._client.log_batch(self._id, params=params[start : start + 100])

    def _experiment(self, name: str, directory: Path) -> str:
        found = self._client.get_experiment_by_name(name)
        if found is not None:
            return str(found.experiment_id)
        location = None
        if "MLFLOW_TRACKING_URI" not in os.environ:
            location = (directory.resolve().parents[1] / "mlflow-artifacts").as_uri()
        return str(self._client.create_experiment(name, artifact_location=location))

    def stepped(self, report: StepReport) -> None:
        self._add(report.step + 1, step_scalars(report))

    def validated(self, step: int, held_out_loss: float | None, samples: tuple[Path, ...]) -> None:
        if held_out_loss is not None:
            self._add(step, {"validate/held_out_loss": held_out_loss})
        for path in samples:
            self._client.log_artifact(self._id, str(path), "samples")
        self._write()

    def ended(self) -> None:
        self._write()
        self._client.set_terminated(self._id, status=_STATUS.get(status_of(self._directory), "FAILED"))

    def _add(self, step: int, values: dict[str, float]) -> None:
        now_ms = int(time.time() * 1000)
        self._metrics += [self._metric_class(_key(name), value, now_ms, step) for name, value in values.items()]
        if len(self._metrics) >= _NUM_AT_ONCE or time.monotonic() - self._last_write_s > _WRITE_EVERY_S:
            self._write()

    def _write(self) -> None:
        metrics, self._metrics = self._metrics, []
        self._last_write_s = time.monotonic()
        if metrics:
            self._client.log_batch(self._id, metrics=metrics)


def _store(directory: Path) -> str:
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{directory.resolve().parents[1] / 'mlflow.db'}"


def _key(name: str) -> str:
    """What MLflow takes in a name: letters, digits and a few signs."""
    return "".join(letter if letter.isalnum() or letter in "_-. /" else "_" for letter in name)
