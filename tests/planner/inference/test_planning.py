"""Plans of inference, against weights x bytes, the planner's own kernel times, and each other."""

from typing import Any

import pytest

from foretune import catalog
from foretune.catalog import TRAINABLE
from foretune.core.errors import UserError
from foretune.core.values.inference_plan import InferencePlan
from foretune.planner.asking import devices_named
from foretune.planner.encoders import sampling_pass
from foretune.planner.inference.planning import InferencePlanner
from foretune.planner.inference.question import InferenceQuestion
from foretune.planner.live_memory import find_peak
from foretune.planner.overheads import overhead_for
from foretune.planner.traces import Traces
from foretune.trace.shipped import geometries

MODELS = [name for name, row in catalog.denoisers().items() if row.family_facts.name in TRAINABLE]


def plan(model: str, on: str = "h100-sxm", *, advises: bool = False, **settings: Any) -> InferencePlan:
    (device,) = devices_named(on)
    return InferencePlanner(InferenceQuestion(model=model, **settings), None).plan_on(device, advises=advises)


def part(found: InferencePlan, phase: str, name: str) -> int:
    (memory,) = (one for one in found.phases if one.phase == phase)
    return memory.device_bytes_by_part.get(name, 0)


def seconds(found: InferencePlan) -> Any:
    assert found.time is not None, found.no_time
    return found.time


@pytest.fixture(scope="module")
def flux() -> InferencePlan:
    return plan("flux.1-dev")


def test_all_parts_are_on_the_device_with_two_bytes_a_weight(flux: InferencePlan) -> None:
    names = ("flux.1-dev", "clip-l-text", "t5-v1_1-xxl-encoder", "vae-flux")
    denoiser, *texts, vae = (2 * catalog.component(name).num_params for name in names)
    for phase in ("loading the model", "encoding the prompt", "denoising", "decoding"):
        assert part(flux, phase, "denoiser") == pytest.approx(denoiser, rel=1e-3)
        assert part(flux, phase, "text encoders") == pytest.approx(sum(texts), rel=1e-3)
        assert part(flux, phase, "autoencoder") == pytest.approx(vae, rel=0.01)
    assert flux.worst_phase == "decoding"
    # The last blocks of the decoder at full size: 256 channels in, and 256 and 128 beside it.
    plane = 1024 * 1024 * 2
    assert 2 * 256 * plane <= part(flux, "decoding", "activations") <= 4 * 256 * plane


def test_the_process_is_the_peak_with_workspaces_and_the_context(flux: InferencePlan) -> None:
    overhead = overhead_for(catalog.device("h100-sxm"))
    tensors = max(phase.device_bytes for phase in flux.phases)
    assert flux.allocated_bytes == pytest.approx(tensors + overhead.allocated_bytes, rel=1e-3)
    assert flux.process_bytes == flux.reserved_bytes + overhead.context.likely
    assert flux.allocated_bytes <= flux.reserved_bytes
    assert flux.process_low_bytes < flux.process_bytes < flux.process_high_bytes


def test_the_host_reads_the_files_of_the_denoiser(flux: InferencePlan) -> None:
    assert flux.host is not None
    assert flux.host.bytes_by_part["pages of weight files"] == 2 * catalog.denoiser("flux.1-dev").num_params


def test_times_add_up(flux: InferencePlan) -> None:
    time = seconds(flux)
    assert time.total_s == pytest.approx(time.encoding_s + 28 * time.step_s + time.decoding_s)
    assert (time.passes_per_step, time.samples_per_pass) == (1, 1), "its guidance is distilled"
    assert time.denoising_steps_per_s == pytest.approx(1 / time.step_s)
    assert time.sample_s == pytest.approx(time.total_s)
    assert flux.usd_per_hour is not None
    assert flux.usd_per_thousand == pytest.approx(flux.usd_per_hour * 1000 * time.total_s / 3600)
    more = seconds(plan("flux.1-dev", num_inference_steps=56))
    assert more.total_s - time.total_s == pytest.approx(28 * time.step_s)


def test_a_pass_is_between_the_peak_of_the_device_and_a_third_of_it(flux: InferencePlan) -> None:
    """4,096 latent and 512 text tokens, two operations a weight and token, without attention."""
    flops = 2 * 4608 * 11.9e9
    peak = (catalog.device("h100-sxm").bf16_dense_tflops or 0) * 1e12
    assert flops / peak < seconds(flux).pass_s < 3 * flops / peak


def test_guidance_in_one_batch_doubles_the_samples_and_in_two_passes_the_passes() -> None:
    # A device that computes, so that the host does not hide it.
    one_batch = seconds(plan("sd3.5-large", on="l4"))
    assert (one_batch.passes_per_step, one_batch.samples_per_pass) == (1, 2)
    assert one_batch.step_s == pytest.approx(2 * one_batch.pass_s, rel=0.1)
    two_passes = seconds(plan("wan2.1-t2v-1.3b"))
    assert (two_passes.passes_per_step, two_passes.samples_per_pass) == (2, 1)
    assert two_passes.step_s == pytest.approx(2 * two_passes.pass_s)


@pytest.mark.parametrize(("model", "num_samples"), [("sd3.5-large", 2), ("flux.1-dev", 1)])
def test_activations_are_those_of_a_pass_of_as_many_samples(model: str, num_samples: int) -> None:
    """The pass of SD3 has both halves of guidance; that of FLUX has one."""
    found, geometry = plan(model), geometries()[model]
    positions = geometry.latent_positions(found.height_px, found.width_px, 1)
    sizes = (num_samples, positions, found.num_text_tokens, 0)
    passing = sampling_pass(Traces().forward, model, "bf16", sizes)
    assert part(found, "denoising", "activations") == pytest.approx(find_peak(passing.events).num_bytes, rel=1e-3)


def test_denoising_alone_has_the_denoiser_and_no_guidance() -> None:
    whole, alone = plan("sd3.5-large"), plan("sd3.5-large", only_denoising=True)
    assert {phase.phase for phase in alone.phases} == {"loading the model", "denoising"}
    assert set(alone.phases[-1].device_bytes_by_part) == {"denoiser", "activations"}
    assert part(alone, "denoising", "denoiser") == part(whole, "denoising", "denoiser")
    assert part(alone, "denoising", "activations") < 0.6 * part(whole, "denoising", "activations")
    assert seconds(alone).step_s == seconds(whole).pass_s
    assert (seconds(alone).encoding_s, seconds(alone).decoding_s) == (0, 0)


def test_a_batch_of_two_takes_between_one_and_two_times_as_long(flux: InferencePlan) -> None:
    pair = plan("flux.1-dev", batch_size=2)
    assert 1 < seconds(pair).total_s / seconds(flux).total_s <= 2.001
    assert seconds(pair).sample_s == pytest.approx(seconds(pair).total_s / 2)
    assert flux.allocated_bytes < pair.allocated_bytes < 2 * flux.allocated_bytes


def test_precision_is_bytes_of_every_part(flux: InferencePlan) -> None:
    half, single = (plan("sd3-medium", precision=precision) for precision in ("bf16", "fp32"))
    for phase in ("encoding the prompt", "denoising", "decoding"):
        for name in ("denoiser", "text encoders", "autoencoder"):
            assert part(single, phase, name) == pytest.approx(2 * part(half, phase, name), rel=0.01)
    assert part(single, "decoding", "activations") == 2 * part(half, "decoding", "activations")
    assert seconds(single).pass_s > 2 * seconds(half).pass_s


def test_sdxl_decodes_in_fp32_where_it_computes_in_fp16() -> None:
    half, other = (plan("sdxl-unet", precision=precision) for precision in ("fp16", "bf16"))
    assert part(half, "decoding", "activations") == 2 * part(other, "decoding", "activations")
    assert part(half, "decoding", "denoiser") == part(other, "decoding", "denoiser")
    assert seconds(half).decoding_s > seconds(other).decoding_s


def test_fewer_bits_take_less_memory_and_dequantise_in_each_pass(flux: InferencePlan) -> None:
    dense, int8, nf4 = (
        part(one, "denoising", "denoiser") for one in (flux, *(plan("flux.1-dev", quantize=n) for n in ("int8", "nf4")))
    )
    assert int8 == pytest.approx(dense / 2, rel=0.03)
    assert nf4 < 0.6 * int8
    wide = plan("flux.1-dev", quantize="int8", precision="fp32")
    assert int8 < part(wide, "denoising", "denoiser") < 1.05 * int8, "layers outside of the blocks are not quantised"
    assert seconds(plan("flux.1-dev", quantize="int8")).pass_s > seconds(flux).pass_s


def test_an_adapter_beside_the_weights_takes_memory_and_time(flux: InferencePlan) -> None:
    found = plan("flux.1-dev", adapter_rank=64)
    per_rank = (part(found, "denoising", "denoiser") - part(flux, "denoising", "denoiser")) / 64
    double = plan("flux.1-dev", adapter_rank=128)
    assert part(double, "denoising", "denoiser") - part(flux, "denoising", "denoiser") == pytest.approx(128 * per_rank)
    assert seconds(found).pass_s > seconds(flux).pass_s


def test_offloading_leaves_parts_out(flux: InferencePlan) -> None:
    encoders, model = (plan("flux.1-dev", offload=offload) for offload in ("encoders", "model"))
    assert part(encoders, "encoding the prompt", "denoiser") == 0
    assert part(encoders, "denoising", "text encoders") == 0
    assert part(encoders, "decoding", "denoiser") > 0
    assert part(model, "decoding", "denoiser") == 0
    assert seconds(encoders).total_s == seconds(flux).total_s
    assert (model.time, model.no_time) == (None, plan("flux.1-dev", offload="model").no_time)
    assert model.no_time is not None
    assert "not page-locked" in model.no_time
    assert encoders.process_bytes < flux.process_bytes
    assert model.host is not None
    assert encoders.host is not None
    assert model.host.low_bytes > encoders.host.low_bytes, "all parts wait on the host"


def test_what_makes_it_fit_does() -> None:
    found = plan("flux.1-dev", on="rtx-4090", advises=True)
    assert found.verdict == "does not fit"
    assert [one.changes_the_result for one in found.remedies] == [False, True]
    for remedy in found.remedies:
        settings: dict[str, Any] = remedy.settings
        again = plan("flux.1-dev", on="rtx-4090", **settings)
        assert (again.verdict, again.process_bytes) == (remedy.verdict, remedy.process_bytes)
    batch = plan("sdxl-unet", on="16GiB", batch_size=8, advises=True)
    assert batch.verdict != "fits"
    assert batch.remedies[0].verdict == "fits"


def test_a_compiled_model_has_no_time_and_a_wider_band(flux: InferencePlan) -> None:
    found = plan("flux.1-dev", compile="regional")
    assert (found.time, found.no_time) == (None, "the speed of compiled blocks")
    assert found.usd_per_thousand is None
    assert found.process_high_bytes > flux.process_high_bytes


@pytest.mark.parametrize("model", MODELS)
def test_every_family_is_planned(model: str) -> None:
    found = plan(model)
    assert "denoising" in {phase.phase for phase in found.phases}
    has_time = found.time is not None
    # What has no time says why.
    assert has_time == (found.no_time is None)
    assert has_time or model == "sd2-unet"
    assert InferencePlan.from_mapping(found.to_mapping()) == found


def test_a_model_without_prompts_only_denoises() -> None:
    found = plan("ddpm-cifar10")
    assert {phase.phase for phase in found.phases} == {"loading the model", "denoising"}
    assert (seconds(found).encoding_s, seconds(found).decoding_s) == (0, 0)


def test_what_is_unknown_is_said() -> None:
    assert any("not in the catalogue" in note for note in plan("ovis-image-7b").notes)
    assert any("clip-vit-h-vision" in note for note in plan("wan2.1-i2v-14b").notes)


def test_wrong_questions_say_what_to_type() -> None:
    with pytest.raises(UserError, match="for a model, not for an experiment file"):
        plan("experiment.yaml")
    with pytest.raises(UserError, match="inference is planned on one device"):
        plan("sdxl-unet", on="rtx-4090+rtx-3090")


def test_a_card_without_bf16_gets_a_warning() -> None:
    assert any("--precision fp16" in text for text in plan("sd1.5-unet", on="t4").warnings)
    half = plan("sd1.5-unet", on="t4", precision="fp16")
    assert half.warnings == ()
    # Traces are in bf16, whose speed is not known there; each pass is timed in fp16.
    assert plan("sd1.5-unet", on="t4").time is None
    assert min(seconds(half).encoding_s, seconds(half).pass_s, seconds(half).decoding_s) > 0
