"""The loss that is trained on, at fixed noise, on images that were held out: as a whole and by level of noise."""

from statistics import fmean
from typing import ClassVar

from foretune.quality.evidence import SampledEvidence
from foretune.quality.measurement import Need, Numbers, OneScore
from foretune.quality.setting import Setting


class HeldOutLoss(OneScore):
    """Each held-out image is asked once in each band; the same noise for both columns."""

    needs: ClassVar[frozenset[Need]] = frozenset({"losses"})
    score = "held-out loss"
    repeats_over = "held-out images"

    def why_absent(self, setting: Setting) -> str | None:
        return setting.why_no_held_out()

    def numbers(self, setting: Setting, column: SampledEvidence) -> Numbers:
        by_band = zip(*column.losses, strict=True)
        names = setting.band_names()
        return Numbers(
            groups=column.losses,
            bands={f"noise {name}": fmean(losses) for name, losses in zip(names, by_band, strict=True)},
        )
