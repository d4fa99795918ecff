"""Growth is found from probes that change a size or two, and refused where it does not hold."""

import pytest

from foretune.core.values.step_trace import Growth
from foretune.trace.growth import IrregularGrowth, Sizes, fit, for_each_sample

PROBES: list[Sizes] = [(2, 64, 16, 4), (3, 64, 16, 8), (2, 128, 16, 4), (2, 64, 32, 4), (5, 256, 48, 2)]
ELSEWHERE: Sizes = (7, 1000, 77, 32)


@pytest.mark.parametrize(
    "function",
    [
        lambda b, n, m, r: 4096,
        lambda b, n, m, r: 2 * b * n * 3072,
        lambda b, n, m, r: b * (n // 4 + m) * 3072 * 2,
        lambda b, n, m, r: (n + m) * 128 * 4,
        lambda b, n, m, r: b * (n + m) * r * 2,
        lambda b, n, m, r: r * 3072 * 4,
        lambda b, n, m, r: b * (n // 4 + m) ** 2,
        lambda b, n, m, r: b * (77 + m) * 4096,
        lambda b, n, m, r: b * 8,
    ],
)
def test_finds_what_a_tensor_can_do(function) -> None:
    growth = fit(PROBES, [function(*sizes) for sizes in PROBES])
    assert growth.at(ELSEWHERE) == pytest.approx(function(*ELSEWHERE), rel=1e-9)


def test_without_an_adapter_nothing_depends_on_its_rank() -> None:
    probes = [(*sizes[:3], 4) for sizes in PROBES]
    assert fit(probes, [b * n for b, n, _, _ in probes]).at(ELSEWHERE) == 7000


@pytest.mark.parametrize(
    "function", [lambda b, n, m, r: b**2 * n, lambda b, n, m, r: n**3 * 1000, lambda b, n, m, r: b * n + r * m * 7 + 1]
)
def test_refuses_what_it_does_not_know(function) -> None:
    with pytest.raises(IrregularGrowth):
        fit(PROBES, [function(*sizes) for sizes in PROBES])


def test_what_grows_with_the_tokens_of_one_sample_is_there_for_each_sample() -> None:
    """All of it, its constant part included; what knows no tokens, such as a weight, is there once."""
    of_a_sample = Growth(terms=((4.0, (0, 0, 0, 0)), (8.0, (0, 1, 0, 0)), (2.0, (0, 0, 1, 0))))
    assert for_each_sample(of_a_sample).at((3, 100, 10, 1)) == 3 * (4 + 8 * 100 + 2 * 10)
    of_a_weight = Growth(terms=((64.0, (0, 0, 0, 1)),))
    assert for_each_sample(of_a_weight).at((3, 100, 10, 2)) == 64 * 2
