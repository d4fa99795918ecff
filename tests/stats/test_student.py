"""Student's t against tables."""

import math

import pytest

from foretune.stats.student import student_cdf, student_quantile


@pytest.mark.parametrize(
    ("probability", "df", "value"),
    [
        (0.975, 1, 12.7062),
        (0.975, 2, 4.3027),
        (0.95, 5, 2.0150),
        (0.975, 9, 2.2622),
        (0.99, 18, 2.5524),
        (0.975, 30, 2.0423),
        (0.975, 1e6, 1.9600),
    ],
)
def test_quantiles_are_those_of_the_tables(probability: float, df: float, value: float) -> None:
    assert student_quantile(probability, df) == pytest.approx(value, abs=5e-5)
    assert student_quantile(1 - probability, df) == pytest.approx(-value, abs=5e-5)


@pytest.mark.parametrize("df", [0.7, 1, 3.3, 12, 250])
def test_quantile_and_distribution_are_inverse(df: float) -> None:
    for probability in (0.01, 0.3, 0.6, 0.999):
        assert student_cdf(student_quantile(probability, df), df) == pytest.approx(probability, abs=1e-9)


def test_one_degree_of_freedom_is_cauchys() -> None:
    assert student_cdf(1.7, 1) == pytest.approx(0.5 + math.atan(1.7) / math.pi)
