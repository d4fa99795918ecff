"""The loss that is trained on, at fixed noise, on images that were held out: as a whole and by level of noise."""

from statistics import fmean
from typing import ClassVar

from foretune.run.quality.evidence import Evidence
from foretune.run.quality.measurement import Measurement, Need
from foretune.run.quality.setting import Setting


class HeldOutLoss:
    """Each held-out image is asked once in each band; the same noise for both columns."""

    needs: ClassVar[frozenset[Need]] = frozenset({"losses"})

    def why_absent(self, setting: Setting) -> str | None:
        return setting.why_no_held_out()

    def measure(
        self,
        setting: Setting,
        column: Evidence,
        base: Evidence | None,
    ) -> tuple[Measurement, ...]:
        by_band = zip(*column.losses, strict=True)
        return (
            Measurement(
                metric="held-out loss",
                higher_is_better=False,
                groups=column.losses,
                repeats_over="held-out images",
                smallest_difference=0.01,
                smallest_is_relative=True,
                bands={
                    f"noise {name}": fmean(losses) for name, losses in zip(setting.band_names(), by_band, strict=True)
                },
            ),
        )
