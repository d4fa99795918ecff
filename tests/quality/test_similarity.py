"""PSNR and SSIM against a second implementation, written from the papers; MS-SSIM and LPIPS where they apply."""

import math

import numpy as np
import numpy.typing as npt
import pytest

from foretune.quality.caption_accuracy import CaptionAccuracy, StyleScore
from foretune.quality.clean_drawing import CleanDrawing
from foretune.quality.measurement import OneScore
from foretune.quality.similarity import MOST_DB, Lpips, MsSsim, Psnr, Ssim
from tests.quality.made import MadeData, made_setting, noise_images, smooth_images, with_denoised

TOLERANCE = 1e-4
_Floats = npt.NDArray[np.float64]


def second_psnr(a: _Floats, b: _Floats) -> float:
    return 10 * math.log10(1.0 / float(((a - b) ** 2).mean()))


def second_ssim(a: _Floats, b: _Floats) -> float:
    """Wang et al. 2004: an 11 x 11 Gaussian window of deviation 1.5 around every pixel, mirrored at the edges."""
    at = np.arange(11) - 5
    line = np.exp(-(at**2) / (2 * 1.5**2))
    window = np.outer(line, line) / line.sum() ** 2
    c1, c2 = 0.01**2, 0.03**2

    def mean(plane: _Floats) -> _Floats:
        windows = np.lib.stride_tricks.sliding_window_view(np.pad(plane, 5, mode="reflect"), (11, 11))
        means: _Floats = np.einsum("ijkl,kl->ij", windows, window)
        return means

    values = []
    for channel in range(3):
        x, y = a[..., channel], b[..., channel]
        mx, my = mean(x), mean(y)
        vx, vy, cov = mean(x * x) - mx * mx, mean(y * y) - my * my, mean(x * y) - mx * my
        similarity = (2 * mx * my + c1) * (2 * cov + c2) / ((mx**2 + my**2 + c1) * (vx + vy + c2))
        values.append(similarity.mean())
    return float(np.mean(values))


PAIRS = [
    (noise_images(1, seed=1)[0], noise_images(1, seed=2)[0]),
    (smooth_images(1, seed=1)[0], smooth_images(1, seed=2)[0]),
    (smooth_images(1, seed=3)[0], 0.9 * smooth_images(1, seed=3)[0] + 0.1 * noise_images(1, seed=3)[0]),
    (smooth_images(1, size_px=48, seed=4)[0], 0.99 * smooth_images(1, size_px=48, seed=4)[0]),
]


@pytest.mark.parametrize("number", range(len(PAIRS)))
def test_psnr_is_that_of_a_second_implementation(number: int) -> None:
    a, b = PAIRS[number]
    (found,) = Psnr().pairs([a], [b])
    assert found == pytest.approx(second_psnr(a.astype(float), b.astype(float)), abs=TOLERANCE)


@pytest.mark.parametrize("number", range(len(PAIRS)))
def test_ssim_is_that_of_a_second_implementation(number: int) -> None:
    a, b = PAIRS[number]
    (found,) = Ssim().pairs([a], [b])
    assert found == pytest.approx(second_ssim(a.astype(float), b.astype(float)), abs=TOLERANCE)


def test_the_second_implementation_tells_another_window_apart() -> None:
    """The control: a tolerance that any similarity meets would prove nothing."""
    from torchmetrics.functional.image import structural_similarity_index_measure

    from foretune.quality.evidence import as_batch

    a, b = PAIRS[2]
    other = structural_similarity_index_measure(as_batch([a]), as_batch([b]), data_range=1.0, sigma=2.0)
    assert abs(float(other) - second_ssim(a.astype(float), b.astype(float))) > 10 * TOLERANCE  # type: ignore[arg-type]


def test_psnr_by_hand() -> None:
    grey = np.full((32, 32, 3), 0.5, dtype=np.float32)
    assert Psnr().pairs([grey], [grey + np.float32(0.1)]) == pytest.approx([20.0], abs=1e-3)
    assert Psnr().pairs([grey], [grey]) == [MOST_DB]


def test_pairs_are_kept_apart_however_many() -> None:
    images, truth = noise_images(40, seed=5), noise_images(40, seed=6)
    together = Psnr().pairs(images, truth)
    assert together == pytest.approx([Psnr().pairs([a], [b])[0] for a, b in zip(images, truth, strict=True)])


def test_one_number_for_each_held_out_image_and_level() -> None:
    truth = smooth_images(4)
    setting = made_setting(data=MadeData(held_out_images=truth))
    (found,) = Psnr().measure(setting, with_denoised(smooth_images(4, seed=9), 0.25, 0.5), None)
    assert [len(group) for group in found.groups] == [2, 2, 2, 2]
    assert found.numbers.bands is not None
    assert set(found.numbers.bands) == {"noise 0.25", "noise 0.5"}
    assert found.repeats_over == "held-out images"


def test_what_is_too_small_is_absent_with_the_size_it_needs() -> None:
    data = MadeData(held_out_images=smooth_images(2))
    why = MsSsim().why_absent(made_setting(data=data, size_px=128))
    assert why is not None
    assert "128 px" in why
    assert "161 px" in why
    assert MsSsim().why_absent(made_setting(data=data, size_px=256)) is None
    assert "11 px" in (Ssim().why_absent(made_setting(data=data, size_px=8)) or "")


def test_ms_ssim_is_one_of_equals_and_less_of_others() -> None:
    a, b = smooth_images(2, size_px=176)
    assert MsSsim().pairs([a], [a]) == pytest.approx([1.0], abs=1e-5)
    assert MsSsim().pairs([a], [b])[0] < 0.95


def test_without_held_out_images_there_is_a_reason() -> None:
    assert "a model without a run has none" in (Psnr().why_absent(made_setting(data=None)) or "")
    assert "data.held_out" in (Psnr().why_absent(made_setting(data=MadeData())) or "")


def test_lpips_says_where_its_weights_come_from(monkeypatch: pytest.MonkeyPatch) -> None:
    from foretune.quality import similarity

    monkeypatch.setattr(similarity, "find_spec", lambda name: None if name == "torchvision" else object())
    why = Lpips().why_absent(made_setting(data=MadeData(held_out_images=smooth_images(1))))
    assert why is not None
    assert "pip install torchvision" in why
    assert "downloads" in why


@pytest.mark.parametrize("metric", [CaptionAccuracy(), StyleScore(), CleanDrawing()])
def test_without_data_it_is_not_said_that_they_are_others(metric: OneScore) -> None:
    assert (metric.why_absent(made_setting(data=None)) or "").endswith(
        "a model without a run has no data. Evaluate a run"
    )
    assert (metric.why_absent(made_setting(data=MadeData())) or "").endswith("this data is of another kind")
