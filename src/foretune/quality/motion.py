"""How clips change from frame to frame, beside how held-out clips do.

Motion is the mean absolute change of a pixel from a frame to the next, in [0, 1]: still clips have none. Flicker is the
mean absolute change of that change: even movement has little, frames that do not belong together have much. Neither
says whether a clip shows what it should; values near those of held-out clips are the natural ones.
"""

from collections.abc import Sequence
from statistics import fmean
from typing import ClassVar

import numpy as np

from foretune.quality.evidence import SampledEvidence
from foretune.quality.measurement import Need, Numbers, ScoreReading
from foretune.quality.setting import Setting
from foretune.training.sampling import Pixels

_ORDERS = {"motion": 1, "flicker": 2}
"""Which difference between frames each score is the mean of; it needs one frame more."""


class Motion:
    """Both scores of each sampled clip."""

    needs: ClassVar[frozenset[Need]] = frozenset({"samples"})

    def why_absent(self, setting: Setting) -> str | None:
        why = setting.why_no_frames()
        num_frames = setting.sampling.size.num_frames or 1
        if why is None and num_frames <= max(_ORDERS.values()):
            return f"clips of {num_frames} frames are too short: it compares three frames in turn"
        return why

    def measure(
        self, setting: Setting, column: SampledEvidence, base: SampledEvidence | None
    ) -> tuple[ScoreReading, ...]:
        held_out = [] if setting.data is None else setting.data.held_out_images
        return tuple(
            ScoreReading.of(score, setting.repeats_over, _numbers(column, held_out, order))
            for score, order in _ORDERS.items()
        )


def _numbers(column: SampledEvidence, held_out: Sequence[Pixels], order: int) -> Numbers:
    return Numbers(
        groups=tuple(tuple(mean_change(clip, order) for clip in clips) for clips in column.samples),
        bands={"held-out clips": fmean(mean_change(clip, order) for clip in held_out)} if held_out else None,
    )


def mean_change(clip: Pixels, order: int) -> float:
    """Returns the mean absolute difference between frames, of this order."""
    return float(np.abs(np.diff(clip.astype(np.float64), n=order, axis=0)).mean())
