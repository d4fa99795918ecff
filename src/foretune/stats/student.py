"""Student's t: how far a mean of few values may be off."""

import math
from functools import lru_cache
from statistics import NormalDist

_LARGE_DF = 1e5
_TINY = 1e-300
_PRECISION = 1e-12


@lru_cache(maxsize=4096)
def student_quantile(probability: float, df: float) -> float:
    """The value that Student's t with `df` degrees of freedom stays below with this probability."""
    assert 0 < probability < 1
    assert df > 0
    if df >= _LARGE_DF:
        return NormalDist().inv_cdf(probability)
    if probability < 0.5:  # noqa: PLR2004
        return -student_quantile(1 - probability, df)
    low, high = 0.0, 1.0
    while student_cdf(high, df) < probability:
        high *= 2
    while high - low > _PRECISION * high:
        middle = (low + high) / 2
        if middle in {low, high}:
            break
        low, high = (middle, high) if student_cdf(middle, df) < probability else (low, middle)
    return (low + high) / 2


def student_cdf(value: float, df: float) -> float:
    """The probability that Student's t with `df` degrees of freedom stays below a value."""
    tail = _incomplete_beta(df / 2, 0.5, df / (df + value * value)) / 2
    return 1 - tail if value > 0 else tail


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function, by its continued fraction."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )  # fmt: skip
    # The fraction converges quickly on this side of the mean only.
    if x > (a + 1) / (a + b + 2):
        return 1 - front * _beta_fraction(b, a, 1 - x) / b
    return front * _beta_fraction(a, b, x) / a


def _beta_fraction(a: float, b: float, x: float) -> float:
    """Evaluated from the front, after Lentz: no denominator may vanish."""
    c, d = 1.0, 1 - (a + b) * x / (a + 1)
    d = 1 / (d or _TINY)
    value = d
    for m in range(1, 10_000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1 / ((1 + term * d) or _TINY)
            c = (1 + term / c) or _TINY
            value *= c * d
        if abs(c * d - 1) < _PRECISION:
            break
    return value
