"""FID against the closed form, KID against sums by hand, and when they are refused."""

import math

import numpy as np
import pytest
import torch

from foretune.quality.extractors import PooledPixels
from foretune.quality.fid import Fid, fewest_images, fid
from foretune.quality.kid import Kid, kid_by_groups
from tests.quality.made import MadeData, in_groups, made_setting, noise_images, smooth_images


def normals(num: int, mean: list[float], deviations: list[float], seed: int) -> torch.Tensor:
    """Numbers whose mean and covariance are exactly those asked for."""
    drawn = torch.randn(num, len(mean), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    drawn -= drawn.mean(dim=0)
    whitened = drawn @ torch.linalg.inv(torch.linalg.cholesky(torch.cov(drawn.T))).T
    shaped: torch.Tensor = whitened * torch.tensor(deviations) + torch.tensor(mean)
    return shaped


def test_fid_of_gaussians_is_the_closed_form() -> None:
    a = normals(500, [0.0, 0.0, 0.0], [1.0, 2.0, 0.5], seed=1)
    b = normals(700, [1.0, -2.0, 0.0], [1.5, 1.0, 0.5], seed=2)
    # |difference of means|^2 + sum of squared differences of the deviations, where covariances share their axes.
    expected = 1.0 + 4.0 + 0.5**2 + 1.0**2
    assert fid(a, b) == pytest.approx(expected, abs=1e-6)
    assert fid(a, normals(900, [0.0, 0.0, 0.0], [1.0, 2.0, 0.5], seed=3)) == pytest.approx(0.0, abs=1e-6)


def test_few_images_raise_fid_and_not_kid() -> None:
    """Why small FIDs are refused: two sets of one distribution seem apart, the more so the fewer there are."""
    generator = torch.Generator().manual_seed(4)

    def drawn(num: int) -> torch.Tensor:
        return torch.randn(num, 32, generator=generator)

    reference = drawn(600)
    few, many = fid(drawn(64), reference), fid(drawn(600), reference)
    assert few > 5 * many
    kids = [kid_by_groups(drawn(64), reference, [32] * 2)[0] for _ in range(20)]
    assert abs(float(np.mean(kids))) < 2 * float(np.std(kids)) / math.sqrt(20)


def test_kid_by_hand() -> None:
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    y = torch.tensor([[2.0, 0.0], [0.0, 0.0]])

    def kernel(a: torch.Tensor, b: torch.Tensor) -> float:
        return float(a @ b / 2 + 1) ** 3

    within = sum(kernel(x[i], x[j]) for i in range(3) for j in range(3) if i != j) / 6
    among = sum(kernel(y[i], y[j]) for i in range(2) for j in range(2) if i != j) / 2
    across = sum(kernel(a, b) for a in x for b in y) / 6
    value, pseudo = kid_by_groups(x, y, [1, 1, 1])
    assert value == pytest.approx(within + among - 2 * across)
    without_first = kernel(x[1], x[2]) + among - 2 * sum(kernel(a, b) for a in x[1:] for b in y) / 4
    assert pseudo[0] == pytest.approx(3 * value - 2 * without_first)


def test_kid_is_the_library_s_where_both_sets_are_equally_large() -> None:
    from torchmetrics.image.kid import poly_mmd

    generator = torch.Generator().manual_seed(5)
    a, b = (torch.randn(40, 12, generator=generator).double() for _ in range(2))
    value, _ = kid_by_groups(a, b + 0.3, [4] * 10)
    assert value == pytest.approx(float(poly_mmd(a, b + 0.3)), rel=1e-9)


def test_the_spread_of_kid_is_told_rightly() -> None:
    """The jackknife's error over groups against that of fresh draws."""
    generator = torch.Generator().manual_seed(6)
    reference = torch.randn(400, 4, generator=generator)
    values, errors = [], []
    for _ in range(60):
        # Four seeds of each of 16 prompts: prompts differ more than seeds.
        prompts = torch.randn(16, 1, 4, generator=generator) + 0.5
        features = (prompts + 0.3 * torch.randn(16, 4, 4, generator=generator)).flatten(0, 1)
        value, pseudo = kid_by_groups(features, reference, [4] * 16)
        values.append(value)
        errors.append(float(np.std(pseudo, ddof=1)) / 4)
    assert float(np.mean(errors)) == pytest.approx(float(np.std(values, ddof=1)), rel=0.25)


def test_small_fids_are_refused_with_what_to_type() -> None:
    data = MadeData(training_images=noise_images(2, 8))
    why = Fid().why_absent(made_setting(data=data, prompts=["a", "b"], num_seeds=8))
    assert why is not None
    assert "16 images" in why
    assert "--seeds 500" in why
    assert "--metrics kid" in why


class Wide(PooledPixels):
    num_features = 2048


def test_more_features_need_more_images() -> None:
    assert fewest_images(48) == 1000
    assert fewest_images(2048) == 5120
    many = MadeData(training_images=[noise_images(1, 8)[0]] * 4096)
    setting = made_setting(data=many, prompts=["a"] * 16, num_seeds=64)
    assert setting.num_samples == 1024
    assert Fid().why_absent(setting) is None
    setting.__dict__["extractor"] = Wide()
    assert "5,120" in (Fid().why_absent(setting) or "")


def test_too_few_training_images_are_a_reason_too() -> None:
    setting = made_setting(data=MadeData(training_images=noise_images(40, 8)), prompts=["a"] * 16, num_seeds=64)
    assert "40 training images" in (Fid().why_absent(setting) or "")


def test_kid_needs_prompts_and_images() -> None:
    data = MadeData(training_images=noise_images(40, 8))
    assert "--seeds 8" in (Kid().why_absent(made_setting(data=data, prompts=list("abcd"), num_seeds=2)) or "")
    assert "only 2" in (Kid().why_absent(made_setting(data=data, prompts=list("ab"), num_seeds=64)) or "")
    assert Kid().why_absent(made_setting(data=data, prompts=list("abcd"), num_seeds=8)) is None


@pytest.mark.parametrize("metric", [Kid(), Fid()])
def test_without_a_run_it_says_which_images_are_missing(metric: Kid | Fid) -> None:
    why = metric.why_absent(made_setting(data=None))
    assert why == "it compares samples with training images, and a model without a run has none. Evaluate a run"


def test_kid_is_larger_of_other_images() -> None:
    data = MadeData(training_images=smooth_images(64, seed=1))
    setting = made_setting(data=data, prompts=list("abcdefgh"), num_seeds=4)
    (alike,) = Kid().measure(setting, in_groups(smooth_images(32, seed=2), 4), None)
    (other,) = Kid().measure(setting, in_groups(noise_images(32, seed=2), 4), None)
    assert alike.numbers.value is not None
    assert other.numbers.value is not None
    assert other.numbers.value > alike.numbers.value
    assert len(alike.groups) == 8
