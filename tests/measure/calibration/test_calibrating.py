"""What is measured, and the profile it becomes."""

from collections.abc import Callable, Hashable
from typing import Any

import pytest
import torch

from foretune.core.observer import Observer
from foretune.core.values.device_profile import BUSY_SPREAD, DeviceProfile, Dispatch, KernelTime
from foretune.measure.calibration import calibrating
from foretune.measure.calibration.calibrating import Threads, calibrate_device, points_of
from foretune.measure.calibration.dispatching import measure_dispatch
from foretune.measure.calibration.pieces import Kernels, Key
from foretune.measure.calibration.pool import Pool
from foretune.measure.calibration.rounds import Rounds
from foretune.measure.calibration.sizes import ON_CPU, Convolution, Sizes
from foretune.measure.calibration.stopwatches import HostStopwatch
from foretune.training.busyness import BusyWatch
from tests.virtual_clock import VirtualClock

CPU = torch.device("cpu")
FEW = Sizes(
    products=((64, 16, 32),),
    batched_products=((2, 8, 8, 8),),
    attention=((2, 16, 32, 8),),
    convolutions=(Convolution(2, 3, 5, 8),),
    memory_bytes=(2**14,),
)
DISPATCH = Dispatch(call=KernelTime(2e-6, 0), backward_call=KernelTime(3e-5, 0), with_autograd=KernelTime(8e-6, 0))


def pieces_of_few() -> dict[Any, Any]:
    kernels = Kernels(CPU, 2**16)
    made = [*kernels.products("fp32", FEW), *kernels.attention("fp32", FEW), *kernels.convolutions("fp32", FEW)]
    return {piece.key: piece for piece in (*made, *kernels.memory(FEW))}


def test_sizes_of_convolutions_differ() -> None:
    """Two of one size would be one point, whose time is that of the faster."""
    sizes = [convolution.as_product for convolution in ON_CPU.convolutions]
    assert len(set(sizes)) == len(sizes)


def test_dispatch_of_every_kind_is_measured() -> None:
    """A block that is recomputed issues other operators, and the update goes from tensor to tensor."""
    found = measure_dispatch(CPU, budget_s=0.0)
    seconds = [timing.seconds for _, timing in found if timing is not None]
    assert len(seconds) == len(Dispatch.model_fields)
    assert min(seconds) > 0


@torch.no_grad()
def test_pieces_compute_what_their_keys_say() -> None:
    found = pieces_of_few()
    product = found[Key("product", "fp32", (1, 64, 16, 32))]
    assert product.work == 64 * 16 * 32
    assert [prepare()().shape for prepare in product.variants] == [(64, 16)] * 3, "three layouts, one result"
    assert found[Key("product", "fp32", (2, 8, 8, 8))].variants[0]()().shape == (2, 8, 8)
    forward = found[Key("attention", "fp32", (2, 16, 32, 8))].variants[0]()
    assert forward().shape == (1, 2, 16, 8)
    gradients = found[Key("attention", "fp32", (2, 16, 32, 8), True)].variants[0]()
    for _ in range(2):
        assert [tuple(g.shape) for g in gradients()] == [(1, 2, 16, 8), (1, 2, 32, 8), (1, 2, 32, 8)]
    as_product = Convolution(2, 3, 5, 8).as_product
    assert as_product == (2 * 64, 5, 27)
    assert found[Key("convolution", "fp32", as_product)].variants[0]()().shape == (2, 5, 8, 8)
    image, weight = found[Key("convolution", "fp32", as_product, True)].variants[0]()()
    assert (image.shape, weight.shape) == ((2, 3, 8, 8), (5, 3, 3, 3))
    for operator in ("add", "layer_norm", "gelu", "cast"):
        (key,) = (key for key in found if key.number_format == operator)
        out = found[key].variants[0]()()
        assert abs(key.sizes[0] - 2**14) < 2**12, "a whole number of rows"
        assert out.numel() % 256 == 0


def test_operands_come_from_other_memory_each_time() -> None:
    pool = Pool(CPU, torch.float32, window_bytes=2**16)
    places = []
    for _ in range(40):
        one, other = pool.take((8, 100), (100, 3))
        assert one.data_ptr() + one.nbytes <= other.data_ptr()
        assert bool(one.isfinite().all())
        places.append(one.data_ptr())
    assert len(set(places)) > 10
    assert len(set(places)) < 40, "after the window from its beginning again"


def test_the_call_is_not_part_of_a_kernel_on_a_cpu() -> None:
    timings: dict[Hashable, KernelTime] = {
        Key("product", "fp32", (1, 4, 4, 4)): KernelTime(1e-5, 0.1),
        Key("attention", "fp32", (1, 16, 16, 16), True): KernelTime(1e-4, 0.1),
        Key("memory", "add", (4096,)): KernelTime(2.1e-6, 0.1),
    }
    on_cpu = points_of(timings, DISPATCH)
    assert on_cpu["products"][0].timing.seconds == pytest.approx(8e-6)
    assert on_cpu["attention"][0].timing.seconds == pytest.approx(7e-5)
    assert on_cpu["memory"][0].timing.seconds == pytest.approx(2.1e-7), "something always remains"
    elsewhere = points_of(timings, None)
    assert elsewhere["products"][0].timing.seconds == pytest.approx(1e-5)


def test_of_two_directions_of_a_copy_the_slower_counts() -> None:
    timings: dict[Hashable, KernelTime] = {
        Key("copy", way, (100,)): KernelTime(seconds, 0) for way, seconds in (("to host", 2.0), ("to device", 1.0))
    }
    (point,) = points_of(timings, None)["copies"]
    assert point.timing.seconds == 2.0


def test_one_thread_is_measured_by_its_own_processor_time() -> None:
    clock = VirtualClock()
    assert HostStopwatch(1, clock)(lambda: clock.advance(3)) == 3
    assert HostStopwatch(1)._now is not HostStopwatch(2)._now


def calibrated(
    monkeypatch: pytest.MonkeyPatch,
    spread: float,
    num_rounds: int = 5,
    num_threads: int = 3,
    warnings: tuple[str, ...] = (),
) -> DeviceProfile:
    """A profile without measuring: every piece has the same time and this spread."""

    def rounds(pieces: list[Any], *_: Any) -> Rounds:
        return Rounds({piece.key: KernelTime(1e-3, spread) for piece in pieces}, num_rounds)

    def probed(device: Any, number_format: str, stopwatch: Callable[..., float]) -> float | None:
        return {"fp32": 1e-3, "bf16": 5e-3, "fp16": 20e-3}[number_format]

    monkeypatch.setattr(calibrating, "measure_in_rounds", rounds)
    monkeypatch.setattr(calibrating, "measure_dispatch", lambda *_: DISPATCH)
    monkeypatch.setattr(calibrating, "_probed", probed)
    monkeypatch.setattr(BusyWatch, "warnings", lambda _: list(warnings))
    return calibrate_device(CPU, Threads(num_threads, is_default=False), 45.0, Observer())


def test_a_format_that_is_ten_times_as_slow_is_measured_at_few_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    profile = calibrated(monkeypatch, spread=0.05)
    assert profile.slow_formats == ("fp16",)
    num = {name: sum(p.number_format == name for p in profile.products) for name in ("fp32", "bf16", "fp16")}
    assert num["fp32"] > num["bf16"] > num["fp16"] > 0
    assert {point.number_format for point in profile.attention} == {"fp32", "bf16"}
    assert (profile.num_threads, profile.is_default_threads, profile.kind) == (3, False, "cpu")
    assert DeviceProfile.from_json(profile.to_json()) == profile


def test_a_busy_machine_is_in_the_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    quiet = calibrated(monkeypatch, spread=BUSY_SPREAD / 2)
    assert not quiet.is_busy
    assert quiet.warnings == ()
    busy = calibrated(monkeypatch, spread=0.8)
    assert busy.is_busy
    assert "The machine was busy: half of the samples took 80 % longer" in busy.warnings[0]


def test_other_programs_slow_several_threads_down(monkeypatch: pytest.MonkeyPatch) -> None:
    others = ("Other processes use 1.0 of 2 cores",)
    assert calibrated(monkeypatch, spread=0.05, warnings=others).is_busy
    alone = calibrated(monkeypatch, spread=0.05, warnings=others, num_threads=1)
    assert (alone.is_busy, alone.warnings) == (False, ())


def test_too_short_a_time_is_in_the_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "too short" in calibrated(monkeypatch, spread=0.1, num_rounds=1).warnings[0]


@pytest.mark.gpu
@pytest.mark.takes_turns
def test_a_gpu_is_measured_without_the_host() -> None:
    profile = calibrate_device(
        torch.device("cuda"), Threads(torch.get_num_threads(), is_default=True), 10.0, Observer()
    )
    assert profile.kind in ("cuda", "rocm")
    assert {point.number_format for point in profile.products} >= {"bf16", "fp32"}
    assert profile.copies
    smallest = min(profile.products, key=lambda point: point.batch * point.m * point.n * point.k)
    assert smallest.timing.seconds < profile.dispatch.with_autograd.seconds * 10
