"""Decodes video files of known containers and limited size.

FFmpeg reads only the file that it is given: playlists, and files or addresses that a file names, are refused.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, BinaryIO, NoReturn

from foretune.core.errors import MissingExtra, UserError
from foretune.data.frame_rates import Sampling, Timing
from foretune.data.images import MOST_PIXELS, Pixels
from foretune.data.shown_frames import require_few_pixels, require_sdr, shown_pixels

SUFFIXES = (".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".gif")
FORMATS = ("MP4", "QuickTime", "Matroska", "WebM", "AVI", "GIF")
MOST_FILE_BYTES = 64 * 2**30
"""Limit for one video file, which is read in parts."""
_MOST_FRAMES = 5_000_000
_OPTIONS = {
    # By FFmpeg's names. Formats that make it open other files, such as playlists, are not among them.
    "format_whitelist": "mov,matroska,avi,gif",
    "protocol_whitelist": "none",
    "max_pixels": str(MOST_PIXELS),
}
# Packets of this codec can hold frames that are not shown.
_HIDES_FRAMES = "vp8"
_EBML_ID, _SEGMENT_ID = b"\x1a\x45\xdf\xa3", b"\x18\x53\x80\x67"
# Exceptions that PyAV raises on broken input, beside its own.
_BROKEN = (OSError, ValueError, TypeError, LookupError, ArithmeticError, RuntimeError, MemoryError, EOFError)


@dataclass(frozen=True, kw_only=True, slots=True)
class VideoFacts:
    """What is known about a video after reading it, without decoding more than its first frame."""

    width_px: int
    height_px: int
    """As shown: upright, with square pixels."""
    timing: Timing


def require_decoder() -> None:
    """Raises an error with the install command if the package that decodes videos is missing."""
    try:
        import av  # noqa: F401
    except ModuleNotFoundError as error:
        raise MissingExtra("Reading video files", "video") from error


def read_facts(file: BinaryIO, name: str) -> VideoFacts:
    """Reads size and timestamps of a video. `name` is for the error."""
    with _opened(file, name) as (container, stream):
        packets = _PacketTimes()
        first: Any = None
        for packet in container.demux(stream):
            if first is None:
                first = next(iter(packet.decode()), None)
            if packet.is_corrupt:
                raise _cut_short(name)
            # The last packet is empty: it makes the decoder return what it holds back.
            if packet.size:
                packets.add(packet)
            if len(packets.shown) > _MOST_FRAMES:
                raise UserError(f"The video {name} has more than {_MOST_FRAMES:,} frames. Cut it into shorter ones.")
        num_bytes = os.fstat(file.fileno()).st_size
        if any(entry.pos + entry.size > num_bytes for entry in stream.index_entries):
            raise _cut_short(name)
        if first is None:
            raise UserError(f"No frame of the video {name} can be decoded. Replace it, or take it out of the data.")
        require_sdr(first, name)
        pixels = shown_pixels(first, stream, name)
        tick_s = stream.time_base
        is_one_each = packets.are_plain and stream.codec_context.name != _HIDES_FRAMES and not first.interlaced_frame
    if _is_short_matroska(file, num_bytes):
        raise _cut_short(name)
    times: list[int | None] = [*packets.shown] if is_one_each else _decoded_times(file, name)
    known = [time for time in times if time is not None]
    span = max(known) - min(known) if len(known) == len(times) else 0
    timing = Timing(num_frames=len(times), span_s=span * tick_s, tick_s=tick_s)
    return VideoFacts(width_px=pixels.shape[1], height_px=pixels.shape[0], timing=timing)


def read_frames(file: BinaryIO, name: str, num_frames: int, sampling: Sampling | None) -> list[Pixels]:
    """Decodes the first frames of a video, each (H, W, 3), and no more. Without a `sampling` all frames count.

    There are fewer if the video ends before.
    """
    frames: list[Pixels] = []
    with _opened(file, name) as (container, stream):
        decoded = _decoded(container, stream, name)
        for frame in decoded if sampling is None else sampling.pick(_timed(decoded, name)):
            frames.append(shown_pixels(frame, stream, name))
            if frames[-1].shape != frames[0].shape:
                raise UserError(
                    f"The video {name} changes its size at frame {len(frames)}. Cut it there, or take it out of the "
                    "data."
                )
            if len(frames) == num_frames:
                break
    return frames


class _PacketTimes:
    """Timestamps of packets, in the unit of the stream."""

    def __init__(self) -> None:
        self.shown: list[int] = []
        self._begin: int | None = None
        self._is_regular = True

    @property
    def are_plain(self) -> bool:
        """Whether the decoder makes one frame of each. It does not of what comes before the first key frame."""
        return self._is_regular and len(set(self.shown)) == len(self.shown)

    def add(self, packet: Any) -> None:
        if self._begin is None:
            self._begin = packet.pts
            self._is_regular &= packet.is_keyframe
        if packet.pts is None or packet.pts < self._begin:
            self._is_regular = False
        elif not packet.is_discard:
            # An edit list, such as a phone writes when a video is trimmed, hides the others.
            self.shown.append(packet.pts)


@contextmanager
def _opened(file: BinaryIO, name: str) -> Iterator[tuple[Any, Any]]:
    """Opens a video for reading; yields the container and its video stream. Errors in the block name the file."""
    require_decoder()
    import av

    file.seek(0)
    try:
        # Texts in the file are not used, so that their encoding does not matter.
        with av.open(file, options=_OPTIONS, io_open=_refuse_to_open, metadata_errors="replace") as container:
            stream = _video_stream(container, name)
            codec = stream.codec_context
            # With more, FFmpeg does not report all damaged frames. Clips are decoded side by side: data.num_workers.
            codec.thread_count = 1
            codec.options = {"max_pixels": str(MOST_PIXELS)}
            yield container, stream
    except (av.FFmpegError, *_BROKEN) as error:
        raise _unreadable(name, error) from error


def _refuse_to_open(url: str, flags: int, options: dict[str, str]) -> NoReturn:  # noqa: ARG001
    raise PermissionError(f"it refers to {url}")


def _video_stream(container: Any, name: str) -> Any:
    from av.stream import Disposition

    streams = [stream for stream in container.streams.video if not stream.disposition & Disposition.attached_pic]
    if not streams:
        raise UserError(f"The video {name} has no pictures, only sound or text. Take it out of the data.")
    codec = streams[0].codec_context
    if codec is None:
        raise UserError(f"The video {name} has a codec that cannot be decoded. Convert it, for example to H.264.")
    require_few_pixels(codec.width, codec.height, name)
    return streams[0]


def _decoded(container: Any, stream: Any, name: str) -> Iterator[Any]:
    """Yields frames in the order of display."""
    for number, frame in enumerate(container.decode(stream), start=1):
        if frame.is_corrupt:
            raise UserError(f"The video {name} is damaged at frame {number}. Replace it, or take it out of the data.")
        yield frame


def _decoded_times(file: BinaryIO, name: str) -> list[int | None]:
    """Returns the timestamps of all frames by decoding them, for files whose packets do not tell."""
    with _opened(file, name) as (container, stream):
        return [frame.pts for frame in _decoded(container, stream, name)]


def _timed(frames: Iterator[Any], name: str) -> Iterator[tuple[Fraction, Any]]:
    """Yields frames with their times since the first."""
    begin: int | None = None
    for frame in frames:
        if frame.pts is None:
            raise UserError(f"The video {name} has frames without timestamps. Convert it, or leave data.fps out.")
        begin = frame.pts if begin is None else begin
        yield (frame.pts - begin) * frame.time_base, frame


def _is_short_matroska(file: BinaryIO, num_bytes: int) -> bool:
    """Whether a Matroska file ends before the end that its header states, which its packets do not show."""
    file.seek(0)
    head = file.read(256)
    begin = head.find(_SEGMENT_ID) + len(_SEGMENT_ID)
    if not head.startswith(_EBML_ID) or begin < len(_SEGMENT_ID) or not any(head[begin : begin + 1]):
        return False
    # The first byte has as many leading zeros as bytes follow it.
    length = 9 - head[begin].bit_length()
    unknown = (1 << 7 * length) - 1
    stated = int.from_bytes(head[begin : begin + length], "big") & unknown
    return stated != unknown and begin + length + stated > num_bytes


def _cut_short(name: str) -> UserError:
    return UserError(
        f"The video {name} is cut short: it ends before its last frame. Download or copy it again, or take it out of "
        "the data."
    )


def _unreadable(name: str, error: BaseException) -> UserError:
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return UserError(
        f"The video {name} cannot be read ({reason}). It must be a whole file in one of the formats "
        f"{', '.join(FORMATS)}: replace it, or take it out of the data."
    )
