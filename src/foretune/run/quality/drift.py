"""How far a run's images have moved from its base's, at the same prompt and seed. Far is neither good nor bad."""

from typing import ClassVar

from foretune.run.quality.evidence import Evidence
from foretune.run.quality.measurement import Measurement, Need
from foretune.run.quality.setting import Setting
from foretune.run.quality.similarity import Psnr, Similarity, Ssim, why_not_installed


class Drift:
    """PSNR and SSIM between the two columns."""

    needs: ClassVar[frozenset[Need]] = frozenset({"samples"})

    def why_absent(self, setting: Setting) -> str | None:
        return why_not_installed()

    def measure(self, setting: Setting, column: Evidence, base: Evidence | None) -> tuple[Measurement, ...]:
        if base is None:
            return ()
        found = []
        metrics: tuple[Similarity, ...] = (Psnr(), Ssim())
        for metric in metrics:
            empty = Measurement(
                metric=f"drift {metric.name}",
                unit=metric.unit,
                higher_is_better=None,
                repeats_over=setting.repeats_over,
            )
            why = metric.why_not_at(setting.sampling.size_px)
            if why is not None:
                found.append(empty.absent(why))
                continue
            groups = tuple(
                tuple(metric.pairs(mine, theirs)) for mine, theirs in zip(column.samples, base.samples, strict=True)
            )
            found.append(empty.with_groups(groups))
        return tuple(found)
