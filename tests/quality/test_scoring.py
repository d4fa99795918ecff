"""From raw numbers to answers: which side is better, what is too small to matter, and what cannot be compared."""

import pytest

from foretune.core.scores import SCORES
from foretune.quality.measurement import Groups, Numbers, ScoreReading
from foretune.quality.scoring import DIFFERENCES_CONFIDENCE, differences_of, score_of

# Written out by hand, so that the table of scores is checked too.
BETTER_WHEN_HIGHER = ("caption accuracy", "style", "clean drawing", "clip score", "psnr", "ssim", "ms-ssim")
BETTER_WHEN_LOWER = ("held-out loss", "lpips", "kid", "fid", "copies")
WITHOUT_A_BETTER_SIDE = ("drift psnr", "drift ssim", "nearest ratio", "diversity", "motion", "flicker")

NUM_CLUSTERS = 20


def shares(num_hits: int) -> Groups:
    """Ten outcomes for each prompt, of which about so many are hits; two prompts are never quite alike."""
    return tuple(tuple(float(place < num_hits + number % 2) for place in range(10)) for number in range(NUM_CLUSTERS))


def around(mean: float, spread: float = 0.01) -> Groups:
    """Two values for each prompt; prompts scatter by `spread` to either side of the mean."""
    return tuple((mean + sign, mean + sign) for sign in (spread, -spread) for _ in range(NUM_CLUSTERS // 2))


def measured(metric: str, groups: Groups) -> ScoreReading:
    return ScoreReading.of(metric, "prompt", Numbers(groups=groups))


def low_and_high(metric: str) -> tuple[ScoreReading, ScoreReading]:
    """Two columns of which the second is higher beyond doubt."""
    low, high = (shares(2), shares(7)) if SCORES[metric].is_share else (around(0.2), around(0.7, 0.02))
    return measured(metric, low), measured(metric, high)


def test_every_score_is_on_one_of_the_lists() -> None:
    assert {*BETTER_WHEN_HIGHER, *BETTER_WHEN_LOWER, *WITHOUT_A_BETTER_SIDE} == set(SCORES)


@pytest.mark.parametrize("metric", BETTER_WHEN_HIGHER)
def test_higher_is_better(metric: str) -> None:
    low, high = low_and_high(metric)
    assert [found.answer for found in differences_of([low], [high])] == ["better"]
    assert [found.answer for found in differences_of([high], [low])] == ["worse"]


@pytest.mark.parametrize("metric", BETTER_WHEN_LOWER)
def test_lower_is_better(metric: str) -> None:
    low, high = low_and_high(metric)
    assert [found.answer for found in differences_of([low], [high])] == ["worse"]
    assert [found.answer for found in differences_of([high], [low])] == ["better"]


@pytest.mark.parametrize("metric", WITHOUT_A_BETTER_SIDE)
def test_what_has_no_better_side_gets_no_answer(metric: str) -> None:
    low, high = low_and_high(metric)
    assert differences_of([low], [high]) == ()
    assert score_of(high, "run").higher_is_better is None


def test_the_difference_is_the_run_less_the_base() -> None:
    (found,) = differences_of([measured("psnr", around(20.0))], [measured("psnr", around(21.0, 0.02))])
    assert found.difference == pytest.approx(1.0)
    assert found.low is not None
    assert found.high is not None
    assert 0.98 < found.low < 1.0 < found.high < 1.02
    assert found.num_pairs == NUM_CLUSTERS


@pytest.mark.parametrize(
    ("metric", "base", "spread", "answer"),
    [
        # Half of 0.25 dB either way is as good as nothing; 2 dB either way could be anything.
        ("psnr", 20.0, 0.2, "no difference shown"),
        ("psnr", 20.0, 2.0, "inconclusive"),
        # One percent of the base: what is nothing beside a loss of 10 is much beside one of 0.1.
        ("held-out loss", 10.0, 0.02, "no difference shown"),
        ("held-out loss", 0.1, 0.02, "inconclusive"),
    ],
)
def test_what_is_too_small_to_matter(metric: str, base: float, spread: float, answer: str) -> None:
    run = tuple((base + (spread if number % 2 else -spread),) for number in range(NUM_CLUSTERS))
    (found,) = differences_of([measured(metric, ((base,),) * NUM_CLUSTERS)], [measured(metric, run)])
    assert found.answer == answer


def test_one_prompt_shows_nothing() -> None:
    (found,) = differences_of([measured("psnr", ((20.0,),))], [measured("psnr", ((30.0,),))])
    assert (found.difference, found.low, found.answer) == (10.0, None, "inconclusive")


def test_only_what_both_columns_have_is_compared() -> None:
    low, high = low_and_high("ssim")
    other, absent = measured("psnr", around(20.0)), low.absent("no room")
    assert [found.metric for found in differences_of([low, other], [high])] == ["ssim"]
    assert differences_of([other], [high]) == ()
    assert differences_of([absent], [high]) == ()
    assert differences_of([low], [absent]) == ()


def test_intervals_widen_with_the_number_of_comparisons() -> None:
    """All of them hold at once, so that more metrics do not make a false answer likelier."""
    low, high = low_and_high("ssim")
    others = [measured(metric, around(0.5)) for metric in ("psnr", "lpips", "kid")]
    (alone,) = differences_of([low], [high])
    among = differences_of([low, *others], [high, *others])[0]
    assert alone.confidence == pytest.approx(DIFFERENCES_CONFIDENCE)
    assert among.confidence == pytest.approx(1 - (1 - DIFFERENCES_CONFIDENCE) / 4)
    assert among.low is not None
    assert alone.low is not None
    assert among.low < alone.low


def test_a_score_is_the_mean_of_its_clusters_with_an_interval() -> None:
    found = score_of(measured("psnr", ((10.0, 20.0), (30.0,), (40.0,))), "run")
    assert found.value == pytest.approx((15 + 30 + 40) / 3)
    assert found.raw == (15.0, 30.0, 40.0)
    assert found.num_values == 3
    assert found.low is not None
    assert found.high is not None
    assert found.low < (15 + 30 + 40) / 3 < found.high


def test_a_value_of_the_whole_moves_the_interval_along() -> None:
    groups = around(0.5)
    plain = score_of(measured("kid", groups), "run")
    moved = score_of(ScoreReading.of("kid", "prompt", Numbers(groups=groups, value=0.7)), "run")
    assert plain.low is not None
    assert plain.high is not None
    assert moved.value == pytest.approx(0.7)
    assert moved.low == pytest.approx(plain.low + 0.2)
    assert moved.high == pytest.approx(plain.high + 0.2)
