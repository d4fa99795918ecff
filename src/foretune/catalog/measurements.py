"""Published measurements: other people's numbers, row by row, each with its source."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, Self, cast

from pydantic import Field, model_validator

from foretune.catalog.devices import Grade
from foretune.catalog.rows import DATA_DIR, Row, doubles, raise_all, read_csv, validated

Text = Annotated[str, Field(min_length=1)]
Size = Annotated[int, Field(gt=0)]
Amount = Annotated[float, Field(gt=0)]

# The fewest and the most bytes that one unit can mean. Publishers often write GB for GiB, so GB and MB stay
# open; "GB (13102 MiB)" is a row that gives both, and there GB is 10**9.
_UNIT_BYTES: Mapping[str, tuple[int, int]] = {
    "GiB": (2**30, 2**30),
    "GB": (10**9, 2**30),
    "GB(unspecified)": (10**9, 2**30),
    "GB (13102 MiB)": (10**9, 10**9),
    "MB": (10**6, 2**20),
}

Words = Mapping[str, frozenset[str]]


class Measurement(Row):
    """One published row. Columns keep the publisher's words; numbers are parsed, None where none was given.

    Where a text stands instead of a number (a rank of "factor 12"), the number is None and the text is in
    `as_published` under its column.
    """

    id: Annotated[str, Field(pattern=r"^GT\d{4}$")]
    subset: Literal["core", "extended"]
    task: Literal["train", "infer"]
    model: Text
    params_b: Annotated[float, Field(gt=0, le=1000)] | None
    """Parameters of the denoiser in 10**9."""
    method: Text
    lora_rank: Size | None
    lora_targets: Text | None
    precision: Text | None
    quantization: Text | None
    optimizer: Text | None
    batch_size_per_gpu: Size | None = Field(alias="batch_per_gpu")
    num_accumulation_steps: Size | None = Field(alias="grad_accum")
    resolution: Text | None
    num_frames: Size | None = Field(alias="frames")
    grad_ckpt: Text | None
    cache_latents: Text | None
    cache_text_emb: Text | None
    parallelism: Text | None
    num_gpus: Size | None = Field(alias="n_gpus")
    gpu: Text
    gpu_mem_gb: Annotated[float, Field(gt=0, le=4096)] | None
    framework: Text
    fits: Text | None
    """What was said about fitting; `fitted` is the verdict."""
    peak_mem: Amount | None
    """In `peak_mem_unit`; bytes by `peak_mem_bytes`."""
    peak_mem_unit: Text | None
    peak_mem_kind: Text | None
    """Which figure it is: allocated, reserved, the device's limit, a statement."""
    peak_bound: Text | None
    speed: Amount | None
    """In `speed_unit`, which may be time for work or work for time."""
    speed_unit: Text | None
    samples_per_s_per_gpu: Amount | None
    """The speed turned into one unit; for video, samples are videos."""
    grade: Grade
    source: Text
    source_commit: Annotated[str, Field(pattern=r"^([0-9a-f]{12}|tag \S+)$")] | None
    notes: Text | None
    as_published: Mapping[str, str]

    @property
    def bound(self) -> Literal["exact", "approx", "lower", "upper"] | None:
        """How the published peak stands to the true one; lower says that it is at least this."""
        if self.peak_bound is None:
            return None
        return cast(Literal["exact", "approx", "lower", "upper"], self.peak_bound.split()[0])

    @property
    def fitted(self) -> bool | None:
        """True: it ran. False: out of memory. None: not said."""
        return None if self.fits is None else self.fits.startswith("fits")

    @property
    def peak_mem_bytes(self) -> int | None:
        """The peak with its unit read as written: GiB is 2**30, GB is 10**9, MB is 10**6."""
        return None if self.peak_mem_bytes_range is None else self.peak_mem_bytes_range[0]

    @property
    def peak_mem_bytes_range(self) -> tuple[int, int] | None:
        """The least and the most bytes the figure can mean: the publisher's GB may be GiB, 7 % more."""
        if self.peak_mem is None or self.peak_mem_unit is None:
            return None
        least, most = _UNIT_BYTES[self.peak_mem_unit]
        return round(self.peak_mem * least), round(self.peak_mem * most)

    @model_validator(mode="after")
    def _numbers_have_units(self) -> Self:
        peak_words = (self.peak_mem_unit, self.peak_mem_kind, self.peak_bound)
        if self.peak_mem is not None and None in peak_words:
            raise ValueError("a peak needs peak_mem_unit, peak_mem_kind and peak_bound")
        if (self.speed is None) != (self.speed_unit is None):
            raise ValueError("a speed and its unit stand together")
        if self.samples_per_s_per_gpu is not None and self.speed is None:
            raise ValueError("samples_per_s_per_gpu is derived from a speed, and there is none")
        return self


def read_words(path: Path) -> tuple[Words, Words]:
    """The closed vocabularies: texts a column may hold, and texts that may stand instead of a number."""
    document = json.loads(path.read_text(encoding="utf-8"))
    closed, instead = (
        {column: frozenset(words) for column, words in document[part].items()}
        for part in ("words", "instead_of_a_number")
    )
    assert closed["peak_mem_unit"] == set(_UNIT_BYTES), "a memory unit has no meaning in bytes"
    return closed, instead


def _with_texts_apart(raw: Mapping[str, Any], instead_of_a_number: Words) -> dict[str, Any]:
    texts = {column: raw[column] for column, words in instead_of_a_number.items() if raw.get(column) in words}
    return {**raw, **dict.fromkeys(texts), "as_published": texts}


def read_measurements(path: Path, words_path: Path) -> Mapping[str, Measurement]:
    """Every measurement of a file by id; raises `CatalogError` with all that is wrong with the file."""
    closed, instead = read_words(words_path)
    cells, malformed = read_csv(path)
    raw_rows = [_with_texts_apart(raw, instead) for raw in cells]
    rows, problems = validated(Measurement, raw_rows, label="id")
    unknown_words = [
        f"row {number} ({raw.get('id')}), {column}: {raw[column]!r} is not a known word"
        for number, raw in enumerate(raw_rows, start=1)
        for column, words in closed.items()
        if raw.get(column) is not None and raw[column] not in words
    ]
    raise_all(path, [*malformed, *problems, *unknown_words, *doubles(rows, lambda row: row.id)])
    return MappingProxyType({row.id: row for row in rows})


@cache
def measurements() -> Mapping[str, Measurement]:
    """Every published measurement of the catalogue by id."""
    return read_measurements(DATA_DIR / "published_measurements.csv", DATA_DIR / "measurement_words.json")
