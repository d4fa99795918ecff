"""Hugging Face datasets that the test saves to disk itself."""

import importlib
import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from foretune.choices.data import HuggingFaceData
from foretune.core.errors import MissingExtra, UnknownName, UserError
from foretune.data import images
from foretune.data.buckets import Bucket
from foretune.data.sources import Source, open_source
from tests.data.made import save_image

datasets = pytest.importorskip("datasets")
pyarrow = pytest.importorskip("pyarrow")
importlib.import_module("pyarrow.parquet")


def _rows(num_rows: int = 3, first: int = 0) -> Any:
    def png(number: int) -> bytes:
        stream = io.BytesIO()
        Image.new("RGB", (8 + number, 6), (number, 0, 0)).save(stream, "PNG")
        return stream.getvalue()

    numbers = range(first, first + num_rows)
    cells = {
        "image": [{"bytes": png(number), "path": None} for number in numbers],
        "text": [f"image  {number}\n" for number in numbers],
        "label": list(numbers),
        "name": [f"no. {number}" for number in numbers],
        "artist": [number % 2 for number in numbers],
        "tags": [["a"]] * num_rows,
    }
    features = datasets.Features(
        image=datasets.Image(),
        text=datasets.Value("string"),
        label=datasets.Value("int64"),
        name=datasets.Value("string"),
        artist=datasets.ClassLabel(names=["monet", "sargent"]),
        tags=datasets.Sequence(datasets.Value("string")),
    )
    return datasets.Dataset.from_dict(cells, features=features)


def _opened(tmp_path: Path, path: Path, **fields: Any) -> Source:
    choice = HuggingFaceData(kind="huggingface", path=str(path), cache_dir=str(tmp_path / "cache"), **fields)
    return open_source(choice, largest=Bucket(64, 64))


def _saved(tmp_path: Path, layout: str) -> Path:
    folder = tmp_path / layout
    folder.mkdir()
    if layout == "one split":
        _rows().save_to_disk(folder)
    elif layout == "several splits":
        datasets.DatasetDict(train=_rows(), test=_rows(1, first=5)).save_to_disk(folder)
    elif layout == "parquet":
        (folder / "data").mkdir()
        _rows(2).to_parquet(folder / "data" / "train-00000-of-00002.parquet")
        _rows(1, first=2).to_parquet(folder / "data" / "train-00001-of-00002.parquet")
        _rows(1, first=5).to_parquet(folder / "data" / "test-00000-of-00001.parquet")
    else:
        _rows().to_parquet(folder / "part.parquet")
    return folder


@pytest.mark.parametrize("layout", ["one split", "several splits", "parquet", "nameless parquet"])
def test_each_layout_gives_the_same_rows(tmp_path: Path, layout: str):
    source = _opened(tmp_path, _saved(tmp_path, layout), trigger="sks")
    assert [source.info(index).caption for index in range(len(source))] == [f"sks image {n}" for n in range(3)]
    assert [source.info(index).width_px for index in range(3)] == [8, 9, 10]
    assert source.pixels(2).shape == (6, 10, 3)
    assert source.pixels(2)[0, 0, 0] == 2
    assert source.repeats(0) == 1
    assert source.fingerprint() == _opened(tmp_path, _elsewhere(tmp_path), trigger="sks").fingerprint()


@pytest.mark.parametrize("layout", ["several splits", "parquet"])
def test_only_the_rows_with_a_value_are_read(tmp_path: Path, layout: str):
    folder = _saved(tmp_path, layout)
    for where, widths_px in (
        ("artist=sargent", [9]),
        ("artist=1", [9]),
        ("artist=monet", [8, 10]),
        ("label = 2", [10]),
        ("name=no. 1", [9]),
    ):
        source = _opened(tmp_path, folder, where=where)
        assert [source.info(index).width_px for index in range(len(source))] == widths_px
    for where, message in (
        ("artits=sargent", "no column .from data.where. named 'artits'. Did you mean 'artist'"),
        ("artist=sergeant", "no label of artist .from data.where. named 'sergeant'. Did you mean 'sargent'"),
        ("label=seven", "'label' holds numbers without names. Look up the number of 'seven'.*data.where=label=NUMBER"),
        ("tags=a", "holds lists"),
        ("label=77", "No row of .* has the value of data.where: label=77"),
    ):
        with pytest.raises(UserError, match=message):
            _opened(tmp_path, folder, where=where)


def _elsewhere(tmp_path: Path) -> Path:
    _rows().save_to_disk(tmp_path / "elsewhere")
    return tmp_path / "elsewhere"


@pytest.mark.parametrize("layout", ["several splits", "parquet"])
def test_a_split_is_chosen_by_its_name(tmp_path: Path, layout: str):
    folder = _saved(tmp_path, layout)
    assert _opened(tmp_path, folder, split="test").info(0).caption == "image 5"
    with pytest.raises(UnknownName, match="Did you mean 'test'"):
        _opened(tmp_path, folder, split="tets")


def test_captions_can_be_left_out(tmp_path: Path):
    assert _opened(tmp_path, _saved(tmp_path, "one split"), caption_column=None).info(0).caption == ""


def test_wrong_columns_are_answered_with_the_nearest(tmp_path: Path):
    folder = _saved(tmp_path, "one split")
    with pytest.raises(UnknownName, match="Did you mean 'image'"):
        _opened(tmp_path, folder, image_column="img")
    with pytest.raises(UnknownName, match="Did you mean 'text'"):
        _opened(tmp_path, folder, caption_column="txt")
    with pytest.raises(UserError, match=r"'label' .* does not hold images"):
        _opened(tmp_path, folder, image_column="label")
    with pytest.raises(UserError, match=r"'tags' .* holds list, not text"):
        _opened(tmp_path, folder, caption_column="tags").info(0)


def test_a_folder_that_is_no_dataset_is_refused_and_its_script_not_run(tmp_path: Path):
    script = tmp_path / "photos" / "photos.py"
    script.parent.mkdir()
    script.write_text("raise SystemExit('was run')")
    with pytest.raises(UserError, match=r"not a Hugging Face dataset on disk.*data\.kind=folder"):
        _opened(tmp_path, script.parent)


def test_a_row_without_an_image_is_named(tmp_path: Path):
    (tmp_path / "rows").mkdir()
    cells = [None, {"bytes": None, "path": str(tmp_path / "rows" / "gone.png")}, {"bytes": b"broken", "path": None}]
    kind = pyarrow.struct({"bytes": pyarrow.binary(), "path": pyarrow.string()})
    table = pyarrow.table({"image": pyarrow.array(cells, type=kind), "text": ["", None, ""]})
    pyarrow.parquet.write_table(table, tmp_path / "rows" / "train.parquet")
    source = _opened(tmp_path, tmp_path / "rows")
    answers = (
        r"row 0 of .* has no image",
        r"row 1 of .* points to .*gone\.png",
        r"row 2 of .* cannot be read",
    )
    for index, answer in enumerate(answers):
        with pytest.raises(UserError, match=answer):
            source.info(index)
    save_image(tmp_path / "rows" / "gone.png")
    assert source.info(1).caption == ""


def _rows_that_name(tmp_path: Path, image: Path) -> Path:
    (tmp_path / "rows").mkdir()
    kind = pyarrow.struct({"bytes": pyarrow.binary(), "path": pyarrow.string()})
    cells = pyarrow.array([{"bytes": None, "path": str(image)}], type=kind)
    pyarrow.parquet.write_table(pyarrow.table({"image": cells, "text": [""]}), tmp_path / "rows" / "train.parquet")
    return tmp_path / "rows"


def test_a_row_cannot_name_a_file_outside_unless_that_is_asked_for(tmp_path: Path):
    save_image(tmp_path / "private.png")
    folder = _rows_that_name(tmp_path, tmp_path / "private.png")
    with pytest.raises(UserError, match=r"row 0 of .*private\.png is outside of .*rows.*data\.follow_links=true"):
        _opened(tmp_path, folder).info(0)
    assert _opened(tmp_path, folder, follow_links=True).info(0).width_px


def test_a_saved_dataset_cannot_be_made_of_files_outside(tmp_path: Path):
    folder = _saved(tmp_path, "one split")
    (arrow,) = folder.glob("*.arrow")
    arrow.rename(tmp_path / "private.arrow")
    state = folder / "state.json"
    state.write_text(json.dumps({**json.loads(state.read_text()), "_data_files": [{"filename": "../private.arrow"}]}))
    with pytest.raises(UserError, match=r"private\.arrow.*outside of .*data\.follow_links=true"):
        _opened(tmp_path, folder)
    assert _opened(tmp_path, folder, follow_links=True).info(0).caption == "image 0"


@pytest.mark.parametrize("name", ["state.json", "dataset_info.json", "*.arrow"])
def test_a_pipe_in_a_saved_dataset_is_refused_and_not_waited_for(tmp_path: Path, name: str):
    folder = _saved(tmp_path, "one split")
    (file,) = folder.glob(name)
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(UserError, match=rf"{file.name} is a named pipe, not a file"):
        _opened(tmp_path, folder)


def test_a_second_start_does_not_read_the_images_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = _saved(tmp_path, "one split")
    for file in folder.iterdir():
        os.utime(file, (1_000_000_000, 1_000_000_000))
    first = _opened(tmp_path, folder).fingerprint()
    monkeypatch.setattr(images, "size_px", None)
    again = _opened(tmp_path, folder)
    assert again.fingerprint() == first
    assert np.array_equal(again.pixels(0)[0, 0], (0, 0, 0))


def test_without_the_package_the_error_is_the_command_that_installs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtra, match=r"foretune\[datasets\]"):
        _opened(tmp_path, tmp_path)
