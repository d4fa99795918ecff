"""CLIP score (Hessel et al. 2021): 100 times the cosine similarity of an image and its prompt."""

from foretune.quality.evidence import SampledEvidence
from foretune.quality.measurement import Numbers, OneScore
from foretune.quality.setting import Setting


class ClipScore(OneScore):
    """The score of every sample with its prompt."""

    score = "clip score"

    def why_absent(self, setting: Setting) -> str | None:
        if not setting.has_text:
            return "the model takes no text"
        if (why := setting.why_not_of_clips()) is not None:
            return why
        if setting.request.clip is None:
            return (
                "a CLIP model's weights are in no package. Run: foretune evaluate RUN --clip FOLDER, or "
                "--clip openai/clip-vit-base-patch32 from the Hub"
            )
        # Loaded now, so that missing weights are reported before sampling.
        assert setting.clip is not None
        return None

    def numbers(self, setting: Setting, column: SampledEvidence) -> Numbers:
        groups = tuple(
            tuple(setting.clip.scores(images, prompt))
            for images, prompt in zip(column.samples, setting.sampling.prompts, strict=True)
        )
        return Numbers(groups=groups)
