"""A folder of clips: what is a clip, its caption, its frames, and what is remembered of it."""

import json
import os
import pickle
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from foretune.choices.data import ClipsData
from foretune.core.errors import ExperimentErrors, UserError
from foretune.data import images, videos
from foretune.data.buckets import Bucket
from foretune.data.images import Pixels
from foretune.data.memo import Memo
from foretune.data.sources import open_source, scan
from foretune.data.sources.base import ClipSource, frames_of

pytest.importorskip("av")

from tests.data.made import save_image
from tests.data.made_videos import numbered, numbers, save_video

LONG_AGO_S = 1_000_000_000


def _opened(tmp_path: Path, **fields: Any) -> ClipSource:
    fields.setdefault("path", str(tmp_path / "clips"))
    choice = ClipsData.model_validate({"kind": "clips", "cache_dir": str(tmp_path / "cache"), **fields})
    source = open_source(choice, largest=Bucket(64, 64, 5))
    assert isinstance(source, ClipSource)
    return source


def _video(tmp_path: Path, name: str, frames: int = 6, **how: Any) -> Path:
    return save_video(tmp_path / "clips" / name, frames, **how)


def _frame_folder(tmp_path: Path, name: str, order: tuple[int, ...] = (1, 2, 10, 11)) -> Path:
    folder = tmp_path / "clips" / name
    for number in order:
        _save(folder / f"frame{number}.png", numbered(number))
    return folder


def _save(path: Path, pixels: Pixels) -> Path:
    return save_image(path, size_px=(pixels.shape[1], pixels.shape[0]), colour=tuple(int(c) for c in pixels[0, 0]))


def _names(source: ClipSource) -> list[str]:
    return [Path(source.name(index)).name for index in range(len(source))]


def _captions(source: ClipSource) -> list[str]:
    return [source.info(index).caption for index in range(len(source))]


def _age(folder: Path) -> None:
    """Makes files old enough that what is learnt of them is remembered."""
    for path in folder.rglob("*"):
        os.utime(path, (LONG_AGO_S, LONG_AGO_S))


def test_clips_are_videos_and_folders_of_frames_in_the_order_of_their_paths(tmp_path: Path):
    _video(tmp_path, "b.mp4", 6)
    _video(tmp_path, "sub/c.mkv", 7).rename(tmp_path / "clips" / "sub" / "C.MKV")
    _frame_folder(tmp_path, "a")
    _video(tmp_path, ".hidden.mp4", 3)
    source = _opened(tmp_path)
    assert _names(source) == ["a", "b.mp4", "C.MKV"]
    assert [source.info(index).num_frames for index in range(3)] == [4, 6, 7]
    assert {(source.info(index).width_px, source.info(index).height_px) for index in range(3)} == {(32, 16)}
    assert source.notes() == ()
    scan(source)


def test_frames_are_the_first_ones(tmp_path: Path):
    _video(tmp_path, "a.mp4", 12)
    source = _opened(tmp_path)
    assert numbers(source.frames(0, 5)) == numbers(frames_of(source, 0, 5)) == [0, 1, 2, 3, 4]
    assert numbers(source.frames(0, 12)) == list(range(12))
    assert np.array_equal(source.pixels(0), source.frames(0, 1)[0])


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv", "a.avi", "a.gif"])
@pytest.mark.parametrize(("fps", "step"), [(24, 1), (12, 2), (8, 3)])
def test_frames_are_taken_at_the_requested_rate(tmp_path: Path, name: str, fps: int, step: int):
    _video(tmp_path, name, 24)
    source = _opened(tmp_path, fps=fps)
    assert source.info(0).num_frames == 24 // step
    assert numbers(source.frames(0, 24 // step)) == list(range(0, 24, step))
    assert numbers(source.frames(0, 3)) == [0, step, 2 * step]


@pytest.mark.parametrize("begin_ms", [0, 500])
@pytest.mark.parametrize("name", ["a.mkv", "a.mp4"])
def test_a_variable_frame_rate_is_read_by_timestamps(tmp_path: Path, name: str, begin_ms: int):
    times_ms = [0, 40, 80, 400, 440, 800, 840, 880, 920, 960]
    codec = ("mpeg4", "yuv420p") if name == "a.mp4" else None
    _video(tmp_path, name, 10, times_ms=[begin_ms + time for time in times_ms], codec=codec)
    source = _opened(tmp_path, fps=9)
    # Shown at 0, 111, 222, 333, 444, 556, 667, 778 and 889 ms.
    assert numbers(source.frames(0, source.info(0).num_frames)) == [0, 2, 2, 2, 4, 4, 4, 4, 7]


def test_a_rate_above_the_video_s_own_is_refused(tmp_path: Path):
    _video(tmp_path, "a.mp4", 10)
    _frame_folder(tmp_path, "b")
    with pytest.raises(UserError, match=r"a\.mp4 has 24 frames per second, fewer than data\.fps: 30"):
        scan(_opened(tmp_path, fps=30))
    assert _opened(tmp_path, fps=30).info(1).num_frames == 4


def test_frames_in_a_folder_have_their_natural_order(tmp_path: Path):
    _frame_folder(tmp_path, "a", order=(10, 9, 2, 11, 1))
    source = _opened(tmp_path)
    assert numbers(source.frames(0, 5)) == [1, 2, 9, 10, 11]
    assert numbers([source.pixels(0)]) == [1]


def test_frames_of_different_sizes_are_named(tmp_path: Path):
    folder = _frame_folder(tmp_path, "a")
    _save(folder / "frame10.png", numbered(3, size_px=(20, 10)))
    with pytest.raises(
        UserError, match=r"clips/a have different sizes: frame1\.png has 32 x 16 px, frame10\.png has 20 x 10 px"
    ):
        scan(_opened(tmp_path))


def test_images_that_are_no_clip_are_counted_and_named(tmp_path: Path):
    _video(tmp_path, "a.mp4")
    _video(tmp_path, "c/d.mp4")
    for name in ("a.jpg", "c/1.png", "c/2.png", "single/1.png"):
        save_image(tmp_path / "clips" / name)
    source = _opened(tmp_path)
    assert _names(source) == ["a.mp4", "d.mp4"]
    (note,) = source.notes()
    assert note.startswith(f"4 images are skipped in {tmp_path / 'clips'} (a.jpg, c/1.png, c/2.png and 1 more): the ")


def test_a_folder_with_folders_is_no_clip(tmp_path: Path):
    _frame_folder(tmp_path, "a/inner")
    _frame_folder(tmp_path, "a")
    source = _opened(tmp_path)
    assert _names(source) == ["inner"]
    assert "4 images are skipped" in source.notes()[0]


def test_videos_that_cannot_be_read_are_counted_and_named(tmp_path: Path):
    _video(tmp_path, "a.mp4")
    for name in ("b.wmv", "c.m3u8", "notes.md"):
        (tmp_path / "clips" / name).write_bytes(b"x")
    (note,) = _opened(tmp_path).notes()
    assert note.startswith("2 files are skipped in ")
    assert "(b.wmv, c.m3u8): videos must end in .mp4, " in note


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("notes.md", r"has no clips\. Put videos that end in \.mp4, .* or folders of frames"),
        ("a.wmv", r"has no clips\. It has a\.wmv, which cannot be read: convert"),
        ("1.png", r"It has images \(1\.png\): put the frames of each clip into a folder .*data\.kind=folder"),
    ],
)
def test_a_folder_without_clips_says_what_it_wants(tmp_path: Path, name: str, answer: str):
    (tmp_path / "clips").mkdir()
    (tmp_path / "clips" / name).write_bytes(b"x")
    with pytest.raises(UserError, match=answer):
        _opened(tmp_path)


def test_a_missing_folder_is_named(tmp_path: Path):
    with pytest.raises(UserError, match=r"There is no folder .*Set data\.path to the folder of clips\."):
        _opened(tmp_path)
    (tmp_path / "clips").write_text("")
    with pytest.raises(UserError, match=r"is a file, not a folder\. Set data\.path to the folder of clips\."):
        _opened(tmp_path)


def test_captions_lie_beside_the_clips(tmp_path: Path):
    _video(tmp_path, "a.v1.mp4")
    _frame_folder(tmp_path, "b.v1")
    (tmp_path / "clips" / "a.v1.txt").write_text("a  harbour\nat dusk")
    (tmp_path / "clips" / "b.v1.txt").write_bytes("\ufeffa caf\u00e9\n".encode())
    assert _captions(_opened(tmp_path)) == ["a harbour at dusk", "a caf\u00e9"]
    assert _captions(_opened(tmp_path, trigger="sks")) == ["sks a harbour at dusk", "sks a caf\u00e9"]


def test_captions_lie_in_a_metadata_file_and_text_beside_wins(tmp_path: Path):
    _video(tmp_path, "a.mp4")
    _frame_folder(tmp_path, "b")
    _video(tmp_path, "sub/c.mp4")
    rows = [{"file_name": "a.mp4", "text": "one"}, {"file_name": "b/", "caption": "two"}]
    (tmp_path / "clips" / "metadata.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    (tmp_path / "clips" / "sub" / "metadata.jsonl").write_text('{"file_name": "c.mp4", "text": "three"}')
    assert _captions(_opened(tmp_path)) == ["one", "two", "three"]
    (tmp_path / "clips" / "b.txt").write_text("beside")
    assert _captions(_opened(tmp_path)) == ["one", "beside", "three"]


def test_forgotten_captions_are_named(tmp_path: Path):
    _frame_folder(tmp_path, "a")
    for name in "bcd":
        _video(tmp_path, f"{name}.mp4", 2)
    (tmp_path / "clips" / "d.txt").write_text("a cat")
    with pytest.raises(
        UserError,
        match=r"3 of 4 clips have no caption: a, b\.mp4, c\.mp4\. Write .* beside the clip \(a\.txt\)",
    ):
        _opened(tmp_path)


def test_empty_captions_are_counted_and_named(tmp_path: Path):
    for name, text in (("a", "a cat"), ("b", " \n")):
        _video(tmp_path, f"{name}.mp4", 2)
        (tmp_path / "clips" / f"{name}.txt").write_text(text)
    assert _opened(tmp_path).notes() == (
        f"1 caption is empty in {tmp_path / 'clips'}, of b.mp4: trained with no caption.",
    )


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("{", r"Line 1 .* is not JSON"),
        ('{"file_name": "a.mp4"}', r'must be an object .* such as \{"file_name": "1\.mp4"'),
        ('{"file_name": "z.mp4", "text": "x"}', r"names z\.mp4, which is not there"),
        ('{"file_name": "../z.mp4", "text": "x"}', r"names \.\./z\.mp4, which is outside of"),
        ('{"file_name": "a.mp4", "text": "x\\u0000"}', r"has a caption that is not text"),
    ],
)
def test_mistakes_in_a_metadata_file_are_named(tmp_path: Path, line: str, answer: str):
    _video(tmp_path, "a.mp4", 2)
    (tmp_path / "clips" / "metadata.jsonl").write_text(line)
    with pytest.raises(UserError, match=answer):
        _opened(tmp_path)


def test_links_out_of_the_folder_are_refused_and_read_where_that_is_asked_for(tmp_path: Path):
    pool = save_video(tmp_path / "pool" / "a.mp4", 6).parent
    (tmp_path / "clips").mkdir()
    (tmp_path / "clips" / "a.mp4").symlink_to(pool / "a.mp4")
    with pytest.raises(UserError, match=r"a\.mp4 leads to .*pool/a\.mp4, outside of .*data\.follow_links=true"):
        scan(_opened(tmp_path))
    followed = _opened(tmp_path, follow_links=True)
    assert numbers(followed.frames(0, 3)) == [0, 1, 2]
    _age(pool)
    scan(_opened(tmp_path, follow_links=True))
    with pytest.raises(UserError, match=r"data\.follow_links=true"):
        scan(_opened(tmp_path))


def test_linked_frames_captions_and_folders_do_not_lead_out(tmp_path: Path):
    folder = _frame_folder(tmp_path, "a")
    other = _save(tmp_path / "pool" / "frames" / "1.png", numbered(12))
    _save(other.with_name("2.png"), numbered(13))
    (tmp_path / "clips" / "b").symlink_to(other.parent)
    (note,) = _opened(tmp_path).notes()
    assert note.startswith("1 linked folder is skipped in ")
    assert _names(_opened(tmp_path, follow_links=True)) == ["a", "b"]
    (folder / "frame12.png").symlink_to(other)
    with pytest.raises(UserError, match=r"frame12\.png leads to .*data\.follow_links=true"):
        scan(_opened(tmp_path))
    (folder / "frame12.png").unlink()
    (tmp_path / "clips" / "a.txt").symlink_to("/etc/hostname")
    with pytest.raises(UserError, match=r"a\.txt leads to /etc/hostname"):
        _opened(tmp_path)


def test_broken_clips_are_named_together(tmp_path: Path):
    for name in "abc":
        _video(tmp_path, f"{name}.mp4", 3)
    for name in "bc":
        (tmp_path / "clips" / f"{name}.mp4").write_bytes(b"not a video")
    with pytest.raises(ExperimentErrors, match="has 2 mistakes") as found:
        scan(_opened(tmp_path))
    assert [".mp4 cannot be read" in problem for problem in found.value.problems] == [True, True]


def test_files_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    _video(tmp_path, "a.mp4")
    monkeypatch.setattr(videos, "MOST_FILE_BYTES", 100)
    with pytest.raises(UserError, match=r"a\.mp4 has .*; at most 100 B are read"):
        scan(_opened(tmp_path))


@pytest.mark.parametrize("num_frames", [3, 12])
def test_a_clip_that_changes_is_named(tmp_path: Path, num_frames: int):
    path = _video(tmp_path, "a.mp4", 6)
    source = _opened(tmp_path)
    source.info(0)
    changed = [numbered(number, size_px=(64, 64)) for number in range(num_frames)] if num_frames > 6 else num_frames
    save_video(path, changed)
    with pytest.raises(UserError, match=r"a\.mp4 has changed since this run began.*6 frames of 32 x 16 px"):
        source.frames(0, 6)
    path.unlink()
    with pytest.raises(UserError, match=r"a\.mp4 cannot be opened"):
        source.pixels(0)


def test_frames_that_change_or_vanish_are_named(tmp_path: Path):
    folder = _frame_folder(tmp_path, "a")
    source = _opened(tmp_path)
    source.info(0)
    _save(folder / "frame2.png", numbered(3, size_px=(20, 10)))
    with pytest.raises(UserError, match=r"clips/a has changed since this run began"):
        source.frames(0, 2)
    (folder / "frame2.png").unlink()
    with pytest.raises(UserError, match=r"frame2\.png cannot be opened"):
        source.frames(0, 2)


@pytest.mark.parametrize("fps", [None, 12])
def test_a_source_can_be_sent_to_a_worker(tmp_path: Path, fps: float | None):
    _video(tmp_path, "a.mp4", 8)
    _frame_folder(tmp_path, "b")
    source = _opened(tmp_path, fps=fps)
    for known in (False, True):
        if known:
            scan(source)
        copy = pickle.loads(pickle.dumps(source))  # noqa: S301
        assert copy.fingerprint() == _opened(tmp_path, fps=fps).fingerprint()
        for index in range(2):
            assert all(map(np.array_equal, copy.frames(index, 3), source.frames(index, 3)))


def test_a_second_start_reads_no_clip_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    read: list[str] = []
    read_facts, size_px = videos.read_facts, images.size_px

    def noted_facts(file: Any, name: str) -> videos.VideoFacts:
        read.append(Path(name).name)
        return read_facts(file, name)

    def noted_size(data: bytes, name: str) -> tuple[int, int]:
        read.append(Path(name).name)
        return size_px(data, name)

    monkeypatch.setattr(videos, "read_facts", noted_facts)
    monkeypatch.setattr(images, "size_px", noted_size)
    _video(tmp_path, "a.mp4", 8)
    folder = _frame_folder(tmp_path, "b", order=(1, 2))
    _age(tmp_path / "clips")
    first = _opened(tmp_path).fingerprint()
    assert read == ["a.mp4", "frame1.png", "frame2.png"]
    read.clear()
    source = _opened(tmp_path)
    assert source.fingerprint() == first
    assert numbers(source.frames(0, 3)) == [0, 1, 2]
    # The rate is not part of what is remembered.
    assert _opened(tmp_path, fps=12).info(0).num_frames == 4
    assert numbers(_opened(tmp_path, fps=12).frames(0, 4)) == [0, 2, 4, 6]
    assert read == []
    _video(tmp_path, "a.mp4", 5)
    (folder / "frame2.png").rename(folder / "frame0.png")
    changed = _opened(tmp_path)
    assert changed.info(0).num_frames == 5
    assert numbers(changed.frames(1, 2)) == [2, 1]
    scan(changed)
    assert read == ["a.mp4", "frame0.png", "frame1.png"]


def test_frames_of_a_new_file_are_not_counted_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    # The memo does not store what is learnt of a file that could still be written to.
    monkeypatch.setattr(Memo, "store", lambda self, name, now, value: None)
    _video(tmp_path, "a.mp4", 8)
    source = _opened(tmp_path, fps=12)
    source.info(0)
    monkeypatch.setattr(videos, "read_facts", None)
    assert numbers(source.frames(0, 2)) == [0, 2]


def test_the_fingerprint_is_of_contents_rate_captions_and_repeats_only(tmp_path: Path):
    video = _video(tmp_path, "a.mp4", 8)
    folder = _frame_folder(tmp_path, "b")
    first = _opened(tmp_path).fingerprint()
    elsewhere = tmp_path / "elsewhere" / "deep"
    shutil.copytree(folder, elsewhere / "y")
    shutil.copy(video, elsewhere / "x.mov")
    assert _opened(tmp_path, path=str(elsewhere)).fingerprint() == first
    others = {
        first,
        _opened(tmp_path, repeats=2).fingerprint(),
        _opened(tmp_path, trigger="sks").fingerprint(),
        _opened(tmp_path, fps=12).fingerprint(),
        _opened(tmp_path, fps=8).fingerprint(),
    }
    (elsewhere / "y" / "frame1.png").rename(elsewhere / "y" / "frame12.png")
    others.add(_opened(tmp_path, path=str(elsewhere)).fingerprint())
    assert len(others) == 6


def test_latents_of_another_rate_have_another_fingerprint(tmp_path: Path):
    _video(tmp_path, "a.mp4", 24)
    _frame_folder(tmp_path, "b")
    at_rates = [_opened(tmp_path, fps=fps) for fps in (None, 12, 8)]
    assert len({source.info(0).fingerprint for source in at_rates}) == 3
    assert len({source.info(1).fingerprint for source in at_rates}) == 1


def test_folders_of_frames_need_no_decoder_for_videos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "av", None)
    _frame_folder(tmp_path, "a")
    assert numbers(_opened(tmp_path).frames(0, 2)) == [1, 2]
    (tmp_path / "clips" / "b.mp4").write_bytes(b"x")
    with pytest.raises(UserError, match=r"Run: pip install 'foretune\[video\]'"):
        _opened(tmp_path)
