"""The training loss at fixed noise on held-out images: in total and by noise level."""

from statistics import fmean
from typing import ClassVar

from foretune.quality.evidence import SampledEvidence
from foretune.quality.measurement import Need, Numbers, OneScore
from foretune.quality.setting import Setting


class HeldOutLoss(OneScore):
    """The loss of each held-out image once in each band, with the same noise for both columns."""

    needs: ClassVar[frozenset[Need]] = frozenset({"losses"})
    score = "held-out loss"

    def why_absent(self, setting: Setting) -> str | None:
        return setting.why_no_held_out()

    def repeats_over(self, setting: Setting) -> str:
        return setting.held_out_items

    def numbers(self, setting: Setting, column: SampledEvidence) -> Numbers:
        by_band = zip(*column.losses, strict=True)
        names = setting.band_names()
        return Numbers(
            groups=column.losses,
            bands={f"noise {name}": fmean(losses) for name, losses in zip(names, by_band, strict=True)},
        )
