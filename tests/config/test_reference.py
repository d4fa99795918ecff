"""The generated pages of keys: every key of every section is on its page once."""

import re
from collections import Counter

import pytest
from pydantic import BaseModel

from foretune.choices.data import Cifar10Data, Folder, FolderData, HuggingFaceData, ShapesData
from foretune.choices.method import METHODS, Adapter, Lokr, LowRank, Oft
from foretune.choices.training import Ema, Optimizer, Train
from foretune.config.reference import reference_pages, section_keys

PAGES = reference_pages()


def keys_on(page: str) -> Counter[str]:
    tables = page.split("| key | meaning | value | default |")[1:]
    return Counter(key for table in tables for key in re.findall(r"^\| `(\w+)` ", table, re.MULTILINE))


def row(page: str, key: str) -> str:
    (line,) = [line for line in PAGES[page].splitlines() if line.startswith(f"| `{key}` ")]
    return line


def own(section: type[BaseModel], base: type[BaseModel]) -> list[str]:
    return [name for name in section.model_fields if name not in base.model_fields and name != "kind"]


def test_one_page_per_section_and_an_overview() -> None:
    assert list(PAGES) == ["index.md", *(f"{key}.md" for key in section_keys())]
    assert section_keys()[:3] == ["method", "data", "train"]
    assert set(keys_on(PAGES["index.md"])) == {"name", "model", "track", "accept"}
    for key in section_keys():
        assert f"[`{key}`]({key}.md)" in PAGES["index.md"]
        assert PAGES[f"{key}.md"].startswith(f"# `{key}`\n")


def test_the_kind_of_a_single_section_is_a_key_like_others() -> None:
    assert keys_on(PAGES["optimizer.md"]) == Counter(list(Optimizer.model_fields))
    assert "`schedule-free`" in PAGES["optimizer.md"]


def test_keys_that_kinds_share_are_listed_once() -> None:
    expected = [*Adapter.model_fields, *own(LowRank, Adapter), *own(Lokr, LowRank), *own(Oft, Adapter)]
    assert keys_on(PAGES["method.md"]) == Counter(expected)
    assert "## Keys of `lora`, `dora`, `rslora`, `loha`, `lokr`\n" in PAGES["method.md"]
    assert all(f"| `{kind}`" in PAGES["method.md"] for kind in METHODS)
    assert "| `lora` (default) |" in PAGES["method.md"]


def test_keys_of_every_kind_come_first() -> None:
    page = PAGES["data.md"]
    assert page.index("## Keys of every kind") < page.index("## Keys of `folder`") < page.index("## Keys of `shapes`")
    kinds = (FolderData, Cifar10Data, HuggingFaceData, ShapesData)
    shared = set.intersection(*(set(kind.model_fields) for kind in kinds)) - {"kind"}
    assert all(keys_on(page)[key] == 1 for key in shared)


@pytest.mark.parametrize(
    ("page", "heading", "section"), [("train.md", "train.ema", Ema), ("data.md", "data.folders", Folder)]
)
def test_sections_within_sections_have_a_table(page: str, heading: str, section: type[BaseModel]) -> None:
    assert set(keys_on(PAGES[page].split(f"## `{heading}`\n")[1])) == set(section.model_fields)


def test_types_and_defaults_in_words() -> None:
    assert row("optimizer.md", "betas").endswith("| list of 2 floats | `[0.9, 0.999]` |")
    assert row("method.md", "targets").endswith("| list of strings, optional | – |")
    assert row("train.md", "ema").endswith("| section with `decay`, optional | – |")
    assert row("train.md", "precision").endswith("| `fp32`, `tf32`, `bf16`, `fp16` | `bf16` |")
    assert row("data.md", "split").endswith("| string | `train` |")
    assert row("index.md", "model").endswith("| string | required |")
    assert keys_on(PAGES["train.md"]) == Counter([*Train.model_fields, *Ema.model_fields])
