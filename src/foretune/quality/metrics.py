"""The metrics of an evaluation."""

from collections.abc import Callable, Sequence

from foretune.core.errors import Refused
from foretune.core.registry import Registry
from foretune.core.scores import METRIC_SPECS
from foretune.quality.measurement import Metric
from foretune.quality.setting import Setting

METRICS: Registry[Callable[[], Metric]] = Registry("metric", {spec.name: spec.target for spec in METRIC_SPECS})


def chosen_metrics(setting: Setting) -> tuple[dict[str, Metric], dict[str, str]]:
    """Returns the metrics to compute, and why others are absent.

    Requested metrics that are not available are refused, all at once, before anything is sampled.
    """
    of_clips = setting.sampling.size.num_frames is not None
    usual = tuple(spec.name for spec in METRIC_SPECS if of_clips or not spec.is_of_clips)
    asked: Sequence[str] = setting.request.metrics or usual
    taken: dict[str, Metric] = {}
    absent: dict[str, str] = {}
    for name in asked:
        metric = METRICS[name]()
        why = metric.why_absent(setting)
        if why is None:
            taken[name] = metric
        else:
            absent[name] = why
    if absent and setting.request.metrics:
        raise Refused("\n".join(f"{name}: {why}." for name, why in absent.items()))
    return taken, absent
