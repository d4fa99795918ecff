"""Video files as they are decoded: order, size, colours, and what is refused."""

import struct
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from foretune.core.errors import UserError
from foretune.data import shown_frames, videos
from foretune.data.images import Pixels
from tests.data.made_videos import CODECS, numbered, numbers, save_video

RED, GREEN, BLUE, GREY = (220, 30, 30), (30, 200, 40), (30, 40, 220), (128, 128, 128)


def _facts(path: Path) -> videos.VideoFacts:
    with path.open("rb") as file:
        return videos.read_facts(file, path.name)


def _frames(path: Path, num_frames: int = 1_000_000) -> list[Pixels]:
    with path.open("rb") as file:
        return videos.read_frames(file, path.name, num_frames, None)


def _size_px(path: Path) -> tuple[int, int]:
    facts = _facts(path)
    return facts.width_px, facts.height_px


def _noise(num_frames: int) -> list[Pixels]:
    """Frames that take many bytes."""
    return list(np.random.default_rng(0).integers(0, 256, (num_frames, 48, 64, 3), dtype=np.uint8))


def _quarters() -> Pixels:
    """Red and green above, blue and grey below, 48 x 32 px."""
    picture = np.zeros((32, 48, 3), dtype=np.uint8)
    picture[:16, :24], picture[:16, 24:], picture[16:, :24], picture[16:, 24:] = RED, GREEN, BLUE, GREY
    return picture


def _corners(pixels: Pixels) -> list[tuple[int, ...]]:
    """The colours of the quarters, row by row, each rounded to the nearest known one."""
    height_px, width_px, _ = pixels.shape
    points = [pixels[height_px * row // 4, width_px * column // 4] for row in (1, 3) for column in (1, 3)]
    known = (RED, GREEN, BLUE, GREY)
    return [min(known, key=lambda colour: int(np.abs(point.astype(int) - colour).sum())) for point in points]


@pytest.mark.parametrize("suffix", CODECS)
def test_frames_are_counted_as_they_are_decoded_and_come_in_order(tmp_path: Path, suffix: str):
    path = save_video(tmp_path / f"a{suffix}", 20)
    facts = _facts(path)
    assert (facts.width_px, facts.height_px, facts.timing.num_frames) == (32, 16, 20)
    assert float(facts.timing.rate_fps or 0) == pytest.approx(24, rel=0.02)
    frames = _frames(path)
    assert numbers(frames) == list(range(20))
    assert (frames[0].shape, str(frames[0].dtype)) == ((16, 32, 3), "uint8")


def test_frames_that_are_stored_out_of_order_come_in_the_order_of_display(tmp_path: Path):
    def with_b_frames(stream: Any) -> None:
        stream.options = {"bf": "2"}
        stream.bit_rate = 4_000_000

    path = save_video(tmp_path / "a.mp4", 20, prepare=with_b_frames)
    with av.open(str(path)) as container:
        stored: list[Any] = [packet.pts for packet in container.demux(video=0) if packet.size]
    assert stored != sorted(stored)
    assert numbers(_frames(path)) == list(range(20))


def test_only_the_frames_that_are_asked_for_are_decoded(tmp_path: Path):
    path = save_video(tmp_path / "a.mkv", 24)
    data = bytearray(path.read_bytes())
    data[-len(data) // 3 :] = b"\x55" * len(data[-len(data) // 3 :])
    path.write_bytes(data)
    assert numbers(_frames(path, 3)) == [0, 1, 2]


@pytest.mark.parametrize(
    ("degrees", "mirrored", "size_px", "shown"),
    [
        (0, False, (48, 32), [RED, GREEN, BLUE, GREY]),
        (90, False, (32, 48), [GREEN, GREY, RED, BLUE]),
        (180, False, (48, 32), [GREY, BLUE, GREEN, RED]),
        (-90, False, (32, 48), [BLUE, RED, GREY, GREEN]),
        (0, True, (48, 32), [GREEN, RED, GREY, BLUE]),
        (-90, True, (32, 48), [RED, BLUE, GREEN, GREY]),
    ],
)
def test_videos_are_turned_as_the_phone_was_held(
    tmp_path: Path, degrees: int, mirrored: bool, size_px: tuple[int, int], shown: list[tuple[int, ...]]
):
    path = save_video(
        tmp_path / "a.mp4",
        [_quarters()] * 3,
        prepare=lambda stream: stream.set_display_rotation(degrees, hflip=mirrored),
    )
    assert _size_px(path) == size_px
    (frame,) = _frames(path, 1)
    assert frame.shape == (size_px[1], size_px[0], 3)
    assert _corners(frame) == shown


def test_pixels_that_are_not_square_are_made_square(tmp_path: Path):
    def twice_as_wide(stream: Any) -> None:
        stream.codec_context.sample_aspect_ratio = Fraction(2, 1)

    path = save_video(tmp_path / "a.mp4", [_quarters()] * 3, prepare=twice_as_wide)
    assert _size_px(path) == (96, 32)
    assert _corners(_frames(path)[0]) == [RED, GREEN, BLUE, GREY]


def test_transparent_pixels_are_white(tmp_path: Path):
    picture = np.zeros((16, 32, 4), dtype=np.uint8)
    picture[:, 16:] = (10, 20, 30, 255)
    frame = _frames(save_video(tmp_path / "a.mkv", [picture] * 2, codec=("ffv1", "bgra")))[0]
    assert (frame[8, 4].tolist(), frame[8, 28].tolist()) == ([255, 255, 255], [10, 20, 30])


@pytest.mark.parametrize("pix_fmt", ["yuv420p10le", "yuv444p10le", "yuv444p16le", "gbrp12le", "yuv422p"])
def test_other_depths_become_8_bits(tmp_path: Path, pix_fmt: str):
    path = save_video(tmp_path / "a.mkv", [_quarters()] * 2, codec=("ffv1", pix_fmt))
    frame = _frames(path)[0]
    assert np.abs(frame[8, 8].astype(int) - RED).max() <= 4
    assert np.abs(frame[24, 40].astype(int) - GREY).max() <= 4


@pytest.mark.parametrize(("matrix", "is_full"), [(1, False), (5, False), (5, True), (9, False)])
def test_colours_follow_the_matrix_and_the_range_of_the_file(tmp_path: Path, matrix: int, is_full: bool):
    """1 is BT.709, 5 is BT.601, 9 is BT.2020."""
    colour = (200, 90, 40)
    picture = av.VideoFrame.from_ndarray(np.full((16, 32, 3), colour, dtype=np.uint8), "rgb24")
    coded = picture.reformat(format="yuv444p", dst_colorspace=matrix, dst_color_range=1 + is_full)
    path = tmp_path / "a.mkv"
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("ffv1", rate=24)
        stream.width, stream.height, stream.pix_fmt = 32, 16, "yuv444p"
        stream.codec_context.colorspace, stream.codec_context.color_range = matrix, 1 + is_full
        coded.colorspace, coded.color_range, coded.pts, coded.time_base = matrix, 1 + is_full, 0, Fraction(1, 24)
        container.mux(stream.encode(coded))
        container.mux(stream.encode())
    assert np.abs(_frames(path)[0][8, 8].astype(int) - colour).max() <= 3


@pytest.mark.parametrize(("transfer", "name"), [(16, "PQ"), (18, "HLG")])
def test_hdr_is_refused(tmp_path: Path, transfer: int, name: str):
    def as_hdr(stream: Any) -> None:
        stream.codec_context.color_trc = transfer

    path = save_video(tmp_path / "a.mkv", 3, codec=("ffv1", "yuv420p10le"), prepare=as_hdr)
    with pytest.raises(UserError, match=rf"a\.mkv is HDR \({name}\).*Convert it to SDR"):
        _facts(path)


def test_a_trimmed_video_has_the_frames_that_it_shows(tmp_path: Path):
    path = save_video(tmp_path / "a.mp4", 20)
    data = bytearray(path.read_bytes())
    place = data.index(b"elst") + 12
    duration, begin = struct.unpack_from(">Ii", data, place)
    with av.open(str(path)) as container:
        stream: Any = container.streams.video[0]
        ticks_each = stream.duration // 20
    struct.pack_into(">Ii", data, place, duration // 2, begin + 4 * ticks_each)
    path.write_bytes(data)
    frames = _frames(path)
    assert numbers(frames)[:3] == [4, 5, 6]
    assert _facts(path).timing.num_frames == len(frames) < 16


def test_frames_before_the_first_key_frame_are_not_counted(tmp_path: Path):
    def short_groups(stream: Any) -> None:
        stream.codec_context.gop_size = 5

    whole = save_video(tmp_path / "whole.mp4", 20, codec=("libx264", "yuv420p"), prepare=short_groups)
    path = tmp_path / "cut.mp4"
    with av.open(str(whole)) as source, av.open(str(path), "w") as cut:
        stream = cut.add_stream_from_template(source.streams.video[0])
        for number, packet in enumerate(source.demux(video=0)):
            if number >= 2 and packet.dts is not None:
                packet.stream = stream
                cut.mux(packet)
    frames = _frames(path)
    assert _facts(path).timing.num_frames == len(frames)
    shown = numbers(frames)
    assert shown == list(range(shown[0], 20))
    assert shown[0] > 2


@pytest.mark.parametrize(
    ("suffix", "options"),
    [(".mp4", {}), (".mp4", {"movflags": "faststart"}), (".mkv", {}), (".webm", {}), (".avi", {})],
)
@pytest.mark.parametrize("share", [0.05, 0.5, 0.8])
def test_a_truncated_file_is_named(tmp_path: Path, suffix: str, options: dict[str, str], share: float):
    path = save_video(tmp_path / f"a{suffix}", _noise(20), options=options)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(
        UserError, match=rf"a\{suffix} (is cut short|cannot be read|can be decoded)|video a\{suffix} can"
    ):
        _facts(path)


def test_a_file_that_ends_between_two_frames_is_named(tmp_path: Path):
    path = save_video(tmp_path / "a.mp4", _noise(20), options={"movflags": "faststart"})
    with av.open(str(path)) as container:
        places = [packet.pos for packet in container.demux(video=0) if packet.size]
    path.write_bytes(path.read_bytes()[: places[10]])
    with pytest.raises(UserError, match=r"a\.mp4 is cut short"):
        _facts(path)


@pytest.mark.parametrize("suffix", [".mp4", ".avi"])
def test_damage_inside_is_named_when_it_is_decoded(tmp_path: Path, suffix: str):
    path = save_video(tmp_path / f"a{suffix}", _noise(12))
    data = bytearray(path.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 400] = np.random.default_rng(1).bytes(400)
    path.write_bytes(data)
    assert _facts(path).timing.num_frames == 12
    with pytest.raises(UserError, match=rf"a\{suffix} (is damaged at frame|cannot be read)"):
        _frames(path)


@pytest.mark.parametrize("content", [b"", b"\0" * 5000, b"a harbour at dusk\n" * 100, b"RIFF\xff\xff\xff\xffAVI LIST"])
def test_what_is_not_a_video_is_named(tmp_path: Path, content: bytes):
    path = tmp_path / "a.mp4"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"The video a\.mp4 (cannot be read|has no pictures)"):
        _facts(path)


def test_the_content_decides_which_container_it_is(tmp_path: Path):
    mkv = save_video(tmp_path / "a.mkv", 3).rename(tmp_path / "a.mp4")
    assert _facts(mkv).timing.num_frames == 3
    ts = save_video(tmp_path / "b.ts", _noise(5), codec=("mpeg2video", "yuv420p"), rate_fps=25)
    with pytest.raises(UserError, match=r"b\.mp4 cannot be read .* in one of the formats MP4, QuickTime, Matroska"):
        _facts(ts.rename(tmp_path / "b.mp4"))


def test_sound_alone_is_named(tmp_path: Path):
    path = tmp_path / "a.mkv"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("pcm_s16le", rate=8000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 800), dtype=np.int16), format="s16", layout="mono")
        frame.sample_rate, frame.pts = 8000, 0
        container.mux(stream.encode(frame))
        container.mux(stream.encode())
    with pytest.raises(UserError, match=r"a\.mkv has no pictures"):
        _facts(path)


def test_too_many_pixels_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = save_video(tmp_path / "a.mp4", 2)
    monkeypatch.setattr(shown_frames, "MOST_PIXELS", 32 * 16 - 1)
    with pytest.raises(UserError, match=r"a\.mp4 has 32 x 16 pixels; at most"):
        _facts(path)


def test_texts_in_any_encoding_do_no_harm(tmp_path: Path):
    path = save_video(tmp_path / "a.mkv", 3, prepare=lambda stream: stream.metadata.update(title="harbour_at_dusk"))
    data = path.read_bytes()
    assert data.count(b"harbour_at_dusk") == 1
    path.write_bytes(data.replace(b"harbour_at_dusk", b"caf\xe9 at dusk \xff\xfe"))
    assert _facts(path).timing.num_frames == 3


_PLAYLISTS = {
    "hls": "#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\n{}\n#EXT-X-ENDLIST\n",
    "ffconcat": "ffconcat version 1.0\nfile '{}'\n",
}


@pytest.mark.skipif(sys.platform != "linux", reason="the count of who opens a file is Linux's")
@pytest.mark.parametrize("named", ["other.ts", "{outside}/other.ts", "file:{outside}/other.ts", "concat:other.ts"])
@pytest.mark.parametrize("kind", _PLAYLISTS)
@pytest.mark.parametrize("suffix", [".mp4", ".m3u8"])
def test_a_playlist_is_refused_and_opens_nothing(tmp_path: Path, kind: str, named: str, suffix: str):
    from tests.proofs.hostile_reading import OpenCount

    outside = tmp_path / "outside"
    save_video(outside / "other.ts", _noise(5), codec=("mpeg2video", "yuv420p"), rate_fps=25)
    playlist = outside / f"playlist{suffix}"
    playlist.write_text(_PLAYLISTS[kind].format(named.format(outside=outside)))
    if (named, suffix) == ("other.ts", ".m3u8"):
        # The control: FFmpeg itself follows it.
        with av.open(str(playlist)) as container:
            assert sum(1 for _ in container.decode(video=0)) == 5
    with playlist.open("rb") as file:
        count = OpenCount(outside)
        with pytest.raises(UserError, match=r"playlist.* cannot be read"):
            videos.read_facts(file, playlist.name)
    assert set(count.close()) <= {playlist.name}


def test_a_missing_package_is_named_with_the_command_that_installs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = save_video(tmp_path / "a.mp4", 2)
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(UserError, match=r"Reading video files needs .* Run: pip install 'foretune\[video\]'"):
        _facts(path)


def test_control_numbers_tell_frames_apart():
    assert numbers([numbered(number) for number in (0, 7, 30)]) == [0, 7, 30]
