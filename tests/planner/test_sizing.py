"""Sizes of a step: the shipped geometry says what the model's own code does."""

from itertools import product

import pytest

from foretune import catalog
from foretune.choices.experiment import Experiment
from foretune.config.reading import understand
from foretune.config.starting import starting_text
from foretune.config.yaml_files import parse
from foretune.core.errors import UserError
from foretune.models.locating import family_from_catalogue
from foretune.planner.sizing import size_of, with_default_targets
from foretune.trace.geometry import geometry_of
from foretune.trace.shipped import geometries


def asked(model: str = "flux.1-dev", **data: object) -> Experiment:
    return Experiment.model_validate(
        {
            "model": model,
            "method": {"kind": "lora", "rank": 12},
            "data": {"kind": "shapes", **data},
            "train": {"steps": 1, "batch_size": 3},
        }
    )


def test_every_denoiser_has_a_geometry() -> None:
    assert set(geometries()) == set(catalog.denoisers())


@pytest.mark.parametrize("name", sorted(geometries()))
def test_the_shipped_geometry_is_the_family_s_own(name: str) -> None:
    assert geometries()[name] == geometry_of(family_from_catalogue(name))


@pytest.mark.parametrize("name", sorted(geometries()))
def test_latents_are_as_large_as_the_family_says(name: str) -> None:
    geometry, family = geometries()[name], family_from_catalogue(name)
    multiple = geometry.size_multiple_px
    lengths = (1, 5, 9, 17, 33, 49, 81, 121) if geometry.default_num_frames > 1 else (1,)
    for num_frames, (rows, columns) in product(lengths, ((8, 8), (8, 24), (26, 15))):
        height_px, width_px = rows * multiple, columns * multiple
        _, *extent = family.latent_shape(height_px, width_px, num_frames)
        num_positions = 1
        for side in extent:
            num_positions *= side
        assert geometry.latent_positions(height_px, width_px, num_frames) == num_positions, (num_frames, rows, columns)


@pytest.mark.parametrize("name", sorted(geometries()))
def test_a_model_s_own_size_can_be_asked(name: str) -> None:
    size = size_of(asked(name), geometries()[name])
    assert (size.batch_size, size.rank) == (3, 12)
    assert size.in_trace(geometries()[name])[1] > 0


def test_a_resolution_is_a_square_for_images_and_a_side_for_videos() -> None:
    image = size_of(asked(resolution=512), geometries()["flux.1-dev"])
    assert (image.height_px, image.width_px, image.num_frames) == (512, 512, 1)
    geometry = geometries()["cogvideox-2b"]
    video = size_of(asked("cogvideox-2b", resolution=240), geometry)
    assert (video.height_px, video.width_px) == (240, 352), "as near to 3:2 as multiples of 16 are"
    assert video.num_frames == geometry.default_num_frames == 49
    assert size_of(asked("cogvideox-2b"), geometry, num_frames=9).num_frames == 9


def test_captions_have_the_length_that_is_asked_for_unless_it_is_fixed() -> None:
    open_length, fixed = geometries()["flux.1-dev"], geometries()["cogvideox-2b"]
    assert not open_length.text_is_fixed
    assert fixed.text_is_fixed
    assert size_of(asked(max_text_tokens=64), open_length).num_text_tokens == 64
    assert size_of(asked(), open_length).num_text_tokens == open_length.default_text_tokens == 512
    assert size_of(asked(max_text_tokens=64), fixed).num_text_tokens == fixed.default_text_tokens


def test_full_fine_tuning_has_no_rank() -> None:
    full = Experiment.model_validate({**asked().model_dump(by_alias=True), "method": {"kind": "full"}})
    assert size_of(full, geometries()["flux.1-dev"]).rank == 1


@pytest.mark.parametrize(
    ("name", "height_px", "width_px", "part"),
    [
        ("flux.1-dev", 1000, 1024, "multiples of 16 px; the height is 1000 px. Nearest: 992 or 1008"),
        ("flux.1-dev", 1024, 1000, "multiples of 16 px; the width is 1000 px. Nearest: 992 or 1008"),
        ("flux.1-dev", 7, 16, "multiples of 16 px; the height is 7 px. Nearest: 16 or 32"),
        ("flux.1-dev", 0, 16, "multiples of 16 px; the height is 0 px"),
        ("flux.1-dev", -64, 64, "multiples of 16 px; the height is -64 px"),
        ("sd3-medium", 4096, 1024, "up to 3072 px, not 4096 px. Set data.resolution=3072"),
        ("sd3-medium", 1024, 4096, "up to 3072 px, not 4096 px"),
    ],
)
def test_mistakes_are_said_in_a_sentence(name: str, height_px: int, width_px: int, part: str) -> None:
    with pytest.raises(UserError, match=part):
        size_of(asked(name), geometries()[name], height_px=height_px, width_px=width_px)


def test_a_resolution_that_the_model_does_not_take() -> None:
    with pytest.raises(UserError, match=r"multiples of 16 px; the width is 1000 px\. Nearest: 992 or 1008"):
        size_of(asked(resolution=1000), geometries()["flux.1-dev"])


def test_one_side_alone_is_a_mistake() -> None:
    with pytest.raises(UserError, match="--width"):
        size_of(asked(), geometries()["flux.1-dev"], height_px=512)


@pytest.mark.parametrize(
    ("name", "num_frames", "part"),
    [
        ("flux.1-dev", 9, "takes images, not videos; 9 frames were requested"),
        ("cogvideox-2b", 0, "takes frames from 1 on; 0 frames were requested"),
        ("cogvideox-2b", -4, "-4 frames were requested"),
    ],
)
def test_frames_that_the_model_does_not_take(name: str, num_frames: int, part: str) -> None:
    with pytest.raises(UserError, match=part):
        size_of(asked(name), geometries()[name], num_frames=num_frames)


def test_default_targets_are_as_good_as_none() -> None:
    geometry = geometries()["flux.1-dev"]
    own = {"kind": "lora", "targets": list(geometry.adapter_targets[::-1])}
    named = Experiment.model_validate({**asked().model_dump(by_alias=True), "method": own})
    plain = with_default_targets(named, geometry).method
    assert plain.kind == "lora"
    assert plain.targets is None
    other = Experiment.model_validate({**asked().model_dump(by_alias=True), "method": {**own, "targets": ["to_q"]}})
    assert with_default_targets(other, geometry) == other


@pytest.mark.parametrize("name", [name for name, row in catalog.denoisers().items() if row.is_trainable])
def test_experiments_start_with_a_size_that_the_model_takes(name: str) -> None:
    text = starting_text("experiment.yaml", name, "lora", None, family=catalog.denoiser(name).family)
    size_of(understand(parse(text), source=None).experiment, geometries()[name])


@pytest.mark.parametrize(("name", "num_frames", "nearest"), [("wan2.1-t2v-14b", 80, 81), ("mochi-1", 9, 7)])
def test_a_length_that_training_refuses_is_not_planned(name: str, num_frames: int, nearest: int) -> None:
    with pytest.raises(UserError, match=rf"does not take {num_frames} frames.*Nearest: data\.num_frames={nearest}$"):
        size_of(asked(name, num_frames=num_frames), geometries()[name])
