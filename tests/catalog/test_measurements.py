"""Published measurements: parsed numbers, units, and a check that sees every planted mistake."""

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from foretune.catalog import CatalogError, Measurement, measurements
from foretune.catalog.measurements import read_measurements
from foretune.catalog.rows import DATA_DIR

Rows = list[dict[str, str]]
WORDS = DATA_DIR / "measurement_words.json"


def _mutated(tmp_path: Path, mutate: Callable[[Rows], None]) -> Path:
    """A copy of the data file with something changed in it."""
    with (DATA_DIR / "published_measurements.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    mutate(rows)
    path = tmp_path / "published_measurements.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return path


def _change(row_id: str, **cells: str) -> Callable[[Rows], None]:
    def mutate(rows: Rows) -> None:
        next(row for row in rows if row["id"] == row_id).update(cells)

    return mutate


def test_there_are_663_rows_with_the_columns_of_the_file() -> None:
    assert len(measurements()) == 663
    with (DATA_DIR / "published_measurements.csv").open(newline="") as file:
        header = next(csv.reader(file))
    fields = {field.alias or name for name, field in Measurement.model_fields.items()}
    assert fields == {*header, "as_published"}


def test_a_row_is_parsed() -> None:
    row = measurements()["GT0002"]
    assert (row.model, row.gpu, row.num_gpus, row.batch_size_per_gpu) == ("FLUX.1-dev", "MI300X", 8, 10)
    assert (row.speed, row.samples_per_s_per_gpu, row.peak_mem, row.fitted) == (4.34, 4.34, None, True)
    assert row.source.startswith("github:ROCm/FluxBenchmark")


def test_text_instead_of_a_number_is_kept_apart() -> None:
    texts = [row for row in measurements().values() if row.as_published]
    assert sum(len(row.as_published) for row in texts) == 64
    lokr = next(row for row in texts if row.as_published.get("lora_rank") == "factor 12")
    assert lokr.lora_rank is None


@pytest.mark.parametrize(
    ("row_id", "least_bytes", "most_bytes"),
    [
        ("GT0072", 44_045 * 10**6, 44_045 * 2**20),  # MB, nvidia-smi style
        ("GT0587", 13_738 * 10**6, 13_738 * 10**6),  # GB (13102 MiB): both given
        ("GT0003", round(20.26 * 2**30), round(20.26 * 2**30)),  # GiB that its source calls GB
        ("GT0007", 24 * 10**9, 24 * 2**30),  # GB, not said which
        ("GT0001", None, None),
    ],
)
def test_bytes_follow_the_unit(row_id: str, least_bytes: int | None, most_bytes: int | None) -> None:
    row = measurements()[row_id]
    assert row.peak_mem_bytes == least_bytes
    assert row.peak_mem_bytes_range == (None if least_bytes is None else (least_bytes, most_bytes))


def test_gib_is_two_to_the_thirty() -> None:
    rows = [row for row in measurements().values() if row.peak_mem_unit == "GiB"]
    assert len(rows) == 392
    for row in rows:
        assert row.peak_mem is not None
        assert row.peak_mem_bytes_range == (round(row.peak_mem * 2**30),) * 2


def test_bounds_and_verdicts_are_reduced_to_one_word() -> None:
    rows = measurements().values()
    assert {row.bound for row in rows} == {"exact", "approx", "lower", "upper", None}
    assert sum(row.fitted is False for row in rows) == 45
    assert sum(row.fitted is None for row in rows) == 3


def test_samples_per_second_follow_from_the_published_speed() -> None:
    checked = 0
    for row in measurements().values():
        if row.speed is None or row.speed_unit is None or row.samples_per_s_per_gpu is None:
            continue
        expected = None
        if row.speed_unit.startswith("s/step") and row.batch_size_per_gpu is not None:
            expected = row.batch_size_per_gpu / row.speed
        elif row.speed_unit.startswith(("samples/s total", "images/s total")) and row.num_gpus is not None:
            expected = row.speed / row.num_gpus
        elif row.speed_unit.startswith("s per video") and row.num_gpus is not None:
            expected = 1 / row.speed / row.num_gpus
        if expected is not None:
            assert row.samples_per_s_per_gpu == pytest.approx(expected, rel=0.01), row.id
            checked += 1
    assert checked == 394


@pytest.mark.parametrize(
    ("mutate", "complaint"),
    [
        (_change("GT0002", source=""), r"row 2 \(GT0002\), source"),
        (_change("GT0002", id="GT0001"), "GT0001: appears twice"),
        (_change("GT0002", id="2"), r"\(2\), id"),
        (_change("GT0003", peak_mem="-20"), "peak_mem.*greater than 0"),
        (_change("GT0003", peak_mem="inf"), "peak_mem.*finite"),
        (_change("GT0003", peak_mem_unit="gigs"), "peak_mem_unit: 'gigs' is not a known word"),
        (_change("GT0003", peak_mem_kind="a guess"), "peak_mem_kind: 'a guess' is not"),
        (_change("GT0003", peak_bound="roughly"), "peak_bound: 'roughly' is not"),
        (_change("GT0003", peak_mem_unit=""), "a peak needs peak_mem_unit"),
        (_change("GT0003", peak_bound=""), "a peak needs"),
        (_change("GT0002", speed_unit="samples a day"), "speed_unit: 'samples a day' is not"),
        (_change("GT0002", speed_unit=""), "a speed and its unit"),
        (_change("GT0002", speed="", speed_unit=""), "derived from a speed"),
        (_change("GT0002", task="dream"), "task"),
        (_change("GT0002", method="magic"), "method: 'magic' is not"),
        (_change("GT0002", fits="perhaps"), "fits: 'perhaps' is not"),
        (_change("GT0002", grade="D"), "grade"),
        (_change("GT0002", batch_per_gpu="2.5"), "batch_per_gpu"),
        (_change("GT0004", lora_rank="big"), "lora_rank.*found 'big'"),
        (_change("GT0002", source_commit="main"), "source_commit"),
        (_change("GT0002", gpu="MI300X "), "gpu: blanks"),
    ],
)
def test_a_planted_mistake_is_seen(tmp_path: Path, mutate: Callable[[Rows], None], complaint: str) -> None:
    with pytest.raises(CatalogError, match=complaint) as caught:
        read_measurements(_mutated(tmp_path, mutate), WORDS)
    assert caught.value.file == "published_measurements.csv"


def test_every_known_word_is_used() -> None:
    text = (DATA_DIR / "measurement_words.json").read_text()
    with (DATA_DIR / "published_measurements.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    document = json.loads(text)
    for part in ("words", "instead_of_a_number"):
        for column, words in document[part].items():
            assert set(words) <= {row[column] for row in rows}, column
