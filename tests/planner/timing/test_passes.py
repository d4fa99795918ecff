"""Encoders, samples and decoders in a job: their operations are those of the architecture, their times add up."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from foretune import catalog
from foretune.choices.forward_form import ForwardForm
from foretune.core.values.step_trace import StepTrace
from foretune.planner.asking import PlanRequest, asked_of, find_subject
from foretune.planner.planning import Footprint, footprint
from foretune.planner.sizing import size_of
from foretune.planner.timing.device_speed import speed_of
from foretune.planner.timing.job import caching_seconds, job_work, validation_seconds
from foretune.planner.timing.passes import autoencoder_passes, denoising_s, passes_s, text_passes
from foretune.planner.timing.speed import NotKnown
from foretune.planner.timing.step_time import TimedTrace, summed
from foretune.planner.timing.work_times import WorkTimes
from foretune.planner.traces import Traces
from foretune.trace.shipped import read_trace
from tests.planner.asked_plans import plan
from tests.planner.timing.even_speed import EvenSpeed

TERA = 1e12


def footprint_of(model: str, *overrides: str) -> Footprint:
    asked = asked_of(PlanRequest(target=model, overrides=overrides))
    subject = find_subject(asked.model, None)
    return footprint(asked.experiment, subject, size_of(asked.experiment, subject.geometry), Traces())


def flops_of(passes: Iterator[TimedTrace | str]) -> dict[str, float]:
    """By operator."""
    found: dict[str, float] = {}
    for one in passes:
        assert isinstance(one, TimedTrace), f"{one} has no trace"
        for work in one.trace.work:
            found[work.operator] = found.get(work.operator, 0.0) + work.flops.at(one.sizes)
    return found


def sdxl_encoder_flops(side_px: int) -> tuple[float, float]:
    """Convolutions and products of SDXL's encoder by hand, then attention: channels 128, 256, 512, 512."""

    def convolution(inputs: int, outputs: int, side: int, kernel: int = 3) -> float:
        return 2 * kernel**2 * inputs * outputs * side**2

    side, width, total = side_px, 128, convolution(3, 128, side_px)
    for number, channels in enumerate((128, 256, 512, 512)):
        for _ in range(2):
            total += convolution(width, channels, side) + convolution(channels, channels, side)
            total += convolution(width, channels, side, 1) if width != channels else 0
            width = channels
        if number < 3:
            side //= 2
            total += convolution(channels, channels, side)
    total += 4 * convolution(512, 512, side)  # two blocks in the middle
    total += 4 * convolution(512, 512, side, 1)  # projections of attention
    total += convolution(512, 8, side) + convolution(8, 8, side, 1)
    return total, 4 * (side**2) ** 2 * 512


def test_an_autoencoder_has_the_operations_of_its_architecture() -> None:
    found = flops_of(autoencoder_passes(footprint_of("sdxl-unet").run, "encode", 1, 1))
    products, attention = sdxl_encoder_flops(1024)
    assert found["conv"] + found["matmul"] == pytest.approx(products, rel=1e-6)
    assert found["attention"] == pytest.approx(attention, rel=1e-6)


def test_a_text_encoder_has_two_operations_for_each_weight_and_token() -> None:
    run = footprint_of("pixart-sigma-xl2-1024", "data.max_text_tokens=300").run
    found = flops_of(text_passes(replace(run, sizes=(1, run.sizes[1], 512, 0)), 1, 1))
    weights = catalog.component("t5-v1_1-xxl-encoder").num_linear_weight_params
    assert found["matmul"] == pytest.approx(2 * weights * 512, rel=1e-6)
    # 24 layers, 64 heads of 64.
    assert found["attention"] == pytest.approx(4 * 24 * 512**2 * 64 * 64, rel=1e-6)


def test_caching_is_the_passes_of_its_encoders() -> None:
    """1,024 images one at a time, and 1,026 captions in batches of eight: with the prompt and the empty one."""
    found = footprint_of("sdxl-unet", "data.num_samples=1024")
    work, speed, times = job_work(found.run), EvenSpeed(), WorkTimes()
    often = [sum(one.how_often.values()) for one in work.encodings]
    assert often == [1024, 129, 129]
    each = [passes_s([replace(one, how_often={("pass", -1): 1})], speed, times, is_cpu=False) for one in work.encodings]
    assert caching_seconds(work, speed, times) == pytest.approx(1024 * each[0] + 129 * (each[1] + each[2]))
    two = replace(work, num_devices=2)
    assert caching_seconds(two, speed, times) == pytest.approx(caching_seconds(work, speed, times) / 2)


def test_fp32_attention_is_not_as_fast_as_fused_kernels_and_tf32_speeds_convolutions() -> None:
    (encode,) = autoencoder_passes(footprint_of("sdxl-unet").run, "encode", 1, 1)
    assert isinstance(encode, TimedTrace)
    times, card = WorkTimes(), catalog.device("a100-80gb-sxm")
    found = summed(encode, speed_of(card), times)
    # By the data sheet, TF32 has eight times the rate of fp32.
    plain = speed_of(card.model_copy(update={"tf32_dense_tflops": None}))
    assert found.product_s < 0.3 * summed(encode, plain, times).product_s
    assert card.fp32_tflops is not None
    assert found.attention_s > sdxl_encoder_flops(1024)[1] / (card.fp32_tflops * TERA)


def test_a_step_in_tf32_multiplies_faster_than_one_in_fp32() -> None:
    card = speed_of(catalog.device("a100-80gb-sxm"))
    full, fast = (
        sum(
            summed(one, card, WorkTimes()).product_s
            for one in footprint_of("sd1.5-unet", precision).planned_step.traces
        )
        for precision in ("train.precision=fp32", "train.precision=tf32")
    )
    assert fast < 0.3 * full


def test_a_validation_is_its_passes() -> None:
    sampling = ("validate.prompts=[a,b]", "validate.num_inference_steps=10", "data.held_out=0", "method.kind=full")
    found = footprint_of("sdxl-unet", *sampling)
    work, speed, times = found.job, EvenSpeed(), WorkTimes()
    # Both halves of guidance are in one batch.
    assert (work.num_denoising_passes, work.guided_batch) == (20, 2)
    denoising = denoising_s(found.planned_step, 2, speed, times)
    decoding = sum(passes_s([one], speed, times, is_cpu=False) for one in work.decodings)
    assert validation_seconds(work, found.planned_step, speed, times) == pytest.approx(20 * denoising + decoding)
    assert decoding > 0


def test_devices_share_the_held_out_loss_and_one_of_them_samples() -> None:
    held_out = ("validate.prompts=[]", "validate.num_held_out=5", "data.held_out=0.1", "train.batch_size=2")
    found = footprint_of("sd3-medium", *held_out)
    speed, times = EvenSpeed(), WorkTimes()
    once = denoising_s(found.planned_step, 2, speed, times)
    assert found.job.num_denoising_passes == 0
    for num_devices, num_batches in ((1, 3), (2, 2), (4, 1)):
        work = replace(found.job, num_devices=num_devices)
        assert validation_seconds(work, found.planned_step, speed, times) == pytest.approx(num_batches * once)


def test_a_pass_of_the_denoiser_is_the_forward_part_of_its_step() -> None:
    """Of full fine-tuning, the backward pass has two products for each of the forward pass, and 2.5 attentions."""
    found = footprint_of("sd3-medium", "method.kind=full", "train.gradient_accumulation=2")
    forward = [
        (work.operator, work.flops.at(one.sizes) * often / 2)
        for one in found.planned_step.traces
        for work in one.trace.work
        for (part, kind), often in one.how_often.items()
        if part == "pass" and kind == work.kind and work.phase == "forward" and not work.is_recomputed
    ]
    once = sum(flops for _, flops in forward)
    attention = sum(flops for operator, flops in forward if operator == "attention")
    assert summed_model_flops(found) / 2 == pytest.approx(3 * (once - attention) + 3.5 * attention, rel=0.01)
    pass_s = denoising_s(found.planned_step, 1, EvenSpeed(), WorkTimes())
    assert pass_s > once / TERA
    assert denoising_s(found.planned_step, 2, EvenSpeed(), WorkTimes()) == pytest.approx(2 * pass_s, rel=0.1)


def summed_model_flops(found: Footprint) -> float:
    return sum(summed(one, EvenSpeed(), WorkTimes()).model_flops for one in found.planned_step.traces)


@pytest.mark.parametrize(
    ("model", "scale", "passes"),
    [("qwen-image", 4.0, 2), ("qwen-image", 1.0, 1), ("flux.1-dev", 3.5, 1), ("wan2.1-t2v-1.3b", 5.0, 2)],
)
def test_guidance_takes_a_second_pass_where_the_pipeline_makes_one(model: str, scale: float, passes: int) -> None:
    found = footprint_of(model, f"validate.guidance_scale={scale}", "validate.num_inference_steps=10")
    assert found.job.num_denoising_passes == 10 * passes


def test_encoders_in_the_loop_take_time_in_every_step() -> None:
    cached, text, both = (
        plan("sd3-medium", f"levers.cache_text={text}", f"levers.cache_latents={latents}", on="l40s", advice="none")
        for text, latents in (("true", "true"), ("false", "true"), ("false", "false"))
    )
    assert cached.time is not None
    assert text.time is not None
    assert both.time is not None
    assert cached.time.step_s < text.time.step_s < both.time.step_s
    # They are not the model's operations.
    assert cached.time.model_flops == both.time.model_flops
    found = footprint_of("sd3-medium", "levers.cache_text=false")
    encoders = found.timed_step.encoders
    assert len(encoders) == 3
    assert [one.sizes[0] for one in encoders] == [1, 1, 1]
    assert both.cost is not None
    assert cached.cost is not None
    assert both.cost.caching_s == 0
    assert cached.cost.caching_s


def test_quantised_text_encoders_are_dequantised_for_each_caption() -> None:
    plain, quantised = (
        list(text_passes(footprint_of("flux.1-dev", f"quantize.text_encoders={kind}").run, 1, 1))
        for kind in ("none", "nf4")
    )
    for one, other in zip(plain, quantised, strict=True):
        assert isinstance(one, TimedTrace)
        assert isinstance(other, TimedTrace)
        before, after = summed(one, EvenSpeed(), WorkTimes()), summed(other, EvenSpeed(), WorkTimes())
        assert after.product_s == before.product_s
        assert after.bandwidth_s > before.bandwidth_s


def test_tiles_take_a_little_more_than_the_whole() -> None:
    whole, tiled = (encoding_flops(f"levers.vae_tiling={on}") for on in ("false", "true"))
    # The overlaps are computed twice; attention is within a tile only.
    assert whole < tiled < 1.8 * whole


def encoding_flops(override: str) -> float:
    (one,) = autoencoder_passes(footprint_of("flux.1-dev", override).run, "encode", 1, 1)
    assert isinstance(one, TimedTrace)
    return sum(work.flops.at(one.sizes) for work in one.trace.work) * sum(one.how_often.values())


def test_a_component_without_a_trace_is_named_and_not_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    found = footprint_of("sdxl-unet")
    run = replace(found.run, forwards=lambda _: None)
    work = job_work(run)
    assert work.encodings == ()
    assert any("encoding images with vae-sdxl takes no time" in text for text in work.assumptions)
    assert any("clip-l-text encodes captions at the rate of the training step" in text for text in work.assumptions)
    assert work.untimed_flops > 0
    live = footprint_of("sdxl-unet", "levers.cache_text=false")
    monkeypatch.setattr(live.traces, "forward", lambda _: None)
    with pytest.raises(NotKnown, match="clip-l-text"):
        _ = replace(live, run=replace(live.run, forwards=live.traces.forward)).timed_step


def test_traces_of_passes_have_shapes() -> None:
    """All encoders and autoencoders that ship can be timed in the precision of a training in bf16."""
    for row in catalog.denoisers().values():
        system = row.system
        for name in () if system is None else system.text_encoders:
            check_shapes(read_trace(ForwardForm(component=name, kind="text", precision="bf16").slug()))


def check_shapes(trace: StepTrace | None) -> None:
    assert trace is not None
    products: list[Any] = [work for work in trace.work if work.operator in ("matmul", "conv", "attention")]
    assert products
    assert all(work.shape for work in products if work.count)
