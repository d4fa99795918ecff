"""A shared row comes back as it was written; what a stranger changed in it is refused by name, and nothing is run."""

import csv
import io
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from foretune import catalog
from foretune.api.sharing import refuse_other_files, share
from foretune.backtests.reading import read_files
from foretune.backtests.shared.row_format import CATALOGUE_COLUMNS, COLUMNS, MOST_CELL_CHARACTERS, as_csv, shared_row
from foretune.catalog.rows import DATA_DIR
from foretune.core.errors import UserError
from tests.backtests.shared.rows import environment, experiment, measured, row

Cells = dict[str, str]


def with_json(cells: Cells, column: str, **changes: Any) -> Cells:
    return {**cells, column: json.dumps({**json.loads(cells[column]), **changes})}


def test_the_columns_begin_with_those_of_the_catalogue() -> None:
    with (DATA_DIR / "published_measurements.csv").open(encoding="utf-8", newline="") as file:
        assert tuple(next(csv.reader(file))) == CATALOGUE_COLUMNS == COLUMNS[: len(CATALOGUE_COLUMNS)]


def test_a_row_is_one_line_and_comes_back_equal(tmp_path: Path) -> None:
    for made in (
        row(),
        row(plan=None, notes=None),
        row(model="not in the catalogue: UNet2DModel"),
        row(
            environment=environment(device_kind="cpu", device="a CPU, with 2 cores"), measured=measured(process_bytes=9)
        ),
    ):
        text = as_csv(made.cells(), has_header=False)
        assert text.count("\n") == 1
        (cells,) = csv.DictReader(io.StringIO(as_csv(made.cells(), has_header=True)))
        back = shared_row({name: cell or None for name, cell in cells.items()})
        assert back.cells() == made.cells()
        assert (back.measured, back.plan, back.environment) == (made.measured, made.plan, made.environment)


def test_rows_are_added_to_a_file_and_counted_once(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "rows.csv"
    other = row(measured=measured(step_s=2.0))
    for one in (row(), other, row()):
        share(one, file)
    assert file.read_text().count("\n") == 4
    found = read_files([file, file])
    assert [one.row_id for one in found.shared] == [row().row_id, other.row_id]
    # The last line of the file repeats the first, and the second reading repeats all three.
    again = [row().row_id, row().row_id, other.row_id, row().row_id]
    assert [one.reason for one in found.refused] == [f"{name} cannot be read: it appears twice" for name in again]
    assert found.rows == ()


@pytest.mark.parametrize("content", ["", "a,b\n", ",".join(COLUMNS) + "\nFT-1,cut off"])
def test_other_files_are_not_added_to(tmp_path: Path, content: str) -> None:
    file = tmp_path / "rows.csv"
    file.write_text(content)
    if not content:
        assert refuse_other_files(file)
        return
    with pytest.raises(UserError, match=r"rows\.csv"):
        share(row(), file)
    assert file.read_text() == content


def hostile(change: Callable[[Cells], Cells]) -> str:
    """Why a changed row is refused."""
    with pytest.raises(ValueError, match=": ") as found:
        shared_row(change(row().cells()))
    return str(found.value)


HOSTILE: dict[str, tuple[Callable[[Cells], Cells], str]] = {
    "another speed": (lambda c: with_json(c, "measured", step_s=0.01), "id: it does not belong"),
    "another speed in the column": (lambda c: {**c, "speed": "99"}, "speed: it differs"),
    "formula in the device": (lambda c: {**c, "gpu": '=HYPERLINK("x")'}, "gpu: it differs"),
    "an id of another": (lambda c: {**c, "id": "FT-0000000000000000"}, "id: it does not belong"),
    "a folder as the model": (lambda c: {**c, "model": "/etc"}, "model:"),
    "a Hub id as the model": (lambda c: {**c, "model": "owner/name"}, "model:"),
    "a path in the experiment": (
        lambda c: {**c, "experiment": json.dumps({**json.loads(c["experiment"]), "data": {"path": "/etc/passwd"}})},
        "experiment:",
    ),
    "a folder to write to": (
        lambda c: with_json(c, "experiment", data={"max_text_tokens": None, "cache_dir": "/etc"}),
        "experiment: data.cache_dir is not a choice of a step",
    ),
    "a section that is no choice of a step": (
        lambda c: with_json(c, "experiment", save={"every": 1}),
        "experiment: save.every is not a choice of a step",
    ),
    "an adapter to read": (
        lambda c: {
            **c,
            "experiment": json.dumps(
                {**json.loads(c["experiment"]), "method": {"kind": "lora", "rank": 16, "start_from": "/etc"}}
            ),
        },
        "experiment: method",
    ),
    "a section of its own": (lambda c: with_json(c, "experiment", __class__={"a": 1}), "experiment:"),
    "a tracker": (lambda c: with_json(c, "experiment", track={"wandb": 1}), "experiment:"),
    "a section that is a list": (lambda c: with_json(c, "experiment", levers=[1]), "experiment:"),
    "a huge batch": (
        lambda c: with_json(c, "experiment", train={**json.loads(c["experiment"])["train"], "batch_size": 10**9}),
        "experiment: more than",
    ),
    "no JSON": (lambda c: {**c, "measured": "__import__('os').system('id')"}, "measured: it is not JSON"),
    "deep JSON": (lambda c: {**c, "plan": "[" * 8000}, "plan: it is not JSON"),
    "a list": (lambda c: {**c, "environment": "[]"}, "environment: it is not a JSON object"),
    "not a number": (lambda c: {**c, "measured": c["measured"].replace("1.25", "NaN")}, "measured:"),
    "infinite": (lambda c: {**c, "measured": c["measured"].replace("1.25", "1e999")}, "measured:"),
    "a negative time": (lambda c: with_json(c, "measured", step_s=-1.0), "measured: step_s"),
    "a number as text": (lambda c: with_json(c, "measured", num_runs="3"), "measured: num_runs"),
    "a field too many": (lambda c: with_json(c, "measured", loss=1.0), "measured: loss"),
    "an escape sequence": (lambda c: with_json(c, "environment", driver="\x1b[2J"), "environment: driver"),
    "two lines": (lambda c: with_json(c, "environment", system="Linux\nrm"), "environment: system"),
    "many packages": (
        lambda c: with_json(c, "environment", packages={f"p{n}": "1" for n in range(99)}),
        "environment: packages",
    ),
    "a device without memory": (lambda c: with_json(c, "environment", device_bytes=1), "environment: device_bytes"),
    "a device of a petabyte": (lambda c: with_json(c, "environment", device_bytes=2**50), "environment: device_bytes"),
    "a huge cell": (lambda c: {**c, "notes": "x" * (MOST_CELL_CHARACTERS + 1)}, "notes: more than"),
    "an empty cell": (lambda c: {**c, "environment": ""}, "environment: it is not JSON"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_changed_row_is_refused(name: str) -> None:
    change, reason = HOSTILE[name]
    assert hostile(change).startswith(reason)


def test_one_refused_row_does_not_hide_the_others(tmp_path: Path) -> None:
    good = row().cells()
    rows = [change(good) for change, _ in HOSTILE.values()]
    file = tmp_path / "rows.csv"
    with file.open("w", encoding="utf-8", newline="") as out:
        writer = csv.DictWriter(out, COLUMNS)
        writer.writeheader()
        writer.writerows([*rows, good])
    began_s = time.process_time()
    found = read_files([file])
    assert time.process_time() - began_s < 5
    assert [one.row_id for one in found.shared] == [good["id"]]
    assert len(found.refused) == len(HOSTILE)
    # By name, in one line, without what moves a cursor.
    assert all(one.reason.startswith(one.row_id) and one.reason.isprintable() for one in found.refused)


def test_a_file_that_is_no_file_or_too_large_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(UserError, match="named pipe"):
        read_files([tmp_path / "pipe.csv"])
    large = tmp_path / "large.csv"
    with large.open("wb") as out:
        out.truncate(65 * 2**20)
    with pytest.raises(UserError, match="at most"):
        read_files([large])


def test_what_is_shared_has_no_path_prompt_or_name() -> None:
    private = experiment().model_copy(update={"name": "my-secret-project"})
    data = private.data.model_copy(update={"cache_dir": "/home/someone/cache"})
    validation = private.validation.model_copy(update={"prompts": ("a photo of my daughter",)})
    private = private.model_copy(update={"data": data, "validation": validation})
    text = " ".join(row(experiment=private).cells().values())
    for secret in ("my-secret-project", "someone", "daughter"):
        assert secret not in text


def test_an_adapter_of_the_owner_is_not_shared() -> None:
    own = experiment()
    method = own.method.model_copy(update={"start_from": "./mine"})
    with pytest.raises(UserError, match="cannot be shared"):
        row(experiment=own.model_copy(update={"method": method}))


def test_a_shared_row_goes_into_the_catalogue() -> None:
    """Its own columns are those of the catalogue's rows, so that maintainers can take one over."""
    cells = row().cells()
    values = {name: cells[name] or None for name in CATALOGUE_COLUMNS}
    found = catalog.Measurement.model_validate({**values, "id": "GT9999", "as_published": {}})
    assert found.peak_mem_bytes == row().measured.reserved_bytes
    assert (found.samples_per_s_per_gpu, found.fitted, found.bound) == (1.6, True, "exact")
