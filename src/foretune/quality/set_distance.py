"""The distance between samples and training images in an extractor's features."""

from abc import abstractmethod

from torch import Tensor

from foretune.quality.evidence import SampledEvidence
from foretune.quality.measurement import Numbers, OneScore
from foretune.quality.setting import Setting
from foretune.quality.similarity import why_not_installed

_NO_RUN = "it compares samples with training images, and a model without a run has none. Evaluate a run"


class SetDistance(OneScore):
    """A distance whose randomness includes the choice of prompts."""

    def why_absent(self, setting: Setting) -> str | None:
        why = why_not_installed() or setting.why_not_of_clips()
        if why is not None:
            return why
        return _NO_RUN if setting.data is None else self.why_too_few(setting, len(setting.data.train))

    @abstractmethod
    def why_too_few(self, setting: Setting, num_training: int) -> str | None:
        """Returns why these numbers of samples and training images are not enough. Loads the extractor if its weights
        matter, so that missing ones are reported before sampling.
        """

    @abstractmethod
    def between(self, features: Tensor, reference: Tensor, group_sizes: list[int]) -> Numbers:
        """Returns the distance of two sets of features. `group_sizes`: the number of samples of each prompt."""

    def numbers(self, setting: Setting, column: SampledEvidence) -> Numbers:
        features = setting.extractor.features(column.all_samples)
        return self.between(features, setting.reference_features, [len(images) for images in column.samples])
