"""The cache: whole entries or none, filled once, whoever writes and whoever is killed."""

import os
import signal
import time
from collections.abc import Callable, Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import NoReturn

import pytest
import torch

from foretune.core.errors import UserError
from foretune.data.cache import (
    CacheJob,
    DamagedEntry,
    Entry,
    FillReport,
    MissingEntry,
    TensorCache,
    component_fingerprint,
    fill,
)
from tests.waiting import HANG_S

_FORK = get_context("fork")


def _entry(number: int) -> Entry:
    return {
        "text": torch.arange(40, dtype=torch.bfloat16).reshape(8, 5) + number,
        "mask": torch.tensor(number % 2 == 0),
        "ids": torch.full((3,), number),
    }


def _same(one: Entry, other: Entry) -> bool:
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype and torch.equal(one[name], other[name]) for name in one
    )


def _jobs(num_jobs: int, num_groups: int = 1) -> list[CacheJob[int]]:
    return [
        CacheJob(key=TensorCache.key("test", str(number)), group=number % num_groups, payload=number)
        for number in range(num_jobs)
    ]


def _encode(jobs: Sequence[CacheJob[int]]) -> list[Entry]:
    return [_entry(job.payload) for job in jobs]


def _must_not_run(jobs: Sequence[CacheJob[int]]) -> NoReturn:
    raise AssertionError(f"{len(jobs)} entries were made again")


def test_an_entry_comes_back_as_it_was_put(tmp_path: Path):
    cache = TensorCache(tmp_path / "deep" / "cache")
    key = cache.key("a")
    assert not cache.has(key)
    cache.put(key, {**_entry(3), "empty": torch.zeros(0, 4), "turned": torch.arange(6).reshape(2, 3).T})
    assert cache.has(key)
    got = cache.get(key)
    assert _same(got, {**_entry(3), "empty": torch.zeros(0, 4), "turned": torch.arange(6).reshape(2, 3).T})
    path = cache.path(key)
    assert path.relative_to(cache.directory).parts == (key[:2], key[2:4], f"{key}.safetensors")


def test_parts_of_a_key_do_not_run_over():
    keys = {TensorCache.key(*parts) for parts in (("ab", "c"), ("a", "bc"), ("abc",), ("abc", ""), ("", "abc"), ())}
    assert len(keys) == 6
    assert all(set(key) <= set("0123456789abcdef") for key in keys)


def test_a_missing_entry_says_what_to_do(tmp_path: Path):
    with pytest.raises(MissingEntry, match="Start the run again"):
        TensorCache(tmp_path).get(TensorCache.key("a"))


@pytest.mark.parametrize("kept", [0, 7, 8, 60, -1])
def test_a_torn_entry_is_missing(tmp_path: Path, kept: int):
    cache, key = TensorCache(tmp_path), TensorCache.key("a")
    cache.put(key, _entry(1))
    cache.path(key).write_bytes(cache.path(key).read_bytes()[:kept])
    assert not cache.has(key)
    with pytest.raises(DamagedEntry):
        cache.get(key)


def test_every_changed_byte_is_noticed_and_the_entry_removed(tmp_path: Path):
    cache, key = TensorCache(tmp_path), TensorCache.key("a")
    cache.put(key, _entry(1))
    whole = cache.path(key).read_bytes()
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 0x04
        cache.path(key).write_bytes(damaged)
        with pytest.raises(DamagedEntry, match="Start the run again"):
            cache.get(key)
        assert not cache.path(key).exists()
    cache.put(key, _entry(1))
    assert _same(cache.get(key), _entry(1))


def test_a_damaged_entry_is_made_again_by_a_verifying_fill(tmp_path: Path):
    cache, jobs = TensorCache(tmp_path), _jobs(3)
    fill(cache, jobs, _encode, 2)
    path = cache.path(jobs[1].key)
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(damaged)
    # A flipped bit leaves the length as it is: only reading finds it.
    assert fill(cache, jobs, _must_not_run, 2) == FillReport(num_encoded=0, num_reused=3)
    assert fill(cache, jobs, _encode, 2, verify=True) == FillReport(num_encoded=1, num_reused=2)
    assert _same(cache.get(jobs[1].key), _entry(1))


def test_a_fill_makes_each_key_once_in_batches_of_one_group(tmp_path: Path):
    batches: list[list[int]] = []
    progress: list[tuple[int, int]] = []

    def encode(jobs: Sequence[CacheJob[int]]) -> list[Entry]:
        batches.append([job.payload for job in jobs])
        return _encode(jobs)

    cache, jobs = TensorCache(tmp_path), _jobs(7, num_groups=2)
    report = fill(cache, jobs + jobs, encode, 3, lambda done, total: progress.append((done, total)))
    assert report == FillReport(num_encoded=7, num_reused=0)
    assert batches == [[0, 2, 4], [6], [1, 3, 5]]
    assert progress == [(0, 7), (3, 7), (4, 7), (7, 7)]
    assert all(_same(cache.get(job.key), _entry(job.payload)) for job in jobs)
    assert fill(cache, _jobs(9), encode, 9) == FillReport(num_encoded=2, num_reused=7)
    assert batches[-1] == [7, 8]


def test_an_encoder_that_fails_loses_nothing_that_was_made(tmp_path: Path):
    def failing(jobs: Sequence[CacheJob[int]]) -> list[Entry]:
        if jobs[0].payload == 4:
            raise RuntimeError("out of memory")
        return _encode(jobs)

    cache = TensorCache(tmp_path)
    with pytest.raises(RuntimeError):
        fill(cache, _jobs(6), failing, 2)
    assert fill(cache, _jobs(6), _encode, 2) == FillReport(num_encoded=2, num_reused=4)


def _in_process(run: Callable[[], None]) -> int | None:
    process = _FORK.Process(target=run)
    process.start()
    process.join(HANG_S)
    return process.exitcode


def test_a_writer_killed_before_the_move_leaves_no_entry(tmp_path: Path):
    cache, key = TensorCache(tmp_path), TensorCache.key("a")

    def killed() -> None:
        Path.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign,assignment]
        cache.put(key, _entry(1))

    assert _in_process(killed) == -signal.SIGKILL
    assert not cache.has(key)
    (left,) = (tmp_path / "unfinished").iterdir()
    assert cache.remove_stale() == 0
    os.utime(left, (1_000_000_000, 1_000_000_000))
    assert fill(cache, _jobs(1), _encode, 1).num_encoded == 1
    assert not left.exists()


def test_a_killed_fill_goes_on_where_it_stopped(tmp_path: Path):
    cache, jobs = TensorCache(tmp_path), _jobs(400)

    def encode(batch: Sequence[CacheJob[int]]) -> list[Entry]:
        if batch[0].payload == 300:
            signal.pause()  # far enough: it stands still until it is killed
        return [{"x": torch.full((20_000,), float(batch[0].payload))}]

    process = _FORK.Process(target=lambda: fill(cache, jobs, encode, 1))
    process.start()
    while sum(cache.has(job.key) for job in jobs) < 30:
        assert process.is_alive()
        time.sleep(0.001)
    process.kill()
    process.join()
    there = [job for job in jobs if cache.has(job.key)]
    assert 30 <= len(there) <= 300
    assert all(torch.equal(cache.get(job.key)["x"], torch.full((20_000,), float(job.payload))) for job in there)
    report = fill(cache, jobs, _encode, 16)
    assert report == FillReport(num_encoded=400 - len(there), num_reused=len(there))


def test_writers_of_the_same_entries_do_not_disturb_one_another(tmp_path: Path):
    cache, jobs = TensorCache(tmp_path), _jobs(20)

    def write_all() -> None:
        for _ in range(5):
            for job in jobs:
                cache.put(job.key, _entry(job.payload))
                assert _same(cache.get(job.key), _entry(job.payload))

    processes = [_FORK.Process(target=write_all) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(HANG_S)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert list((tmp_path / "unfinished").iterdir()) == []


def test_a_cache_that_cannot_be_written_says_what_to_set(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"data\.cache_dir"):
        TensorCache(tmp_path / "file").put(TensorCache.key("a"), _entry(0))


def _component(folder: Path, weights: bytes = b"weights") -> Path:
    (folder / "sub").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(weights)
    (folder / "sub" / "merges.txt").write_text("a b")
    for file in folder.rglob("*.*"):
        os.utime(file, (1_000_000_000, 1_000_000_000))
    return folder


def test_a_component_is_known_by_its_content(tmp_path: Path):
    one, other = _component(tmp_path / "one"), _component(tmp_path / "two" / "deep")
    fingerprint = component_fingerprint(one)
    assert component_fingerprint(other) == fingerprint
    (other / "README.md").write_text("no part of it")
    assert component_fingerprint(other) == fingerprint
    (other / "sub" / "merges.txt").write_text("a c")
    assert component_fingerprint(other) != fingerprint
    (other / "sub" / "merges.txt").write_text("a b")
    assert component_fingerprint(other) == fingerprint
    (other / "sub" / "chat_template.jinja").write_text("{{ messages }}")
    assert component_fingerprint(other) != fingerprint
    (one / "config.json").rename(one / "configs.json")
    assert component_fingerprint(one) != fingerprint
    with pytest.raises(UserError, match="holds no model"):
        component_fingerprint(tmp_path / "cache")


def test_a_component_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder, cache_dir = _component(tmp_path / "encoder"), tmp_path / "cache"
    first = component_fingerprint(folder, cache_dir)
    digest = "foretune.data.cache.hashlib.file_digest"
    with monkeypatch.context() as patched:
        patched.setattr(digest, None)
        assert component_fingerprint(folder, cache_dir) == first
    (folder / "model.safetensors").write_bytes(b"WEIGHTS")
    assert component_fingerprint(folder, cache_dir) != first
