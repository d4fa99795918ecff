"""How well an image goes with its prompt in a CLIP model's eyes (Hessel et al. 2021): 100 times the cosine."""

from foretune.quality.evidence import SampledEvidence
from foretune.quality.measurement import Numbers, OneScore
from foretune.quality.setting import Setting


class ClipScore(OneScore):
    """Of every sample with its prompt."""

    score = "clip score"

    def why_absent(self, setting: Setting) -> str | None:
        if not setting.has_text:
            return "the model takes no text"
        if setting.request.clip is None:
            return (
                "a CLIP model's weights are in no package. Run: foretune evaluate RUN --clip FOLDER, or "
                "--clip openai/clip-vit-base-patch32 from the Hub"
            )
        # Loaded now: weights that cannot be had are a matter for before the sampling.
        assert setting.clip is not None
        return None

    def numbers(self, setting: Setting, column: SampledEvidence) -> Numbers:
        groups = tuple(
            tuple(setting.clip.scores(images, prompt))
            for images, prompt in zip(column.samples, setting.sampling.prompts, strict=True)
        )
        return Numbers(groups=groups)
