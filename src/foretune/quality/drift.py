"""How far a run's images differ from its base's, at the same prompt and seed. More is neither better nor worse."""

from typing import ClassVar

from foretune.quality.evidence import SampledEvidence
from foretune.quality.measurement import Need, Numbers, ScoreReading
from foretune.quality.setting import Setting
from foretune.quality.similarity import Psnr, Similarity, Ssim, why_not_installed


class Drift:
    """PSNR and SSIM between the two columns."""

    needs: ClassVar[frozenset[Need]] = frozenset({"samples"})

    def why_absent(self, setting: Setting) -> str | None:
        return why_not_installed()

    def measure(
        self, setting: Setting, column: SampledEvidence, base: SampledEvidence | None
    ) -> tuple[ScoreReading, ...]:
        if base is None:
            return ()
        found = []
        metrics: tuple[Similarity, ...] = (Psnr(), Ssim())
        for metric in metrics:
            why = metric.why_not_at(setting.sampling.size)
            pairs = () if why is not None else zip(column.samples, base.samples, strict=True)
            groups = tuple(tuple(metric.pairs(mine, theirs)) for mine, theirs in pairs)
            one = ScoreReading.of(f"drift {metric.score}", setting.repeats_over, Numbers(groups=groups))
            found.append(one if why is None else one.absent(why))
        return tuple(found)
