"""Formulas fitted to measured kernel times: `tools.kernel_tables` stores what comes out."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from statistics import fmean, median, quantiles

from foretune.catalog.devices import Device
from foretune.catalog.kernel_tables import AttentionFit, HeldOutFit, ProductFit
from foretune.planner.timing.formulas import attention_us, bandwidth, best_rate, best_share, product_us
from foretune.planner.timing.speed import ProductFormat

Point = tuple[float, ...]
Attention = tuple[int, int, int, float]
"""Heads of all samples, tokens, head size, microseconds."""
ByHeadSize = Mapping[int, Sequence[Attention]]

_FITTED_AT_MOST = 500
_SMALLEST_ROWS, _SMALLEST_SIDE = 64, 256
_LONG_TOKENS, _MANY_HEADS = 2048, 16
_PADDED = {64: 64, 72: 96, 80: 96, 128: 128}
"""Kernels are built for these head sizes; 72 and 80 are computed as 96."""


@dataclass(frozen=True)
class Errors:
    """Of times, as ratios: 0.1 is ten percent too long or too short."""

    median: float
    p90: float

    @classmethod
    def of(cls, pairs: Sequence[tuple[float, float]]) -> "Errors":
        """Of predicted and measured times."""
        errors = [abs(math.log(predicted / measured)) for predicted, measured in pairs]
        return cls(median=median(errors), p90=quantiles(errors, n=10)[-1])


def thinned(rows: Sequence[Point]) -> list[Point]:
    """Some of the rows, few enough to fit in seconds; always the same ones."""
    return Random(0).sample(list(rows), min(len(rows), _FITTED_AT_MOST))


def minimum(loss: Callable[[Point], float], start: Point, rounds: int = 300) -> Point:
    """Positive parameters with the least loss, by the simplex of Nelder and Mead on their logarithms."""

    def lost(logs: Point) -> float:
        return loss(tuple(math.exp(log) for log in logs))

    origin = tuple(math.log(value) for value in start)
    corners = [origin] + [
        tuple(log + (0.3 if index == moved else 0) for index, log in enumerate(origin)) for moved in range(len(start))
    ]
    simplex = sorted((lost(corner), corner) for corner in corners)
    for _ in range(rounds):
        centre = tuple(fmean(values) for values in zip(*(corner for _, corner in simplex[:-1]), strict=True))
        worst = simplex[-1]

        def towards(share: float, centre: Point = centre, worst: tuple[float, Point] = worst) -> tuple[float, Point]:
            corner = tuple(c + share * (c - w) for c, w in zip(centre, worst[1], strict=True))
            return lost(corner), corner

        found = towards(1)
        if found < simplex[0]:
            found = min(found, towards(2))
        elif found >= simplex[-2]:
            found = min(towards(0.5 if found < worst else -0.5), worst)
        if found is worst:
            best = simplex[0][1]
            shrunk = [tuple((a + b) / 2 for a, b in zip(best, corner, strict=True)) for _, corner in simplex[1:]]
            simplex = sorted([simplex[0], *((lost(corner), corner) for corner in shrunk)])
        else:
            simplex = sorted([*simplex[:-1], found])
    return tuple(math.exp(log) for log in simplex[0][1])


def _product_fit(parameters: Point) -> ProductFit:
    return ProductFit(*(round(value, 4) for value in parameters))


def product_pairs(
    fit: ProductFit, device: Device, number_format: ProductFormat, rows: Sequence[Point]
) -> list[tuple[float, float]]:
    """Times by the formula, and measured ones."""
    rates = {"flops_per_s": best_rate(device, number_format), "bytes_per_s": bandwidth(device)}
    return [(product_us(fit, (m, n, k), number_format, **rates), measured) for m, n, k, measured in rows]


def training_shapes(rows: Sequence[Point]) -> list[Point]:
    """Shapes like those of a training step: the ones that errors are reported for."""
    return [row for row in rows if row[0] >= _SMALLEST_ROWS and min(row[1], row[2]) >= _SMALLEST_SIDE]


def fit_products(number_format: ProductFormat, tables: Mapping[Device, Sequence[Point]]) -> ProductFit:
    """One formula for all devices; each architecture counts the same, however many devices it has."""
    few = {device: thinned(training_shapes(rows)) for device, rows in tables.items()}
    architectures = {device.arch for device in few}

    def loss(parameters: Point) -> float:
        fit = ProductFit(*parameters)
        lost = {
            device: fmean(abs(math.log(p / q)) for p, q in product_pairs(fit, device, number_format, rows))
            for device, rows in few.items()
        }
        return fmean(fmean(value for d, value in lost.items() if d.arch == arch) for arch in architectures)

    return _product_fit(minimum(loss, (3, 0.15, 0.9, 0.85), rounds=120))


def held_out_fits(
    number_format: ProductFormat, tables: Mapping[Device, Sequence[Point]], groups: Sequence[Sequence[str]]
) -> list[HeldOutFit]:
    """The formula without each group of devices, and its errors on the group."""
    found = []
    for group in groups:
        left_out = {device: rows for device, rows in tables.items() if device.name in group}
        rest = {device: rows for device, rows in tables.items() if device.name not in group}
        if not left_out or not rest:
            continue
        fit = fit_products(number_format, rest)
        errors = Errors.of(
            [
                pair
                for device, rows in left_out.items()
                for pair in product_pairs(fit, device, number_format, training_shapes(rows))
            ]
        )
        names = tuple(device.name for device in left_out)
        found.append(HeldOutFit(names, fit, round(errors.median, 4), round(errors.p90, 4)))
    return found


def _attention_pairs(
    fit: AttentionFit, device: Device, rows: Sequence[Point], *, causal: bool
) -> list[tuple[float, float]]:
    flops = (device.bf16_dense_tflops or 0) * 1e12
    # Under a causal mask a block of queries walks along half of the keys on average.
    return [
        (attention_us(fit, heads, tokens, tokens / 2 if causal else tokens, size, flops_per_s=flops), measured)
        for heads, tokens, size, measured in rows
    ]


def _fitted_shape(
    device: Device, rows: Sequence[Point], sizes: Sequence[int], kernel: str, *, causal: bool
) -> AttentionFit:
    few = thinned(rows)

    def made(parameters: Point) -> AttentionFit:
        latency_us, extra_keys, slots, blend, *shares = parameters
        efficiency = dict(zip(sizes, shares, strict=True))
        return AttentionFit(
            kernel, "causal" if causal else "no mask", latency_us, extra_keys, slots, min(blend, 1), efficiency, 0, 0
        )

    def loss(parameters: Point) -> float:
        return fmean(abs(math.log(p / q)) for p, q in _attention_pairs(made(parameters), device, few, causal=causal))

    starts = [(4.0, 200.0, slots, 0.5, *(0.5 for _ in sizes)) for slots in (110.0, 150.0, 200.0, 290.0)]
    fit = made(min((minimum(loss, start) for start in starts), key=loss))
    errors = Errors.of(_attention_pairs(fit, device, rows, causal=causal))
    return replace(fit, median_error=errors.median, p90_error=errors.p90)


def ratio_128_to_64(causal: ByHeadSize) -> float:
    """How much faster operations run with head size 128 than with 64, in long sequences of many heads."""
    of_64 = {(heads, tokens): time_us for heads, tokens, _, time_us in causal[64]}
    return median(
        2 * of_64[heads, tokens] / time_us
        for heads, tokens, _, time_us in causal[128]
        if tokens >= _LONG_TOKENS and heads >= _MANY_HEADS and (heads, tokens) in of_64
    )


def _rounded(fit: AttentionFit) -> AttentionFit:
    return replace(
        fit,
        latency_us=round(fit.latency_us, 3),
        extra_keys=round(fit.extra_keys, 1),
        slots=round(fit.slots, 1),
        blend=round(fit.blend, 3),
        efficiency={size: round(share, 4) for size, share in sorted(fit.efficiency.items())},
        median_error=round(fit.median_error, 4),
        p90_error=round(fit.p90_error, 4),
    )


def fit_attention(device: Device, kernel: str, no_mask: ByHeadSize, causal: ByHeadSize) -> AttentionFit:
    """Head sizes 64, 72 and 80 from kernels without a mask; 128 by the ratio of 128 to 64 under a causal mask."""
    rows = [row for size in no_mask for row in no_mask[size]]
    fit = _fitted_shape(device, rows, (64, 96), kernel, causal=False)
    efficiency = {**fit.efficiency, 128: fit.efficiency[64] * ratio_128_to_64(causal)}
    return _rounded(replace(fit, efficiency=efficiency))


def fit_causal_attention(device: Device, kernel: str, causal: ByHeadSize, like: Sequence[AttentionFit]) -> AttentionFit:
    """Where only head size 128 under a causal mask was measured: other sizes as on devices with the same kernel; what
    begins and ends a block too, since under the mask it includes the tiles that the mask cuts.
    """
    fit = _fitted_shape(device, causal[128], (128,), kernel, causal=True)
    shares = {size: fmean(one.efficiency[size] / one.efficiency[128] for one in like) for size in (64, 96, 128)}
    return _rounded(
        replace(
            fit,
            extra_keys=fmean(one.extra_keys for one in like),
            blend=fmean(one.blend for one in like),
            efficiency={size: fit.efficiency[128] * share for size, share in shares.items()},
        )
    )


def pooled_attention(fits: Mapping[Device, AttentionFit]) -> AttentionFit:
    """For devices without a table: efficiencies as shares of the best measured rate."""
    sizes = {size for fit in fits.values() for size in fit.efficiency}
    efficiency = {
        size: fmean(fit.efficiency[size] / best_share(device) for device, fit in fits.items()) for size in sizes
    }
    every = list(fits.values())
    return _rounded(
        AttentionFit(
            kernel=every[0].kernel,
            fitted_to="the mean of " + ", ".join(device.name for device in fits),
            latency_us=fmean(fit.latency_us for fit in every),
            extra_keys=fmean(fit.extra_keys for fit in every),
            slots=fmean(fit.slots for fit in every),
            blend=fmean(fit.blend for fit in every),
            efficiency=efficiency,
            median_error=max(fit.median_error for fit in every),
            p90_error=max(fit.p90_error for fit in every),
        )
    )
