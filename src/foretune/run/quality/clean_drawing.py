"""Of drawn shapes: how much of an image is drawing, and how much is blur, smears and specks."""

from typing import ClassVar

from foretune.run.quality.evidence import Evidence
from foretune.run.quality.measurement import Measurement, Need
from foretune.run.quality.setting import Setting


class CleanDrawing:
    """The share of an image's variance that the drawing explains which fits it best, whatever the prompt asked for."""

    needs: ClassVar[frozenset[Need]] = frozenset({"samples"})

    def why_absent(self, setting: Setting) -> str | None:
        if setting.data is None or not setting.data.is_shapes:
            return "it fits drawings of shapes to the pixels (data.kind: shapes), and these data are others"
        return None

    def measure(
        self,
        setting: Setting,
        column: Evidence,
        base: Evidence | None,
    ) -> tuple[Measurement, ...]:
        from foretune.data.shapes_reader import read_scene

        groups = tuple(tuple(1 - read_scene(image).residual for image in group) for group in column.samples)
        return (
            Measurement(
                metric="clean drawing",
                higher_is_better=True,
                groups=groups,
                repeats_over=setting.repeats_over,
                smallest_difference=0.01,
            ),
        )
