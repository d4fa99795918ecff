"""Copies of training images are found, other images are not; seeds that always give the same have no diversity."""

import numpy as np
import pytest

from foretune.quality.diversity import Diversity
from foretune.quality.memorisation import Memorisation
from tests.quality.made import MadeData, in_groups, made_setting, noise_images, smooth_images

TRAINING = smooth_images(200, seed=1)
DATA = MadeData(training_images=TRAINING, held_out_images=smooth_images(40, seed=2))


def share_of_copies(samples: list[np.ndarray[tuple[int, ...], np.dtype[np.float32]]]) -> float:
    copies, _ = Memorisation().measure(made_setting(data=DATA), in_groups(samples, 2), None)
    return float(np.mean(copies.groups))


def test_planted_copies_are_found() -> None:
    samples = smooth_images(20, seed=3)
    clean = share_of_copies(samples)
    # As an autoencoder would give them back: not quite.
    noise = noise_images(5, seed=4)
    planted = [np.clip(TRAINING[7 * n] + 0.02 * (noise[n] - 0.5), 0, 1) for n in range(5)]
    assert share_of_copies([*planted, *samples[5:]]) == pytest.approx(clean * 0.75 + 0.25, abs=0.05)
    assert clean <= 0.1


def test_a_larger_copy_is_found_too() -> None:
    larger = [np.repeat(np.repeat(image, 2, 0), 2, 1) for image in (TRAINING[0], TRAINING[1])]
    assert share_of_copies(larger) == 1.0


def test_held_out_images_are_the_level_to_compare_with() -> None:
    copies, ratio = Memorisation().measure(made_setting(data=DATA), in_groups(smooth_images(4, seed=5), 2), None)
    assert copies.numbers.bands == {"held-out images, by chance": 1 / 41}
    assert copies.kind.higher_is_better is False
    assert ratio.numbers.bands is not None
    assert 0.3 < ratio.numbers.bands["held-out images"] < 1
    assert ratio.kind.higher_is_better is None


def test_too_few_images_to_tell() -> None:
    few = MadeData(training_images=TRAINING, held_out_images=smooth_images(9))
    assert "9 held-out images are too few to show" in (Memorisation().why_absent(made_setting(data=few)) or "")
    two = MadeData(training_images=TRAINING[:2], held_out_images=smooth_images(10))
    assert "fewer than three training images" in (Memorisation().why_absent(made_setting(data=two)) or "")
    assert Memorisation().why_absent(made_setting(data=DATA)) is None


def test_diversity_by_hand() -> None:
    black = np.zeros((4, 4, 3), dtype=np.float32)
    setting = made_setting(prompts=["a", "b"], num_seeds=2)
    (found,) = Diversity().measure(setting, in_groups([black, black + 0.5, black, black], 2), None)
    assert found.groups == ((0.5,), (0.0,))


def test_diversity_needs_two_seeds() -> None:
    assert "--seeds" in (Diversity().why_absent(made_setting(num_seeds=1)) or "")
    assert Diversity().why_absent(made_setting(num_seeds=2)) is None
