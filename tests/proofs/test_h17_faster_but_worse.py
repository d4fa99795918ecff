"""H17: what is faster but worse is called worse, and the same model again is not; a FID of few images is refused."""

from collections import Counter, defaultdict
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from foretune.analyse.run_numbers import TIME
from foretune.choices.model import shipped_folder
from foretune.quality.fid import FEWEST_IMAGES, Fid
from tests.conftest import ProofSize
from tests.proofs.h17_cases import (
    Bench,
    chosen_rank,
    compared,
    is_called_worse,
    is_called_worse_by_means_alone,
    planted,
    write_runs,
)
from tests.proofs.rotation import how_to_repeat, places, turn
from tests.quality.made import MadeData, made_setting, noise_images

MODEL = "foretune-shapes"
NUM_DRAWS = 3
"""Sets of seeds and noise that each planted case is measured with."""
CATCHES_ALL = ("held-out loss", "psnr", "ssim")
"""Metrics that see the whole image, or the loss at every noise level: each of them alone must catch what is planted."""
CATCHES_SOME = ("caption accuracy", "clean drawing")
"""What is drawn and how cleanly: a model may be worse otherwise. Each alone must catch at least half."""
TOO_FEW_IMAGES = ("kid",)
"""From 32 images it shows nothing, and must not call a worse model better."""
SLOW_S, FAST_S = 0.10, 0.07
"""Steps of the whole model, and of the planted one."""
WHOLE_RANK, PLANTED_RANK = 8, 4
pytestmark = pytest.mark.proof


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(shipped_folder(MODEL), tmp_path_factory.mktemp("cache"))


@pytest.mark.takes_turns
def test_h17_faster_but_worse_is_caught(
    bench: Bench, tmp_path: Path, proof_size: ProofSize, report_figure: Callable[[str], None]
) -> None:
    """Each metric alone, against the base and between runs; a routine run takes the next case of the row."""
    cases, number = planted(), turn()
    chosen = [cases[place % len(cases)] for place in places(number, proof_size(len(cases), 1))]
    answers: dict[str, Counter[str]] = defaultdict(Counter)
    preferred: dict[str, list[str]] = defaultdict(list)
    for case in chosen:
        whole, worse = ([bench.column(draw, one) for draw in range(NUM_DRAWS)] for one in (None, case))
        for base, other in zip(whole, worse, strict=True):
            for difference in compared(base, other):
                answers[difference.metric][difference.answer] += 1
        folder = tmp_path / case.name
        for is_evaluated in (True, False):
            place = folder / ("evaluated" if is_evaluated else "by speed")
            write_runs(place, whole, WHOLE_RANK, SLOW_S, is_evaluated=is_evaluated)
            write_runs(place, worse, PLANTED_RANK, FAST_S, is_evaluated=is_evaluated)
        # The control: without quality the planted one wins, because it is faster.
        assert chosen_rank(folder / "by speed", None) == (PLANTED_RANK, TIME), case.name
        for metric in answers:
            if chosen_rank(folder / "evaluated", metric) != (WHOLE_RANK, metric):
                preferred[metric].append(case.name)
    num = len(chosen) * NUM_DRAWS
    reported = [
        f"{metric} {found['worse']} worse, {found['better']} better, recommended {len(preferred[metric])}"
        for metric, found in answers.items()
    ]
    report_figure(
        f"faster but worse, {len(chosen)} cases ({'all' if len(chosen) == len(cases) else chosen[0].name}) with "
        f"{NUM_DRAWS} seeds, of {num}: {'; '.join(reported)}; {how_to_repeat(number)}"
    )
    assert set(answers) == {*CATCHES_ALL, *CATCHES_SOME, *TOO_FEW_IMAGES}
    assert {metric: found["better"] for metric, found in answers.items() if found["better"]} == {}
    for metric in CATCHES_ALL:
        assert answers[metric]["worse"] >= 0.95 * num, metric
        assert len(preferred[metric]) <= 0.05 * len(chosen), preferred[metric]
    if len(chosen) == len(cases):
        for metric in CATCHES_SOME:
            assert answers[metric]["worse"] >= 0.5 * num, metric


def test_h17_the_same_model_again_is_not_called_worse(
    bench: Bench, proof_size: ProofSize, report_figure: Callable[[str], None]
) -> None:
    columns = [bench.column(draw) for draw in range(proof_size(21, 4))]
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
