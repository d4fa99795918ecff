"""H17: what is faster but worse is called worse, and the same model again is not; a FID of few images is refused."""

from collections.abc import Callable
from itertools import pairwise

import pytest

from foretune.choices.model import shipped_folder
from foretune.run.quality.fid import FEWEST_IMAGES, Fid
from tests.conftest import ProofSize
from tests.proofs.h17_cases import Bench, compared, is_called_worse, is_called_worse_by_means_alone, planted
from tests.run.quality.made import MadeData, made_setting, noise_images

MODEL = "foretune-shapes"
NUM_DRAWS = 4
"""Planted cases take turns with so many sets of seeds and noise."""
pytestmark = pytest.mark.proof


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(shipped_folder(MODEL), tmp_path_factory.mktemp("cache"))


def test_h17_faster_but_worse_is_caught(
    bench: Bench, proof_size: ProofSize, report_figure: Callable[[str], None]
) -> None:
    cases = planted()
    # A tenth: one of each kind.
    numbers = range(len(cases)) if proof_size(2, 1) == 2 else (4, 9)
    missed = [
        cases[number].name
        for number in numbers
        if not is_called_worse(
            compared(bench.whole(number % NUM_DRAWS), bench.column(number % NUM_DRAWS, cases[number]))
        )
    ]
    report_figure(f"faster but worse: {len(numbers) - len(missed)} of {len(numbers)} called worse; missed: {missed}")
    assert len(missed) <= 0.05 * len(numbers), missed


def test_h17_the_same_model_again_is_not_called_worse(
    bench: Bench, proof_size: ProofSize, report_figure: Callable[[str], None]
) -> None:
    columns = [bench.whole(draw) for draw in range(proof_size(21, 4))]
    # Neighbours share a column: each comparison is of two sets of seeds that no other compares.
    pairs = list(pairwise(columns))
    called = sum(is_called_worse(compared(base, other)) for base, other in pairs)
    by_means = sum(is_called_worse_by_means_alone(base, other) for base, other in pairs)
    report_figure(f"the same model again: {called} of {len(pairs)} called worse; by means alone {by_means}")
    assert called <= 0.05 * len(pairs)
    # The control must break the same limit.
    assert by_means > 0.05 * len(pairs)


def test_h17_small_fids_are_refused(report_figure: Callable[[str], None]) -> None:
    data = MadeData(training_images=[noise_images(1, 8)[0]] * 2 * FEWEST_IMAGES)
    sizes = [(num_prompts, num_seeds) for num_prompts in (1, 4, 16, 64) for num_seeds in (1, 2, 4, 8, 15)]
    reasons = [
        Fid().why_absent(made_setting(data=data, prompts=["a"] * prompts, num_seeds=seeds)) for prompts, seeds in sizes
    ]
    refused = sum(reason is not None and "--metrics kid" in reason for reason in reasons)
    report_figure(f"small FIDs: {refused} of {len(sizes)} refused, from 1 to {64 * 15} images")
    assert refused == len(sizes) == 20
    assert Fid().why_absent(made_setting(data=data, prompts=["a"] * 64, num_seeds=16)) is None
