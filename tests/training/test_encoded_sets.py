"""Sets that `foretune data encode` makes: what is in them, who may train on them, and how they continue."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import foretune
from foretune.core.errors import UserError
from foretune.core.observer import Observer
from foretune.data.cache import TensorCache
from foretune.data.encoded import FLIPPED, LATENTS, TEXT, open_encoded
from foretune.data.jobs import latent_jobs
from foretune.data.maker import BatchMaker
from foretune.data.shards import ShardLimits, ShardWriter
from foretune.data.shards.layout import MANIFEST
from foretune.data.split import split
from foretune.executors.outcome import OutcomeKind, TaskOutcome
from foretune.executors.task_files import write_outcome, write_task
from foretune.models.trainable import TrainableFamily
from foretune.record.run_directory import RunDirectory
from foretune.training.encoded_sets import part_worker
from foretune.training.preparing import prepare
from foretune.training.train import train
from tests.training.encoded_runs import PART_SIZE, InThisProcess, asked_of, contents, encode, pictures, written
from tests.training.short_runs import events_of, losses_of

NUM = 12
VARIED = {
    "crop": "random",
    "flip": 0.5,
    "caption_dropout": 0.3,
    "max_buckets": 2,
    "bucket_step_px": 16,
    "trigger": "xyz",
    "repeats": 2,
}
"""All that changes which entries there are."""


@dataclass(frozen=True)
class Encoded:
    """A folder of images that was encoded and removed, and the run of a training that encoded it by itself."""

    experiment: Path
    place: Path
    cache: Path
    losses: list[float]


@pytest.fixture(scope="module")
def encoded(tmp_path_factory: pytest.TempPathFactory, tiny_pipeline: Callable[..., Path]) -> Encoded:
    work = tmp_path_factory.mktemp("encoded")
    data = {"kind": "folder", "path": str(pictures(work / "pictures", NUM)), "resolution": 32, "held_out": 0.2,
            "cache_dir": str(work / "cache"), "max_text_tokens": 16, **VARIED}  # fmt: skip
    validation = {"prompts": ["a cat"], "num_inference_steps": 1, "num_held_out": 3, "every": 3}
    experiment = written(work / "e.yaml", tiny_pipeline("sd3"), work, data=data, validate=validation)
    own = train(asked_of(experiment), work / "runs", Observer())
    place = work / "set"
    assert encode(experiment, place, f"data.cache_dir={work / 'other'}") is not None
    shutil.rmtree(work / "pictures")
    return Encoded(experiment, place, work / "cache", all_losses(own.run))


def all_losses(run: RunDirectory) -> list[float]:
    """Of all steps, and of the held-out samples."""
    held_out = [event["held_out_loss"] for event in events_of(run, "validated")]
    assert held_out
    return [*losses_of(run), *held_out]


def changed(encoded: Encoded, work: Path, *changes: str) -> Any:
    return asked_of(encoded.experiment, f"data.encoded={encoded.place}", f"data.cache_dir={work / 'empty'}", *changes)


def test_a_training_from_the_set_has_the_losses_of_one_that_encodes_by_itself(encoded: Encoded, tmp_path: Path) -> None:
    trained = train(changed(encoded, tmp_path), tmp_path / "runs", Observer())
    assert all_losses(trained.run) == encoded.losses
    assert not list((tmp_path / "empty").rglob("*.safetensors")), "nothing was encoded"


def test_members_are_the_files_that_the_cache_of_a_training_holds(encoded: Encoded, tmp_path: Path) -> None:
    prepared = prepare(changed(encoded, tmp_path).experiment, Path(changed(encoded, tmp_path).model.folder), Observer())
    maker, cache = prepared.batch_maker, TensorCache(encoded.cache)
    assert isinstance(maker, BatchMaker)
    found = open_encoded(changed(encoded, tmp_path).experiment.data)
    train_part, held_out = split(maker.source, 0.2)
    jobs = latent_jobs(maker, train_part, held_out)
    stored = {}
    for job in jobs:
        members = found.reader.members(job.payload.index)
        stored[job.key] = members[FLIPPED if job.payload.plan.flip else LATENTS]
    assert maker.text is not None
    for number in range(len(found.reader)):
        members, caption = found.reader.members(number), found.reader.facts(number).caption
        if number >= NUM or TEXT in members:
            stored[maker.text.text_key(caption)] = members[TEXT if number < NUM else LATENTS]
    # That training was shorter than an epoch, and encoded what it needed.
    cached = {path.stem: cache.content(path.stem) for path in encoded.cache.rglob("*.safetensors")}
    assert len(cached) > NUM
    assert {key: stored[key] for key in cached} == cached
    num_members = [len([name for name in found.reader.sample(n).members if name != TEXT]) for n in range(NUM)]
    assert sum(num_members) == len(jobs), "one entry for held-out samples, two for the others"
    num_texts = sum(TEXT in found.reader.sample(number).members for number in range(NUM))
    assert num_texts == 3 + 3 + 2, "each caption once in each part of five"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("data.resolution=64", "data.resolution is 32x32 in the set and 64x64 here"),
        ("data.crop=center", "data.crop is random in the set and center here"),
        ("data.flip=0", "data.flip is sometimes in the set and never here"),
        ("data.trigger=abc", "data.trigger is xyz in the set and abc here"),
        ("data.max_text_tokens=24", "data.max_text_tokens is 16 in the set and 24 here"),
        ("data.held_out=0.5", "data.held_out is 0.2 in the set and 0.5 here"),
        ("train.seed=7", "train.seed is 0 in the set and 7 here"),
        ("train.precision=bf16", "(train.precision) is float32 in the set and bfloat16 here"),
        ("levers.vae_tiling=true", "levers.vae_tiling is False in the set and True here"),
        ("levers.cache_latents=false", "Set levers.cache_latents=true"),
    ],
)
def test_a_set_of_another_experiment_is_refused_by_what_differs(
    encoded: Encoded, tmp_path: Path, change: str, words: str
) -> None:
    asked = changed(encoded, tmp_path, change)
    with pytest.raises(UserError) as refusal:
        prepare(asked.experiment, asked.model.folder, Observer())
    assert words in str(refusal.value)
    assert "levers.cache" in change or "foretune data encode EXPERIMENT.yaml" in str(refusal.value)


def test_other_weights_of_the_model_are_refused_by_their_part(encoded: Encoded, tmp_path: Path) -> None:
    asked = changed(encoded, tmp_path)
    other = tmp_path / "model"
    shutil.copytree(asked.model.folder, other)
    config = other / "vae" / "config.json"
    config.write_text(config.read_text() + " ")
    with pytest.raises(
        UserError, match=r"the set has other weights of vae \([0-9a-f]{12}\) than this model \([0-9a-f]"
    ):
        prepare(asked.experiment, other, Observer())


@pytest.mark.parametrize("change", ["data.caption_dropout=0", "data.num_workers=1", "train.batch_size=1"])
def test_what_chooses_among_stored_tensors_may_change(encoded: Encoded, tmp_path: Path, change: str) -> None:
    asked = changed(encoded, tmp_path, change)
    prepare(asked.experiment, asked.model.folder, Observer())


def test_prompts_that_the_set_lacks_are_encoded_by_the_training(encoded: Encoded, tmp_path: Path) -> None:
    asked = changed(encoded, tmp_path, "validate.prompts=[a bird, a cat]")
    prepared = prepare(asked.experiment, asked.model.folder, Observer())
    assert len(prepared.encoded_prompts) == 2
    assert len(list((tmp_path / "empty").rglob("*.safetensors"))) == 1


def test_an_incomplete_set_and_another_folder_are_refused(encoded: Encoded, tmp_path: Path) -> None:
    shutil.copytree(encoded.place, tmp_path / "set")
    (tmp_path / "set" / MANIFEST).unlink()
    for place, words in ((tmp_path / "set", "is not complete"), (tmp_path, "is not an encoded set")):
        asked = changed(encoded, tmp_path, f"data.encoded={place}")
        with pytest.raises(UserError, match=words):
            prepare(asked.experiment, asked.model.folder, Observer())


def test_a_damaged_sample_is_named(encoded: Encoded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda _s: None)
    shutil.copytree(encoded.place, tmp_path / "set")
    found = open_encoded(changed(encoded, tmp_path, f"data.encoded={tmp_path / 'set'}").experiment.data)
    place = found.reader.sample(4).members
    range_ = next(iter(place.values()))
    shard = tmp_path / "set" / found.reader.manifest.shards[found.reader.place(4)[0]].name
    data = bytearray(shard.read_bytes())
    data[range_.start + range_.num_bytes - 1] ^= 1
    shard.write_bytes(data)
    with pytest.raises(UserError, match=r"sample 000000004 differs from its checksum"):
        found.latents(4, is_flipped=next(iter(place)) == FLIPPED)


@pytest.fixture
def small(tmp_path: Path, tiny_pipeline: Callable[..., Path]) -> Path:
    data = {"kind": "folder", "path": str(pictures(tmp_path / "pictures")), "resolution": 32,
            "cache_dir": str(tmp_path / "cache"), "max_text_tokens": 16}  # fmt: skip
    return written(tmp_path / "e.yaml", tiny_pipeline("sd3"), tmp_path, data=data)


class Stopped(BaseException):
    """As a process that is killed: nothing after it runs."""


def test_a_part_that_was_stopped_is_continued_where_it_was(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode(small, tmp_path / "whole")
    images: list[int] = []
    plain = TrainableFamily.encode_images

    def counted(self: TrainableFamily, vae: object, batch: torch.Tensor) -> torch.Tensor:
        images.append(len(batch))
        return plain(self, vae, batch)

    monkeypatch.setattr(TrainableFamily, "encode_images", counted)
    num_added = 0
    add = ShardWriter.add

    def stopping(self: ShardWriter, sample: Any) -> None:
        nonlocal num_added
        add(self, sample)
        num_added += 1
        if num_added == 4:
            raise Stopped

    with monkeypatch.context() as patch:
        patch.setattr(ShardWriter, "add", stopping)
        with pytest.raises(Stopped):
            encode(small, tmp_path / "set")
    assert {path.name for path in (tmp_path / "set").glob("*.tar")} == {"000000-000000.tar"}
    assert not (tmp_path / "set" / MANIFEST).exists()
    num_before, executor = len(images), InThisProcess()
    assert encode(small, tmp_path / "set", executor=executor) is not None
    assert executor.performed == ["000000", "000001", "000002", "prompts"]
    assert len(images) == num_before + 2, "the first part's images were encoded before"
    assert contents(tmp_path / "set") == contents(tmp_path / "whole")
    assert not list((tmp_path / "set.tasks").rglob("*.safetensors")), "no unfinished work is left"
    again = InThisProcess()
    encode(small, tmp_path / "set", executor=again)
    assert again.performed == []


def test_shards_that_are_lost_or_damaged_are_written_again(small: Path, tmp_path: Path) -> None:
    encode(small, tmp_path / "set")
    whole = contents(tmp_path / "set")
    (tmp_path / "set" / "000001-000000.tar").unlink()
    (tmp_path / "set" / "000002-000000.index").write_bytes(b"no index")
    executor = InThisProcess()
    encode(small, tmp_path / "set", executor=executor)
    assert executor.performed == ["000001", "000002"]
    assert contents(tmp_path / "set") == whole
    # Without the folder of its tasks, too; damage of the same length is found where shards are all that is known.
    shutil.rmtree(tmp_path / "set.tasks")
    shard = tmp_path / "set" / "000000-000000.tar"
    shard.write_bytes(shard.read_bytes()[:-1] + b"x")
    data = bytearray(shard.read_bytes())
    data[3000] ^= 1
    shard.write_bytes(data)
    encode(small, tmp_path / "set")
    assert contents(tmp_path / "set") == whole


def test_a_killed_part_is_performed_again_and_a_failed_one_is_reported(small: Path, tmp_path: Path) -> None:
    kinds: list[OutcomeKind] = ["killed", "crashed"]

    class Faulty(InThisProcess):
        def submit(self, task: Any) -> None:
            if task.name == "000001" and kinds:
                write_task(task)
                write_outcome(task.folder, TaskOutcome(kind=kinds.pop(0), reason="planted"))
                self._ended.append(task.name)
            else:
                super().submit(task)

    seen: list[tuple[str, str, bool]] = []
    manifest = encode(
        small, tmp_path / "set", executor=Faulty(),
        on_part=lambda result, _: seen.append((result.name, result.outcome.kind, result.is_repeated)),
    )  # fmt: skip
    assert manifest is None
    assert not (tmp_path / "set" / MANIFEST).exists()
    assert ("000001", "killed", True) in seen
    assert ("000001", "crashed", False) in seen
    assert encode(small, tmp_path / "set") is not None


def test_another_experiment_does_not_continue_a_set(small: Path, tmp_path: Path) -> None:
    encode(small, tmp_path / "set")
    with pytest.raises(UserError, match=r"begun for another experiment: data.resolution is 32x32"):
        encode(small, tmp_path / "set", "data.resolution=64")
    (tmp_path / "pictures" / "00.txt").write_text("another caption")
    with pytest.raises(UserError, match="the images or captions changed"):
        encode(small, tmp_path / "set")


def test_a_worker_that_finds_another_model_refuses(small: Path, tmp_path: Path) -> None:
    from foretune.training.encoded_sets.job import planned_job

    job = planned_job(asked_of(small), str(tmp_path / "set"), PART_SIZE, ShardLimits(), Observer())
    _, part = next(job.parts(tmp_path / "tasks"))
    settings = {**part.settings, "weights of vae": "0" * 40}
    with pytest.raises(UserError, match=r"changed since the set was begun: the set has other weights of vae \(0000"):
        part_worker.perform({**part.to_mapping(), "settings": settings}, Observer())


def test_a_packed_set_can_be_encoded_and_keeps_its_order(small: Path, tmp_path: Path) -> None:
    foretune.pack_data(tmp_path / "pictures", tmp_path / "packed", shard_samples=4, cache_dir=tmp_path / "cache")
    changes = ["data.kind=shards", f"data.path={tmp_path / 'packed'}", "data.shuffle_shards=2"]
    own = train(asked_of(small, *changes), tmp_path / "runs", Observer())
    encode(small, tmp_path / "set", *changes)
    shutil.rmtree(tmp_path / "packed")
    read = [f"data.encoded={tmp_path / 'set'}", f"data.cache_dir={tmp_path / 'empty'}"]
    trained = train(asked_of(small, *changes, *read), tmp_path / "runs", Observer())
    assert losses_of(trained.run) == losses_of(own.run)
