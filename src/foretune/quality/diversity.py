"""How much images of one prompt differ between seeds: a model that always draws the same has none."""

from itertools import combinations

import numpy as np

from foretune.quality.evidence import SampledEvidence
from foretune.quality.measurement import Numbers, OneScore
from foretune.quality.setting import Setting


class Diversity(OneScore):
    """Mean distance between two seeds of a prompt: the RMS difference of pixels in [0, 1]."""

    score = "diversity"

    def why_absent(self, setting: Setting) -> str | None:
        if setting.num_seeds < 2:  # noqa: PLR2004 - a pair is two
            return "it compares seeds of a prompt, and there is one only. Run: foretune evaluate RUN --seeds 4"
        return None

    def numbers(self, setting: Setting, column: SampledEvidence) -> Numbers:
        # One value per prompt: pairs that share an image are not independent.
        groups = tuple(
            (float(np.mean([np.sqrt(np.mean((a - b) ** 2)) for a, b in combinations(images, 2)])),)
            for images in column.samples
        )
        return Numbers(groups=groups)
