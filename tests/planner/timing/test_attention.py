"""Times of fused attention against measured kernels and published rates."""

import math
from statistics import median

import pytest

from foretune.catalog.devices import devices
from foretune.catalog.kernel_tables import AttentionFit, SdpaKernel, estimates, kernel_table, kernel_table_names
from foretune.planner.timing.attention import MASKED_BACKWARD, MASKED_FORWARD, attention_times
from foretune.planner.timing.device_speed import speed_of
from foretune.planner.timing.formulas import attention_us, best_rate, padded_head_dim
from foretune.planner.timing.speed import NotKnown

# Device, kernel, batch, heads, tokens, head size, measured microseconds.
MEASURED = (
    ("h100-sxm", 1, 24, 4096, 64, 221.0),
    ("l40s", 2, 16, 1024, 64, 47.27),
    ("l40s", 2, 16, 4096, 64, 686.6),
    ("l40s", 1, 16, 4096, 80, 567.5),
    ("l40s", 2, 16, 4096, 80, 1221.0),
    ("rtx-pro-6000", 1, 16, 1024, 64, 23.31),
    ("rtx-pro-6000", 1, 16, 16384, 64, 2953.0),
    ("b200", 4, 24, 4096, 72, 652.7),
)
# FlashAttention-3 (arXiv:2407.08608): H100, 2048 features in all heads, 16,384 tokens in all samples.
PUBLISHED_TFLOPS = (
    ("flash_attention_2", 64, 4096, 321),
    ("flash_attention_2", 128, 4096, 368),
    ("flash_attention_2", 128, 16384, 370),
    ("cudnn", 64, 4096, 408),
    ("cudnn", 128, 4096, 609),
    ("cudnn", 128, 16384, 595),
)
FIT = AttentionFit("fa2", "", 2.0, 0.0, 100.0, 1.0, {64: 0.5, 128: 0.8}, 0.0, 0.0)


def test_the_formula_is_near_measured_kernels() -> None:
    errors = []
    for name, batch, heads, tokens, size, time_us in MEASURED:
        table, flops = kernel_table(name), devices()[name].bf16_dense_tflops
        assert table is not None
        assert flops is not None
        found = attention_us(table.attention, batch * heads, tokens, tokens, size, flops_per_s=flops * 1e12)
        errors.append(abs(math.log(found / time_us)))
    assert median(errors) < 0.08
    assert max(errors) < 0.30


@pytest.mark.parametrize(("sdpa", "size", "tokens", "tflops"), PUBLISHED_TFLOPS)
def test_hopper_runs_what_torch_runs(sdpa: SdpaKernel, size: int, tokens: int, tflops: float) -> None:
    batch, heads = 16384 // tokens, 2048 // size
    time_s = attention_times(devices()["h100-sxm"], sdpa).seconds(batch, heads, tokens, tokens, size, is_backward=False)
    assert 4 * batch * heads * tokens**2 * size / time_s == pytest.approx(tflops * 1e12, rel=0.10)


def test_the_backward_pass_runs_at_the_published_rate() -> None:
    # Five products: 2.5 times the operations; FlashAttention 2 reaches 310 TFLOPS, cuDNN 499.
    flops = 2.5 * 4 * 4 * 16 * 4096**2 * 128
    rates: dict[SdpaKernel, float] = {"flash_attention_2": 310, "cudnn": 499}
    for sdpa, tflops in rates.items():
        times = attention_times(devices()["h100-sxm"], sdpa)
        time_s = times.seconds(4, 16, 4096, 4096, 128, is_backward=True)
        assert flops / time_s == pytest.approx(tflops * 1e12, rel=0.10)


def test_blocks_run_in_waves() -> None:
    """A hundred blocks run at once: the next one begins another wave."""
    one = attention_us(FIT, 100, 128, 1000, 64, flops_per_s=1e14)
    assert one == pytest.approx(2 + 4 * 128 * 64 * 1000 * 100 / 0.5e14 * 1e6)
    assert attention_us(FIT, 1, 128, 1000, 64, flops_per_s=1e14) == one
    assert attention_us(FIT, 101, 128, 1000, 64, flops_per_s=1e14) - 2 == pytest.approx(2 * (one - 2))
    assert attention_us(FIT, 200, 129, 1000, 64, flops_per_s=1e14) - 2 == pytest.approx(4 * (one - 2))


def test_head_sizes_are_padded_to_what_kernels_are_built_for() -> None:
    assert [padded_head_dim(FIT, size) for size in (40, 64, 72, 128, 160, 256, 512)] == [
        64,
        64,
        128,
        128,
        192,
        256,
        512,
    ]
    pooled = estimates().attention
    assert padded_head_dim(pooled, 72) == padded_head_dim(pooled, 80) == 96


def test_short_text_is_bound_by_memory_or_latency_not_by_products() -> None:
    times = attention_times(devices()["l40s"], "cudnn")
    cross = times.seconds(8, 24, 16384, 8, 64, is_backward=False)
    moved = 8 * 24 * 64 * 4 * (16384 + 8)
    assert cross >= moved / 864e9


def test_without_a_table_it_is_near_flash_attention_2_elsewhere() -> None:
    """The pooled formula against each card that it was made from, at shapes of training."""
    pooled = estimates().attention
    errors = []
    for name in ("a100-80gb-sxm", "l40s", "rtx-pro-6000"):
        own, rate = attention_times(devices()[name], "cudnn"), best_rate(devices()[name], "bf16")
        for heads, tokens, size in ((24, 4096, 128), (48, 1024, 64), (16, 16384, 128)):
            alone = attention_us(pooled, heads, tokens, tokens, size, flops_per_s=rate)
            fitted = own.seconds(1, heads, tokens, tokens, size, is_backward=False) * 1e6
            errors.append(abs(math.log(alone / fitted)))
    assert median(errors) < 0.20
    assert max(errors) < 0.30


def test_fits_keep_their_errors() -> None:
    for name in kernel_table_names():
        table = kernel_table(name)
        assert table is not None
        assert table.attention.median_error < 0.07
        assert table.attention.p90_error < 0.24


def test_consumer_cards_and_unknown_ones() -> None:
    times = attention_times(devices()["rtx-4090"], "cudnn")
    rate = 4 * 24 * 4096**2 * 128 / times.seconds(1, 24, 4096, 4096, 128, is_backward=False)
    assert 0.7 * 165.2e12 < rate < 165.2e12
    with pytest.raises(NotKnown, match="GPUs"):
        attention_times(devices()["laptop-cpu-8core"], "cudnn")


def test_a_mask_forces_a_slower_kernel_where_flash_attention_runs() -> None:
    """cuDNN takes masks; FlashAttention 2 does not."""

    def over_unmasked(name: str, sdpa: SdpaKernel, *, is_backward: bool) -> float:
        speed = speed_of(devices()[name], sdpa)
        masked_s = speed.attention_s(1, 24, 4096, 4096, 128, is_backward=is_backward, is_masked=True)
        return masked_s / speed.attention_s(1, 24, 4096, 4096, 128, is_backward=is_backward)

    assert over_unmasked("l40s", "cudnn", is_backward=False) == pytest.approx(MASKED_FORWARD)
    assert over_unmasked("l40s", "cudnn", is_backward=True) == pytest.approx(MASKED_BACKWARD)
    assert over_unmasked("h100-sxm", "flash_attention_2", is_backward=False) == pytest.approx(MASKED_FORWARD)
    for name in ("h100-sxm", "b200", "mi300x"):
        assert over_unmasked(name, "cudnn", is_backward=True) == 1
