"""For drawn shapes: how much of an image is a clean drawing, and how much is blur, smears and specks."""

from foretune.quality.evidence import SampledEvidence
from foretune.quality.measurement import Numbers, OneScore
from foretune.quality.setting import Setting


class CleanDrawing(OneScore):
    """The share of an image's variance that the best-fitting drawing explains, whatever the prompt."""

    score = "clean drawing"

    def why_absent(self, setting: Setting) -> str | None:
        return setting.why_not_shapes()

    def numbers(self, setting: Setting, column: SampledEvidence) -> Numbers:
        from foretune.data.shapes_reader import read_scene

        return Numbers(
            groups=tuple(tuple(1 - read_scene(image).residual for image in group) for group in column.samples)
        )
