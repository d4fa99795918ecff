"""Phases of a run from traces that can be added up by hand."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from foretune import catalog
from foretune.choices.experiment import Experiment
from foretune.choices.forward_form import ForwardForm
from foretune.core.values.step_trace import NEVER, Growth, Moment, StepTrace, Storage, on_host
from foretune.planner.around import RunToPlan
from foretune.planner.block_events import Event
from foretune.planner.encoders import Extent
from foretune.planner.live_memory import find_peak
from foretune.planner.phase_memory import Phase
from foretune.planner.phases import plan_phases, replay_streams, worst_phase
from foretune.planner.streams import by_fate

KIB = 1024
WEIGHTS = {"encode": 3, "decode": 3, "text": 5}
PER_SAMPLE = {"encode": 100, "decode": 70, "text": 40, "sample": 10}
NAMES = ("caching latents", "caching text", "loading", "training step", "validation", "saving")


def forward(form: ForwardForm) -> StepTrace:
    """Some KiB of weights, and for each sample some that come and go."""
    storages = [
        Storage(made=Moment(phase=1), released=Moment(phase=1, position=1), growth=0, category=0),
    ]
    growths = [Growth(terms=((float(PER_SAMPLE[form.kind] * KIB), (1, 0, 0, 0)),))]
    if form.kind != "sample":
        storages.append(Storage(made=Moment(phase=0), released=Moment(phase=NEVER), growth=1, category=1))
        growths.append(Growth(terms=((float(WEIGHTS[form.kind] * KIB), (0, 0, 0, 0)),)))
    return StepTrace(
        model=form.component,
        method=form.kind,
        precision=form.precision,
        checkpointing=0.0,
        numerics="cuda",
        phases=("setup", "forward"),
        backward_phases=(),
        categories=("temporaries", "frozen weights"),
        growths=tuple(growths),
        outside=tuple(storages),
        kinds=(),
        made_with={},
        made_from="",
    )


def nothing_traced(form: ForwardForm) -> StepTrace | None:
    del form
    return None


def step(activations: int = 200, *, accumulates: bool = False) -> list[Event]:
    """A step in KiB: 64 frozen, in 16 tensors, 8 trained, 16 of state, 8 of gradients."""
    held = [
        *(Event(100 + number, 4 * KIB, "frozen weights", "setup") for number in range(16)),
        Event(1, 8 * KIB, "trained weights", "setup"),
        Event(2, 16 * KIB, "optimizer state", "setup"),
    ]
    gradient = [Event(3, 8 * KIB, "gradients", "backward")]
    return [
        *held,
        *(gradient if accumulates else []),
        Event(4, 4 * KIB, "inputs", "inputs"),
        Event(5, activations * KIB, "activations", "forward"),
        *([] if accumulates else gradient),
        Event(5, 0, "activations", "backward"),
        Event(6, 2 * KIB, "temporaries", "optimizer"),
        Event(6, 0, "temporaries", "optimizer"),
        Event(3, 0, "gradients", "optimizer"),
    ]


def phases(
    model: str = "flux.1-dev",
    events: Sequence[Event] | None = None,
    size_px: int = 1024,
    num_images: int | None = None,
    forwards: Any = forward,
    trains_on_host: bool = False,
    **sections: Any,
) -> dict[str, Phase]:
    found = plan_phases(run(model, events, size_px, num_images, forwards, trains_on_host, **sections))
    assert tuple(phase.name for phase in found) == NAMES
    return {phase.name: phase for phase in found}


def run(
    model: str = "flux.1-dev",
    events: Sequence[Event] | None = None,
    size_px: int = 1024,
    num_images: int | None = None,
    forwards: Any = forward,
    trains_on_host: bool = False,
    **sections: Any,
) -> RunToPlan:
    asked = {"model": model, "data": {"kind": "shapes"}, "train": {"steps": 1000}, **sections}
    experiment = Experiment.model_validate(asked)
    positions = (size_px // 8) ** 2
    return RunToPlan(
        experiment=experiment,
        denoiser=catalog.denoiser(model),
        step=by_fate(step() if events is None else events),
        sizes=(experiment.train.batch_size, positions, 512, 16),
        extent=Extent(height_px=size_px, width_px=size_px),
        forwards=forwards,
        num_images=num_images,
        trains_on_host=trains_on_host,
    )


def parts_kib(phase: Phase) -> dict[str, float]:
    return {part: num_bytes / KIB for part, num_bytes in phase.memory.device_bytes_by_part.items()}


def test_parts_add_up_to_the_peak_of_the_events() -> None:
    for phase in phases(validate={"prompts": ["a fish"]}).values():
        assert phase.occurs
        assert phase.memory.device_bytes == find_peak(phase.events, 512).num_bytes > 0


def test_caches_are_filled_by_their_encoders_alone() -> None:
    found = phases()
    # A megapixel at once.
    assert parts_kib(found["caching latents"]) == {"temporaries": 100, "autoencoder": 3}
    # CLIP and T5 are both there; they run one after the other, eight captions at once.
    assert parts_kib(found["caching text"]) == {"temporaries": 8 * 40, "text encoders": 2 * 5}


def test_small_images_are_encoded_eight_at_once() -> None:
    assert parts_kib(phases(size_px=256)["caching latents"])["temporaries"] == 8 * 100
    assert parts_kib(phases(size_px=512)["caching latents"])["temporaries"] == 4 * 100


def test_loading_adds_up_the_bits_of_each_tensor_as_64_bit_numbers() -> None:
    # The largest: 4 KiB of bf16.
    assert parts_kib(phases()["loading"]) == {"frozen weights": 64, "temporaries": 16, "trained weights": 8}


def test_the_step_is_the_steps() -> None:
    assert parts_kib(phases()["training step"]) == {
        "activations": 200, "frozen weights": 64, "optimizer state": 16, "gradients": 8, "trained weights": 8,
        "inputs": 4,
    }  # fmt: skip


def test_encoders_that_are_not_cached_stay_beside_the_step() -> None:
    found = phases(levers={"cache_latents": False, "cache_text": False})
    assert not found["caching latents"].occurs
    assert not found["caching text"].occurs
    plain = parts_kib(phases()["training step"])
    assert parts_kib(found["training step"]) == {**plain, "text encoders": 10, "autoencoder": 3}
    assert parts_kib(found["saving"])["text encoders"] == 10


def test_encoded_data_need_no_encoders() -> None:
    found, plain = phases(data={"kind": "shapes", "encoded": "a-set"}), phases()
    assert [name for name in NAMES if plain[name].occurs and not found[name].occurs] == [
        "caching latents", "caching text"
    ]  # fmt: skip
    assert parts_kib(found["training step"]) == parts_kib(plain["training step"])


def test_a_live_autoencoder_is_there_while_captions_are_cached() -> None:
    assert parts_kib(phases(levers={"cache_latents": False})["caching text"])["autoencoder"] == 3


def test_encoding_in_the_step_can_be_its_peak_and_meets_gradients_that_accumulate() -> None:
    live: dict[str, Any] = {
        "levers": {"cache_latents": False},
        "train": {"steps": 1, "batch_size": 4, "gradient_accumulation": 2},
    }
    found = phases(events=step(activations=20, accumulates=True), **live)
    assert parts_kib(found["training step"]) == {
        "temporaries": 4 * 100, "frozen weights": 64, "optimizer state": 16, "trained weights": 8, "gradients": 8,
        "autoencoder": 3,
    }  # fmt: skip


def test_the_worst_phase_is_named() -> None:
    assert worst_phase(tuple(phases().values())).name == "caching text"
    assert worst_phase(tuple(phases(events=step(activations=2000)).values())).name == "training step"
    sampling = phases(events=step(activations=1), levers={"cache_text": False}, validate={"prompts": ["a fish"]})
    assert sampling["validation"].memory.device_bytes > sampling["training step"].memory.device_bytes
    assert worst_phase(tuple(sampling.values())).name == "training step", "a validation that fails does not end a run"


def test_validation_keeps_what_training_keeps_and_loads_the_autoencoder_for_samples() -> None:
    found = phases(validate={"prompts": ["a fish"]})["validation"]
    # Low copies of 8 KiB of fp32 weights, and decoding one image.
    assert parts_kib(found) == {
        "temporaries": 70, "frozen weights": 64, "optimizer state": 16, "trained weights": 8, "cast weights": 4,
        "autoencoder": 3,
    }  # fmt: skip
    only_loss = parts_kib(phases()["validation"])
    assert only_loss["temporaries"] == 10
    assert "autoencoder" not in only_loss


def test_nothing_to_validate_is_no_validation() -> None:
    assert not phases(validate={"num_held_out": 0})["validation"].occurs
    data = {"kind": "shapes", "held_out": 0}
    assert not phases(data=data)["validation"].occurs
    assert phases(data=data, validate={"prompts": ["a fish"]})["validation"].occurs


@pytest.mark.parametrize(
    ("model", "scale", "num_passes"), [("sd3-medium", None, 2), ("sd3-medium", 1, 1), ("flux.1-dev", None, 1)]
)
def test_guidance_doubles_the_batch_of_some(model, scale, num_passes) -> None:
    def small_autoencoder(form: ForwardForm) -> StepTrace | None:
        return forward(form) if form.kind == "sample" else None

    asked = {"prompts": ["a fish"], "guidance_scale": scale, "num_held_out": 0}
    found = phases(model, forwards=small_autoencoder, validate=asked)["validation"]
    assert parts_kib(found)["temporaries"] == num_passes * 10


def test_a_model_of_pixels_without_text_has_neither_cache() -> None:
    found = phases("ddpm-cifar10", size_px=32, validate={"prompts": ["one"]})
    assert not found["caching latents"].occurs
    assert not found["caching text"].occurs
    assert set(parts_kib(found["validation"])) == {
        "temporaries", "frozen weights", "optimizer state", "trained weights", "cast weights",
    }  # fmt: skip


def test_saving_writes_what_is_trained_and_keeps_one_more_while_it_writes() -> None:
    found = phases(save={"keep": 3})["saving"]
    assert found.memory.disk_bytes == (8 + 16) * KIB * 4
    process_bytes = phases()["training step"].memory.host_bytes
    assert process_bytes is not None
    assert found.memory.host_bytes is not None
    # The optimizer's state is the largest of what is copied, one after the other.
    assert found.memory.host_bytes - (process_bytes - 2 * 4 * KIB) == 16 * KIB


def test_caches_on_disk_grow_with_the_data() -> None:
    data = {"kind": "shapes", "flip": 0.5}
    found = phases(num_images=100, data=data)
    latents, text = found["caching latents"], found["caching text"]
    # Mean and log-variance of 16 channels in fp32, as they are and mirrored.
    assert latents.disk_bytes_per_sample == 2 * 2 * 16 * 128 * 128 * 4
    assert latents.memory.disk_bytes == 100 * latents.disk_bytes_per_sample
    assert text.disk_bytes_per_sample == 0  # this step's inputs are smaller than latents would be
    assert phases(data=data)["caching latents"].memory.disk_bytes is None
    short = phases(num_images=100, data=data, train={"steps": 10, "batch_size": 2})["caching latents"]
    assert short.memory.disk_bytes == 20 * latents.disk_bytes_per_sample


def test_captions_take_what_the_step_is_given_beside_latents() -> None:
    latents_bytes, caption_bytes = 4 * 16 * 128 * 128 * 4, 512 * 4096 * 4
    events = [
        Event(e.storage, latents_bytes + caption_bytes, e.category, e.phase) if e.storage == 4 else e for e in step()
    ]
    assert phases(events=events)["caching text"].disk_bytes_per_sample == caption_bytes // 2


def test_on_the_host_the_device_is_the_host() -> None:
    there, elsewhere = phases(trains_on_host=True)["training step"], phases()["training step"]
    assert there.memory.host_bytes is not None
    assert elsewhere.memory.host_bytes is not None
    assert there.memory.host_bytes == elsewhere.memory.host_bytes + there.memory.device_bytes


def with_moved(**sections: Any) -> dict[str, Phase]:
    """A step that keeps 16 KiB on the host and has 32 more there for a while, and brings blocks of 8 KiB."""
    moved = [
        Event(200, 12 * KIB, on_host("frozen weights"), "setup"),
        Event(201, 4 * KIB, on_host("moving average"), "setup"),
        Event(202, 32 * KIB, on_host("activations"), "forward"),
        Event(202, 0, on_host("activations"), "backward"),
    ]
    asked = replace(run(events=[*step(), *moved], **sections), most_swapped_bytes=8 * KIB)
    return {phase.name: phase for phase in plan_phases(asked)}


def host_kib(found: dict[str, Phase], name: str) -> float:
    """Beyond what a run without anything on the host has there."""
    here, plain = found[name].memory.host_bytes, phases()[name].memory.host_bytes
    assert here is not None
    assert plain is not None
    return (here - plain) / KIB


def test_what_is_on_the_host_is_counted_there() -> None:
    found = with_moved()
    assert host_kib(found, "caching text") == 0
    # Beside the pages of the files: the copies of swapped weights, which the device can fetch.
    assert host_kib(found, "loading") == 12
    assert host_kib(found, "training step") == 16 + 32
    assert host_kib(found, "validation") == 16
    assert host_kib(found, "saving") == 16
    assert parts_kib(found["training step"]) == parts_kib(phases()["training step"])
    more, plain = found["saving"].memory.disk_bytes, phases()["saving"].memory.disk_bytes
    assert more is not None
    assert plain is not None
    assert more - plain == 4 * KIB * 3


def test_swapped_weights_come_for_the_denoisers_passes_of_a_validation() -> None:
    only_loss = {"num_held_out": 1}
    plain, found = phases(validate=only_loss)["validation"], with_moved(validate=only_loss)["validation"]
    assert parts_kib(found) == {**parts_kib(plain), "swapped weights": 8}
    # Decoding, which takes more here, is another pass.
    decoding = with_moved(validate={"prompts": ["a fish"]})["validation"]
    assert "swapped weights" not in parts_kib(decoding)


def test_a_quantised_base_is_on_the_host_as_pages_of_its_files_only() -> None:
    """Each layer is quantised and moved before the next one is read."""
    found, plain = phases(quantize={"denoiser": "nf4"})["loading"], phases()["loading"]
    assert found.mapped_bytes == catalog.denoiser("flux.1-dev").num_params * 2
    assert (found.memory.host_bytes, found.mapped_bytes) == (plain.memory.host_bytes, plain.mapped_bytes)


def test_a_base_in_another_dtype_than_its_files_is_not_on_the_host_as_a_whole() -> None:
    plain, found = phases()["loading"], phases(train={"steps": 1, "precision": "fp32"})["loading"]
    assert found.memory.host_bytes == plain.memory.host_bytes


def test_quantised_text_encoders_take_less_of_the_device() -> None:
    plain, found = phases()["caching text"], phases(quantize={"text_encoders": "int8"})["caching text"]
    # One dense layer of T5 is there beside the pass.
    assert parts_kib(found)["temporaries"] == parts_kib(plain)["temporaries"] + 4096 * 10240 * 2 / KIB
    before, after = (parts_kib(phase)["text encoders"] for phase in (plain, found))
    assert 0.5 < after / before < 0.7
    assert found.memory.host_bytes == plain.memory.host_bytes, "each layer is moved once it is quantised"


def test_what_is_not_traced_counts_by_its_weights_and_is_said() -> None:
    found = phases(forwards=nothing_traced)
    assert found["caching latents"].memory.device_bytes == catalog.component("vae-flux").num_params * 4 // 512 * 512 + (
        512 if catalog.component("vae-flux").num_params * 4 % 512 else 0
    )
    assert any("vae-flux" in note for note in found["caching latents"].notes)
    assert any("sampl" in note or "gradients" in note for note in found["validation"].notes)
    assert not phases()["validation"].notes


def test_what_the_catalogue_does_not_know_is_said() -> None:
    assert any("Mistral" in note for note in phases("flux.2-dev")["caching text"].notes)
    assert any("auraflow" in note for note in phases("auraflow")["training step"].notes)


def test_half_precision_traces_stand_in_for_full_precision_twice_as_large() -> None:
    def half_only(form: ForwardForm) -> StepTrace | None:
        return forward(form) if form.precision == "bf16" or form.kind == "encode" else None

    found = phases(forwards=half_only, train={"steps": 1, "precision": "fp32"})
    assert parts_kib(found["caching text"]) == {"temporaries": 2 * 8 * 40, "text encoders": 2 * 2 * 5}
    assert (
        phases(train={"steps": 1, "precision": "fp16"}, forwards=half_only)["caching text"].memory
        == phases()["caching text"].memory
    )


def test_a_video_of_another_length_is_taken_as_the_traced_one() -> None:
    asked = run()
    extent = Extent(height_px=64, width_px=64, num_frames=9, usual_num_frames=49)
    seen: list[ForwardForm] = []

    def usual_only(form: ForwardForm) -> StepTrace | None:
        seen.append(form)
        if form.kind != "encode" or form.num_frames != 49:
            return None
        trace = forward(form)
        growth = Growth(terms=((1.0, (1, 1, 0, 0)),))
        return trace.model_copy(update={"growths": (growth, *trace.growths[1:])})

    video = RunToPlan(
        experiment=asked.experiment, denoiser=catalog.denoiser("cogvideox-2b"), step=by_fate(step()),
        sizes=(1, 192, 226, 16), extent=extent, forwards=usual_only,
    )  # fmt: skip
    found = plan_phases(video)[0]
    assert ForwardForm(component="vae-cogvideox", kind="encode", precision="fp32", num_frames=9) in seen
    made = next(e for e in found.events if e.category == "temporaries")
    assert made.num_bytes == 8 * 8 * 13


def test_streams_hold_together() -> None:
    streams = dict(replay_streams(run(validate={"prompts": ["a fish"]})))
    assert set(streams) == {"caching latents", "caching text", "training"}
    alive: set[int] = set()
    for events in streams.values():
        alive.clear()
        for event in events:
            if event.num_bytes:
                assert event.storage not in alive
                alive.add(event.storage)
            else:
                alive.remove(event.storage)
    left = {e.category for e in streams["training"] if e.num_bytes and e.storage in alive}
    assert left == {"frozen weights", "trained weights", "optimizer state"}


def test_the_first_step_makes_the_optimizers_state_between_gradients_and_update() -> None:
    training = dict(replay_streams(run(validate={"num_held_out": 0})))["training"]
    order = [e.category for e in training if e.num_bytes]
    assert order.index("gradients") < order.index("optimizer state")
    assert order.count("optimizer state") == 1
    assert order.count("activations") == 2
    found = phases(validate={"num_held_out": 0})
    assert find_peak(training).num_bytes == found["training step"].memory.device_bytes


@pytest.mark.parametrize(
    ("levers", "beside_kib"),
    [
        ({}, 50),
        ({"activation_offload_parts": "attention"}, 50),
        # Its probabilities are the largest, and each attention has them once.
        ({"activation_offload_parts": "attention", "attention": "math"}, 20),
    ],
)
def test_what_is_replayed_has_the_copy_that_activation_offload_makes_beside_computation(
    levers: dict[str, Any], beside_kib: int
) -> None:
    moved = [Event(7 + number, size * KIB, on_host("activations"), "forward") for number, size in enumerate((20, 50))]
    events = [*step(), *moved]
    sections: dict[str, Any] = {"validate": {"num_held_out": 0}, "levers": {"activation_offload": True, **levers}}
    found = phases(events=events, **sections)["training step"]
    training = dict(replay_streams(run(events=events, **sections)))["training"]
    assert find_peak(training).num_bytes == found.memory.device_bytes
    without = dict(replay_streams(run(validate={"num_held_out": 0})))["training"]
    assert find_peak(training).num_bytes == find_peak(without).num_bytes + beside_kib * KIB
