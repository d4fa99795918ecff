"""Another file with the same columns: what cannot be read is left out with a reason, and the rest is read."""

import csv
from pathlib import Path

import pytest

from foretune import catalog
from foretune.backtests import BacktestQuestion, LeftOut, question, read_rows
from foretune.catalog.rows import DATA_DIR
from foretune.core.errors import UserError

OWN = DATA_DIR / "published_measurements.csv"


def written(path: Path, *rows: dict[str, str]) -> Path:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)
    return path


def raw(row_id: str) -> dict[str, str]:
    with OWN.open(encoding="utf-8", newline="") as file:
        return next(row for row in csv.DictReader(file) if row["id"] == row_id)


def test_the_own_file_gives_the_same_questions() -> None:
    rows, left_out = read_rows(OWN)
    assert left_out == ()
    assert [row.id for row in rows] == list(catalog.measurements())
    for row in rows:
        assert question(row) == question(catalog.measurements()[row.id])


def test_other_ids_units_and_words_are_read(tmp_path: Path) -> None:
    base = raw("GT0416")
    mib = {**base, "id": "mine-1", "peak_mem": "1024", "peak_mem_unit": "MiB", "subset": "", "source_commit": "main"}
    words = {**base, "id": "mine-2", "batch_per_gpu": "a few", "fits": "out of memory"}
    unit = {**base, "id": "mine-3", "peak_mem_unit": "pages", "fits": "not stated"}
    rows, left_out = read_rows(written(tmp_path / "other.csv", mib, words, unit))
    assert left_out == ()
    first, second, third = map(question, rows)
    assert isinstance(first, BacktestQuestion)
    assert first.published is not None
    assert first.published.num_bytes == 2**30
    assert isinstance(second, LeftOut)
    assert (rows[1].as_published, rows[1].fitted) == ({"batch_per_gpu": "a few"}, False)
    assert isinstance(third, BacktestQuestion)
    assert (third.published, third.fitted) == (None, None)


def test_a_row_that_cannot_be_read_does_not_hide_the_others(tmp_path: Path) -> None:
    base = raw("GT0416")
    rows, left_out = read_rows(written(tmp_path / "other.csv", {**base, "grade": "excellent"}, base))
    assert [row.id for row in rows] == ["GT0416"]
    assert [(row.row_id, row.source) for row in left_out] == [("GT0416", "SimpleTuner")]
    assert "grade" in left_out[0].reason


def test_fewer_columns_are_enough(tmp_path: Path) -> None:
    row = {
        "id": "x",
        "task": "train",
        "model": "FLUX.1-dev",
        "method": "lora",
        "framework": "SimpleTuner",
        "grade": "B",
    }
    rows, left_out = read_rows(written(tmp_path / "few.csv", row))
    assert left_out == ()
    assert isinstance(question(rows[0]), LeftOut)


@pytest.mark.parametrize("content", [b"", b"a,b\n1,2\n", b"\xff\xfe\x00"])
def test_another_kind_of_file_is_refused_with_what_it_should_be(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "no.csv"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"no\.csv"):
        read_rows(path)
