"""The distance between two sets of images, samples and training images, as an extractor sees them."""

from abc import abstractmethod

from torch import Tensor

from foretune.quality.evidence import SampledEvidence
from foretune.quality.measurement import Numbers, OneScore
from foretune.quality.setting import Setting
from foretune.quality.similarity import why_not_installed

_NO_RUN = "it compares samples with training images, and a model without a run has none. Evaluate a run"


class SetDistance(OneScore):
    """Which prompts were sampled is left to chance."""

    def why_absent(self, setting: Setting) -> str | None:
        why = why_not_installed()
        if why is not None:
            return why
        return _NO_RUN if setting.data is None else self.why_too_few(setting, len(setting.data.train))

    @abstractmethod
    def why_too_few(self, setting: Setting, num_training: int) -> str | None:
        """The reason why so many samples and training images do not do. The extractor is loaded here where its weights
        matter: what cannot be had is a matter for before the sampling.
        """

    @abstractmethod
    def between(self, features: Tensor, reference: Tensor, group_sizes: list[int]) -> Numbers:
        """The distance of two sets of features. `group_sizes`: how many samples each prompt has."""

    def numbers(self, setting: Setting, column: SampledEvidence) -> Numbers:
        features = setting.extractor.features(column.all_samples)
        return self.between(features, setting.reference_features, [len(images) for images in column.samples])
