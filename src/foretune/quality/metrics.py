"""All metrics by name. A new one is one file and one line here."""

from collections.abc import Callable, Sequence

from foretune.core.errors import Refused
from foretune.core.registry import Registry
from foretune.quality.measurement import Metric
from foretune.quality.setting import Setting

_HERE = "foretune.quality"

METRICS: Registry[Callable[[], Metric]] = Registry(
    "metric",
    {
        "captions": f"{_HERE}.caption_accuracy:CaptionAccuracy",
        "style": f"{_HERE}.caption_accuracy:StyleScore",
        "drawing": f"{_HERE}.clean_drawing:CleanDrawing",
        "clip": f"{_HERE}.clip_score:ClipScore",
        "loss": f"{_HERE}.held_out_loss:HeldOutLoss",
        "psnr": f"{_HERE}.similarity:Psnr",
        "ssim": f"{_HERE}.similarity:Ssim",
        "ms-ssim": f"{_HERE}.similarity:MsSsim",
        "lpips": f"{_HERE}.similarity:Lpips",
        "drift": f"{_HERE}.drift:Drift",
        "kid": f"{_HERE}.kid:Kid",
        "fid": f"{_HERE}.fid:Fid",
        "memorisation": f"{_HERE}.memorisation:Memorisation",
        "diversity": f"{_HERE}.diversity:Diversity",
    },
)


def chosen_metrics(setting: Setting) -> tuple[dict[str, Metric], dict[str, str]]:
    """Returns the metrics to compute, and why others are absent.

    Requested metrics that are not available are refused, all at once, before anything is sampled.
    """
    asked: Sequence[str] = setting.request.metrics or tuple(METRICS)
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
