"""Every experiment tracker by its name in `track`: the packages it needs, and where its class is.

The schema, the extras and the registry of trackers read this table, so a new tracker is one row here and one file.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class TrackerSpec:
    """One tracker."""

    name: str
    """As in `track: [name]`. If it needs packages, the extra that installs them has the same name."""
    target: str
    """Its class, as "package.module:attribute"."""
    packages: tuple[str, ...] = ()
    """Modules that must be installed. Empty: it needs nothing beyond the extra `train`."""


_HERE = "foretune.training.trackers"
_SPECS = (
    TrackerSpec(name="tensorboard", target=f"{_HERE}.tensorboard_files:TensorBoard", packages=("tensorboard",)),
    TrackerSpec(name="wandb", target=f"{_HERE}.weights_and_biases:WeightsAndBiases", packages=("wandb",)),
    TrackerSpec(
        name="mlflow", target=f"{_HERE}.mlflow_store:MlflowStore", packages=("mlflow", "sqlalchemy", "alembic")
    ),
    TrackerSpec(name="trackio", target=f"{_HERE}.trackio_board:TrackioBoard", packages=("trackio",)),
)
TRACKER_SPECS: Mapping[str, TrackerSpec] = {spec.name: spec for spec in _SPECS}
