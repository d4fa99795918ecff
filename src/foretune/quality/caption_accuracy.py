"""For drawn shapes, checks from the pixels whether an image shows what the prompt says."""

from statistics import fmean

from foretune.data.sources.shapes import captions_shown
from foretune.quality.evidence import SampledEvidence
from foretune.quality.measurement import Numbers, OneScore
from foretune.quality.setting import Setting


class CaptionAccuracy(OneScore):
    """The share of samples that show everything in their prompt; each attribute is reported too."""

    score = "caption accuracy"

    def why_absent(self, setting: Setting) -> str | None:
        why = setting.why_not_shapes()
        if why is not None:
            return why
        if not setting.has_text:
            return "the model takes no text"
        known = frozenset(captions_shown("all"))
        foreign = next((prompt for prompt in setting.sampling.prompts if prompt not in known), None)
        if foreign is not None:
            return f"{foreign!r} is not a caption of shapes, such as 'a small red circle on blue'"
        return None

    def numbers(self, setting: Setting, column: SampledEvidence) -> Numbers:
        from foretune.data.shapes_reader import matches, read_scene

        found = [
            [matches(prompt, read_scene(image)) for image in images]
            for images, prompt in zip(column.samples, setting.sampling.prompts, strict=True)
        ]
        attributes = tuple(found[0][0])
        return Numbers(
            groups=tuple(tuple(float(all(one.values())) for one in group) for group in found),
            bands={name: fmean(fmean(float(one[name]) for one in group) for group in found) for name in attributes},
        )


class StyleScore(OneScore):
    """How strongly samples show the style of the training data, from 0 to 1."""

    score = "style"

    def why_absent(self, setting: Setting) -> str | None:
        why = setting.why_not_shapes()
        if why is None and setting.data is not None and setting.data.style is None:
            return "the run was trained on plain shapes (data.style: plain), which have no style to request"
        return why

    def numbers(self, setting: Setting, column: SampledEvidence) -> Numbers:
        from foretune.data.shapes_reader import style_score

        assert setting.data is not None
        style = setting.data.style
        assert style is not None
        return Numbers(
            groups=tuple(tuple(float(style_score(image, style)) for image in group) for group in column.samples)
        )
