"""What watches every training: sensors, and the alarm that speaks when it becomes slower."""

import torch

from foretune.core.observer import Observer
from foretune.record.events import EventLog
from foretune.training.drift_alarm import Alarm, DriftAlarm
from foretune.training.telemetry.sampler import Sampler, open_sensors, uuids_of


def sampler_for(device: torch.device, events: EventLog) -> Sampler:
    """Of several CUDA devices, the one that the run is on."""
    return Sampler(events, open_sensors(uuids_of(device)))


def alarm_for(sampler: Sampler, events: EventLog, observer: Observer, warnings: list[str]) -> DriftAlarm:
    """Tells people at once, the log and the record."""

    def tell(alarm: Alarm) -> None:
        events.append("alarm", step=alarm.step, cause=alarm.cause, text=alarm.text)
        warnings.append(alarm.text)
        observer.warning(alarm.text)

    return DriftAlarm(tell, lambda: list(sampler.recent))
