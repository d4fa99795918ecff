"""Two hashes: one for the question, equal across machines, and one for everything."""

import copy
from collections.abc import Iterator
from typing import Any, get_args

import pytest
from pydantic import BaseModel, ValidationError

from foretune.choices.experiment import Experiment
from foretune.choices.section import INCIDENTAL, question_in

FINGERPRINT = "3f" * 20
BASE = "0123456789abcdef"

BASES: dict[str, dict[str, Any]] = {
    "folder": {"kind": "folder", "path": "./paintings"},
    "cifar10": {"kind": "cifar10", "path": "./cifar-10"},
    "huggingface": {"kind": "huggingface", "path": "./set"},
    "clips": {"kind": "clips", "path": "./clips"},
    "shards": {"kind": "shards", "path": "./set"},
    "shapes": {"kind": "shapes"},
}
OF_ALL_IMAGES = {
    "resolution": 512,
    "max_buckets": 4,
    "only_largest_bucket": True,
    "num_frames": 5,
    "bucket_step_px": 32,
    "crop": "random",
    "flip": 0.5,
    "caption_dropout": 0.1,
    "max_text_tokens": 77,
    "held_out": 0.2,
}

LOW_RANK = ("lora", "dora", "rslora", "loha", "lokr")
ADAPTERS = (*LOW_RANK, "oft")
OF_ALL_ADAPTERS = {"targets": ["to_q"], "dropout": 0.1}

# For each field another value than the base below has. A new field is put in one of these tables; which one is the
# question that this test asks.
QUESTION: dict[str, Any] = {
    **{f"method<{kind}>.{key}": value for kind in ADAPTERS for key, value in OF_ALL_ADAPTERS.items()},
    **{f"method<{kind}>.rank": 8 for kind in LOW_RANK},
    **{f"method<{kind}>.alpha": 3.5 for kind in LOW_RANK},
    "method<lokr>.factor": 4,
    "method<lokr>.full_matrix": True,
    "method<oft>.block_size": 8,
    **{f"data<{kind}>.{key}": value for kind in BASES for key, value in OF_ALL_IMAGES.items()},
    "data<folder>.repeats": 2,
    "data<folder>.trigger": "sks",
    "data<folder>.folders[].repeats": 2,
    "data<folder>.folders[].trigger": "sks",
    "data<huggingface>.split": "test",
    "data<huggingface>.where": "artist=x",
    "data<clips>.fps": 16.0,
    "data<clips>.repeats": 2,
    "data<clips>.trigger": "sks",
    "data<shards>.fps": 16.0,
    "data<shards>.shuffle_shards": 4,
    "data<shards>.trigger": "sks",
    "data<huggingface>.image_column": "picture",
    "data<huggingface>.caption_column": "words",
    "data<huggingface>.trigger": "sks",
    "data<folder>.captions": "filename",
    "data<shapes>.num_samples": 99,
    "data<shapes>.style": "framed",
    "data<shapes>.captions": "seen",
    "data<shapes>.placement": "middle",
    "train.steps": 11,
    "train.epochs": 2,
    "train.seconds": 60.0,
    "train.clock": "run",
    "train.precision": "fp16",
    "train.loss_scaling": "off",
    "train.weight_dtype": "bf16",
    "train.seed": 1,
    "train.max_grad_norm": None,
    "train.ema.decay": 0.9,
    "objective.timestep_density": "mode",
    "objective.logit_mean": 0.5,
    "objective.logit_std": 2.0,
    "objective.mode_scale": 1.0,
    "objective.shift": 2.0,
    "objective.weighting": "cosmap",
    "objective.guidance_scale": 1.0,
    "optimizer.kind": "lion",
    "optimizer.lr": 2e-4,
    "optimizer.schedule": "cosine",
    "optimizer.warmup_steps": 5,
    "optimizer.betas": [0.9, 0.99],
    "optimizer.eps": 1e-6,
    "optimizer.weight_decay": 0.0,
    "optimizer.compensation": "kahan",
    "levers.vae_tiling": True,
    "quantize.denoiser": "int8",
    "quantize.text_encoders": "int8",
    "quantize.keep": ["proj_out"],
    "validate.prompts": ["a harbour"],
    "validate.num_inference_steps": 4,
    "validate.guidance_scale": 5.0,
    "validate.num_held_out": 8,
    "validate.seed": 3,
}
INCIDENTALS: dict[str, Any] = {
    "name": "another",
    "model": "black-forest-labs/FLUX.1-dev",
    **{f"data<{kind}>.cache_dir": "/elsewhere" for kind in BASES},
    **{f"data<{kind}>.num_workers": 3 for kind in BASES},
    **{f"data<{kind}>.path": "/data/elsewhere" for kind in BASES if kind != "shapes"},
    "data<folder>.folders[].path": "/data/elsewhere",
    **{f"data<{kind}>.follow_links": True for kind in BASES if kind not in ("shapes", "shards")},
    "data<shards>.shard_cache_gib": 1.0,
    **{f"data<{kind}>.encoded": "/data/encoded" for kind in BASES},
    "levers.gradient_checkpointing": 1.0,
    "levers.cache_latents": False,
    "levers.cache_text": False,
    "levers.checkpoint_segment": 2,
    "levers.checkpoint_stride": 4,
    "levers.checkpoint_parts": "feed_forward",
    "levers.activation_offload": True,
    "levers.activation_offload_parts": "attention",
    "levers.block_swap": 3,
    "levers.block_swap_prefetch": 2,
    "levers.compile": "regional",
    "levers.attention": "math",
    "levers.channels_last": True,
    "levers.fused_backward": True,
    "levers.optimizer_offload": True,
    "levers.ema_offload": True,
    **{f"method<{kind}>.{key}": "./another" for kind in ADAPTERS for key in ("start_from", "training_adapter")},
    "validate.every": 5,
    "save.every": 5,
    "parallel.sharding": "full",
    "parallel.shard_devices": 4,
    "parallel.gather_dtype": "fp32",
    "parallel.timeout_s": 60.0,
    "parallel.restarts": 3,
    "save.keep": 9,
    "save.asynchronous": True,
    "parallel.device": "cpu",
    "parallel.threads": 2,
    "profile.at_step": 9,
    "profile.steps": 2,
    "track": ["tensorboard"],
    "accept": ["distilled-base"],
}
# Each alone makes other steps; together they count as their product.
SPLIT = {"train.batch_size": 2, "train.gradient_accumulation": 2, "parallel.devices": 2}
# Fields with one value only: nothing to change.
FIXED = {
    "method<full>.kind",
    *(f"method<{kind}>.kind" for kind in ADAPTERS),
    *(f"data<{kind}>.kind" for kind in BASES),
}
# What must stand beside a change so that the experiment is still a right one.
BESIDE: dict[str, dict[str, Any]] = {
    "train.epochs": {"train.steps": None},
    "train.seconds": {"train.steps": None},
    "train.ema.decay": {"train.ema": {}},
    **{f"data<folder>.folders[].{key}": {"data.path": None} for key in ("path", "repeats", "trigger")},
}


def experiment(**changes: Any) -> Experiment:
    base = {"model": "flux.1-dev", "data": BASES["folder"], "train": {"steps": 10, "ema": {"decay": 0.99}}}
    return Experiment.model_validate({**base, **changes})


def changed(field: str, value: Any) -> tuple[Experiment, Experiment]:
    """The experiment with and without the change of one field."""
    section, _, kind = field.partition("<")
    kind = kind.partition(">")[0]
    base: dict[str, Any] = {"model": "flux.1-dev", "train": {"steps": 10, "ema": {}}}
    base["method"] = {"kind": kind if section == "method" else "lora"}
    base["data"] = copy.deepcopy(BASES[kind if section == "data" else "folder"])
    if "folders[]" in field:
        base["data"] = {"kind": "folder", "folders": [{"path": "./a"}, {"path": "./b"}]}
    after = copy.deepcopy(base)
    for path, beside in (*BESIDE.get(field, {}).items(), (field, value)):
        put(after, path.replace(f"<{kind}>", ""), beside)
    return Experiment.model_validate(base), Experiment.model_validate(after)


def put(mapping: dict[str, Any], path: str, value: Any) -> None:
    *way, last = path.split(".")
    for key in way:
        mapping = mapping["folders"][1] if key == "folders[]" else mapping.setdefault(key, {})
    mapping[last] = value


def leaves(section: type[BaseModel], path: str = "") -> Iterator[str]:
    """The path of every field that holds no further section."""
    for name, field in section.model_fields.items():
        here = f"{path}{field.alias or name}"
        inner = sections_in(field.annotation)
        if not inner:
            yield here
        for one in inner:
            kind = f"<{get_args(one.model_fields['kind'].annotation)[0]}>" if len(inner) > 1 else ""
            many = "[]" if "tuple" in str(field.annotation) else ""
            yield from leaves(one, f"{here}{kind}{many}.")


def sections_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [section for argument in get_args(annotation) for section in sections_in(argument)]


def test_every_field_is_in_one_table() -> None:
    tables = [*QUESTION, *INCIDENTALS, *SPLIT, *FIXED]
    assert len(tables) == len(set(tables))
    assert sorted(leaves(Experiment)) == sorted(tables)


@pytest.mark.parametrize("field", QUESTION)
def test_another_question_has_another_hash(field: str) -> None:
    before, after = changed(field, QUESTION[field])
    assert before.question_hash(FINGERPRINT, BASE) != after.question_hash(FINGERPRINT, BASE)
    assert before.whole_hash() != after.whole_hash()


@pytest.mark.parametrize("field", INCIDENTALS)
def test_the_same_question_elsewhere_has_the_same_hash(field: str) -> None:
    before, after = changed(field, INCIDENTALS[field])
    assert before.question_hash(FINGERPRINT, BASE) == after.question_hash(FINGERPRINT, BASE)
    assert before.whole_hash() != after.whole_hash()


@pytest.mark.parametrize("field", SPLIT)
def test_more_samples_to_a_step_are_another_question(field: str) -> None:
    before, after = changed(field, SPLIT[field])
    assert before.question_hash(FINGERPRINT, BASE) != after.question_hash(FINGERPRINT, BASE)
    assert before.whole_hash() != after.whole_hash()


def test_a_batch_split_in_other_ways_is_the_same_question() -> None:
    splits = [(4, 1, 1), (1, 4, 1), (2, 2, 1), (1, 1, 4), (2, 1, 2), (1, 2, 2)]
    experiments = [
        experiment(
            train={"steps": 10, "batch_size": batch_size, "gradient_accumulation": accumulation},
            parallel={"devices": devices},
        )
        for batch_size, accumulation, devices in splits
    ]
    assert {one.samples_per_step() for one in experiments} == {4}
    assert len({one.question_hash(FINGERPRINT, BASE) for one in experiments}) == 1
    assert len({one.whole_hash() for one in experiments}) == len(splits)


def test_other_kinds_are_other_questions() -> None:
    methods = [experiment(method={"kind": kind}).question_hash(FINGERPRINT, BASE) for kind in ("full", "lora")]
    kinds = [experiment(data=data).question_hash(FINGERPRINT, BASE) for data in BASES.values()]
    assert len(set(methods)) == 2
    assert len(set(kinds)) == len(BASES)


def test_other_data_or_another_base_are_another_question() -> None:
    assert experiment().question_hash("a", BASE) != experiment().question_hash("b", BASE)
    assert experiment().question_hash(FINGERPRINT, "a") != experiment().question_hash(FINGERPRINT, "b")
    assert experiment().whole_hash() == experiment().whole_hash()


def test_a_default_written_out_is_the_same_experiment() -> None:
    written = experiment(method={"kind": "lora", "rank": 16}, optimizer={"lr": "1e-4"}, save={})
    assert written == experiment()
    assert written.whole_hash() == experiment().whole_hash()
    assert written.question_hash(FINGERPRINT, BASE) == experiment().question_hash(FINGERPRINT, BASE)


def test_hashes_stay_what_they_are() -> None:
    # A change here means that runs of earlier releases are no longer found to have asked the same.
    assert experiment().question_hash(FINGERPRINT, BASE) == "99349d5f9e59b436"
    assert experiment().whole_hash() == "7c0086f2a6ad6f47"


def test_a_field_that_was_not_thought_about_is_part_of_the_question() -> None:
    class Later(Experiment):
        surprise: int = 0

    base = experiment().model_dump(by_alias=True)
    hashes = {Later.model_validate({**base, "surprise": value}).question_hash(FINGERPRINT, BASE) for value in (0, 1)}
    assert len(hashes) == 2


def test_the_mark_stands_outermost() -> None:
    """Deeper inside an annotation it would have no effect."""

    def inner_marks(annotation: Any) -> bool:
        return INCIDENTAL in get_args(annotation) or any(map(inner_marks, get_args(annotation)))

    def check(section: type[BaseModel]) -> None:
        for name, field in section.model_fields.items():
            assert not inner_marks(field.annotation), f"{section.__name__}.{name}"
            for inner in sections_in(field.annotation):
                check(inner)

    check(Experiment)


def test_the_question_is_plain_data() -> None:
    question = question_in(experiment(data={"kind": "folder", "folders": [{"path": "a", "trigger": "x"}]}))
    assert question["data"]["folders"] == [{"repeats": 1, "trigger": "x"}]
    assert question["optimizer"]["betas"] == [0.9, 0.999]
    assert "name" not in question


def test_an_experiment_cannot_be_changed() -> None:
    one = experiment()
    with pytest.raises(ValidationError, match="frozen"):
        one.train.steps = 5
    assert hash(one) == hash(experiment())


def of_version_9(method: str, **parallel: Any) -> Experiment:
    body = {"model": "flux.1-dev", "method": {"kind": method}, "data": {"kind": "shapes"}, "train": {"steps": 1}}
    written = {**body, "parallel": {"devices": 2, **parallel}, "format": "Experiment", "format_version": 9}
    return Experiment.model_validate(Experiment.upgraded(written))


def test_sharded_runs_of_earlier_versions_gather_as_they_did() -> None:
    """A run that is resumed computes what it computed before; where the key has no effect, its hash stays."""
    assert of_version_9("full", sharding="full").parallel.gather_dtype == "fp32"
    assert of_version_9("full").parallel.gather_dtype == "bf16"
    assert of_version_9("lora", sharding="full").parallel.gather_dtype == "bf16"
    assert of_version_9("full", sharding="full", gather_dtype="bf16").parallel.gather_dtype == "bf16", "as it was typed"
