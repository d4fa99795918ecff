"""Small video files, written with PyAV. Each frame has a brightness of its own."""

from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np

from foretune.data.images import Pixels

SIZE_PX = (32, 16)
_BRIGHTER = 6
CODECS = {
    ".mp4": ("mpeg4", "yuv420p"),
    ".m4v": ("mpeg4", "yuv420p"),
    ".mov": ("mpeg4", "yuv420p"),
    ".avi": ("mpeg4", "yuv420p"),
    # Lossless, so that colours can be compared exactly.
    ".mkv": ("ffv1", "bgr0"),
    ".webm": ("libvpx-vp9", "yuv420p"),
    ".gif": ("gif", "rgb8"),
}


def numbered(number: int, size_px: tuple[int, int] = SIZE_PX) -> Pixels:
    """A frame of one grey: number 0 is dark, number 30 is bright."""
    return np.full((size_px[1], size_px[0], 3), 20 + _BRIGHTER * number, dtype=np.uint8)


def numbers(frames: Sequence[Pixels]) -> list[int]:
    """The numbers of frames that `numbered` made, if no encoder changed them by half a number."""
    return [round((float(frame.mean()) - 20) / _BRIGHTER) for frame in frames]


def save_video(
    path: Path,
    frames: int | Sequence[Pixels] = 12,
    *,
    rate_fps: Fraction | int = 24,
    times_ms: Sequence[int] | None = None,
    codec: tuple[str, str] | None = None,
    prepare: Callable[[Any], None] = lambda stream: None,
    options: dict[str, str] | None = None,
) -> Path:
    """Writes frames, or so many numbered ones. `prepare` gets the stream before its first frame."""
    pictures = [numbered(number) for number in range(frames)] if isinstance(frames, int) else frames
    name, pix_fmt = codec or CODECS[path.suffix]
    assert name in av.codecs_available, f"this FFmpeg has no {name}; PyAV's wheels have it"
    path.parent.mkdir(parents=True, exist_ok=True)
    tick_s = Fraction(1, 1000) if times_ms is not None else 1 / Fraction(rate_fps)
    with av.open(str(path), "w", options=options or {}) as container:
        stream: Any = container.add_stream(name, rate=1000 if times_ms is not None else rate_fps)
        stream.height, stream.width = pictures[0].shape[:2]
        stream.pix_fmt = pix_fmt
        stream.codec_context.time_base = tick_s
        prepare(stream)
        for number, picture in enumerate(pictures):
            form = "rgba" if picture.shape[2] == 4 else "rgb24"
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), form)
            frame.pts = number if times_ms is None else times_ms[number]
            frame.time_base = tick_s
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path
